"""The ZeroMQ sockets of a direct channel: where they are, how they are secured, their limits."""

from __future__ import annotations

import functools
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from devices.errors import ClusterError
from scheduler.processes.owned_files import owned_name, sweep

#: Unix socket paths hold 107 bytes; the names of ours take up to 60.
_LONGEST_FOLDER: Final = 47
#: Where libzmq asks whether a client's key is known (RFC 27).
_ZAP: Final = "inproc://zeromq.zap.01"
_CONNECT_MS: Final = 2000
_RECONNECT_MS: Final = 50
#: Between two tries where nobody listens, after some.
_RECONNECT_MOST_MS: Final = 500
#: After so long without an acknowledgement a connection is made anew: after a cut TCP would wait
#: for as long as the cut was.
_UNANSWERED_MS: Final = 4000
#: libzmq waits 30 s for a handshake whose last message was lost.
_HANDSHAKE_MS: Final = 4000
#: A frame that says it is larger ends its connection, before memory is taken for it.
MOST_FRAME_NBYTES: Final = 2**32

Socket = zmq.Socket[bytes]


class Sockets:
    """Makes a channel's sockets.

    Parameters
    ----------
    curve : bool
        Whether what goes over tcp is encrypted.
    secret : bytes, optional
        CURVE's secret key that all clients share, as Z85: who has another one is refused.

    Attributes
    ----------
    public_key : bytes
        What those who connect over tcp need besides; empty without CURVE.
    gate : Socket or None
        Where clients' keys are asked about; answer by `admit`.
    """

    def __init__(self, *, curve: bool, secret: bytes | None = None) -> None:
        self.context: zmq.Context[Socket] = zmq.Context()
        # libzmq's default of 1,023 is less than a large cluster has parties.
        self.context.max_sockets = min(16 * 1024, int(self.context.get(zmq.SOCKET_LIMIT)))
        self.public_key, self._own_key = zmq.curve_keypair() if curve else (b"", b"")
        secret = secret or _process_secret()
        self._client_keys = zmq.curve_public(secret), secret
        self.gate: Socket | None = None
        if curve:
            self.gate = self.context.socket(zmq.REP)
            self.gate.linger = 0
            self.gate.bind(_ZAP)

    def listen(self, kind: int, url: str, *, secured: bool = False) -> tuple[Socket, int]:
        """Return a socket that others send to, and its port."""
        socket = self.socket(kind)
        if secured and self._own_key:
            socket.curve_server = True
            socket.curve_publickey, socket.curve_secretkey = self.public_key, self._own_key
        try:
            socket.bind(url)
        except zmq.ZMQError as error:
            self.context.destroy(linger=0)
            raise ClusterError(
                f"a direct channel cannot listen at {url}: {error}. Give a folder that can be "
                "written, or an address of this node's own.",
                cause=str(error),
            ) from error
        _, _, port = socket.get_string(zmq.LAST_ENDPOINT).rpartition(":")
        return socket, int(port) if port.isdigit() else 0

    def connect(self, socket: Socket, url: str, server_key: bytes) -> None:
        """Have a socket send to a url, whether or not somebody listens there."""
        if server_key and not url.startswith("ipc:"):
            socket.curve_serverkey = server_key
            socket.curve_publickey, socket.curve_secretkey = self._client_keys
        socket.connect(url)

    def admit(self) -> None:
        """Answer whether a client may connect: call when the gate can be read."""
        assert self.gate is not None
        asked = self.gate.recv_multipart()
        known = len(asked) == 7 and z85.encode(asked[6]) == self._client_keys[0]
        status = (b"200", b"") if known else (b"400", b"unknown key")
        self.gate.send_multipart([*asked[:2], *status, b"", b""])

    def socket(self, kind: int) -> Socket:
        """Return a socket."""
        socket: Socket = self.context.socket(kind)
        # What is in flight is bounded by whoever sends; a full queue would block its thread.
        socket.set_hwm(0)
        socket.linger = 0
        socket.ipv6 = True
        socket.maxmsgsize = MOST_FRAME_NBYTES
        socket.tcp_maxrt = _UNANSWERED_MS
        socket.connect_timeout = _CONNECT_MS
        socket.handshake_ivl = _HANDSHAKE_MS
        socket.reconnect_ivl, socket.reconnect_ivl_max = _RECONNECT_MS, _RECONNECT_MOST_MS
        return socket


def new_secret() -> bytes:
    """Return a secret for channels that are to reach each other between nodes."""
    return zmq.curve_keypair()[1]


#: What channels have that are given no secret: only this process's reach each other.
_process_secret: Final = functools.cache(new_secret)


def socket_path(folder: Path | None, name: str) -> str:
    """Return where in a folder the sockets of a new channel lie, after removing dead ones.

    Raises ClusterError: others can open the folder, it cannot be made, or its path is too long.
    """
    if folder is None:
        parent = tempfile.gettempdir()
        short = len(parent) < _LONGEST_FOLDER - 20
        folder = Path(parent if short else "/tmp") / f"hetero-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise ClusterError(
            f"no folder for a channel's sockets: {error}.", cause=str(error)
        ) from error
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    private = private and not status.st_mode & 0o077
    if not private or len(os.fsencode(folder)) > _LONGEST_FOLDER:
        raise ClusterError(
            f"{folder} cannot hold a channel's sockets: wanted a folder that is yours alone "
            f"(chmod 700), with a path of at most {_LONGEST_FOLDER} bytes."
        )
    sweep(folder)
    return str(folder / owned_name(name))
