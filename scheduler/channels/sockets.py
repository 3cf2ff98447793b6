"""The sockets of a direct channel: where they are, how they are secured, their limits."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import resource
import tempfile
import threading
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from hetero.devices.errors import ClusterError
from hetero.scheduler.processes.owned_files import is_private, owned_name, sweep
from hetero.scheduler.processes.threads import start_thread

_log = logging.getLogger(__name__)

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

#: Descriptors and threads that a channel takes at first, with a few to spare.
_DESCRIPTORS: Final = 24
_THREADS: Final = 4


Socket = zmq.Socket[bytes]


class Sockets:
    """Makes a channel's sockets.

    `curve`: whether what goes over tcp is encrypted.
    `secret`: CURVE's secret key that all clients share, as Z85: who has another one is refused.
    `public_key`: what those who connect over tcp need besides; empty without CURVE.
    `gate`: where clients' keys are asked about; answer by `admit`.
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

    def listen(
        self,
        kind: int,
        url: str,
        *,
        secured: bool = False,
        most_nbytes: int | None = None,
        most_unread: int = 0,
    ) -> tuple[Socket, int]:
        """Return a socket that others send to, and its port.

        `most_nbytes`, `most_unread`: of a message, and messages; a limit that is set once the
        socket is bound holds for no connection.
        """
        made = self.socket(kind)
        made.rcvhwm = most_unread
        if most_nbytes is not None:
            made.maxmsgsize = most_nbytes
        if secured and self._own_key:
            made.curve_server = True
            made.curve_publickey, made.curve_secretkey = self.public_key, self._own_key
        try:
            made.bind(url)
        except zmq.ZMQError as error:
            self.context.destroy(linger=0)
            raise ClusterError(
                f"a direct channel cannot listen at {url}: {error}. Give a folder that can be "
                "written, or an address of this node's own.",
                cause=str(error),
            ) from error
        _, _, port = made.get_string(zmq.LAST_ENDPOINT).rpartition(":")
        return made, int(port) if port.isdigit() else 0

    def connect(self, sender: Socket, url: str, server_key: bytes) -> None:
        """Have a socket send to a url, whether or not somebody listens there."""
        if server_key and not url.startswith("ipc:"):
            sender.curve_serverkey = server_key
            sender.curve_publickey, sender.curve_secretkey = self._client_keys
        sender.connect(url)

    def admit(self) -> None:
        """Answer whether a client may connect: call when the gate can be read."""
        assert self.gate is not None
        asked = self.gate.recv_multipart()
        known = len(asked) == 7 and z85.encode(asked[6]) == self._client_keys[0]
        status = (b"200", b"") if known else (b"400", b"unknown key")
        self.gate.send_multipart([*asked[:2], *status, b"", b""])

    def socket(self, kind: int) -> Socket:
        """Return a socket."""
        made: Socket = self.context.socket(kind)
        # What is in flight is bounded by whoever sends; a full queue would block its thread.
        made.set_hwm(0)
        made.linger = 0
        made.ipv6 = True
        made.maxmsgsize = MOST_FRAME_NBYTES
        made.tcp_maxrt = _UNANSWERED_MS
        made.connect_timeout = _CONNECT_MS
        made.handshake_ivl = _HANDSHAKE_MS
        made.reconnect_ivl, made.reconnect_ivl_max = _RECONNECT_MS, _RECONNECT_MOST_MS
        return made


class Wakeup:
    """A descriptor that a thread polls, and others make readable."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return the descriptor; -1 once closed."""
        return -1 if self._descriptor is None else self._descriptor

    def set(self) -> None:
        """Make it readable; after `close` do nothing."""
        with self._lock:
            if self._descriptor is not None:
                os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """Make it unreadable."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fileno())

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None


def check_room() -> None:
    """See that there is room for a channel: where it is short, libzmq ends the whole process.

    Raises ClusterError: too few descriptors are left; OverloadedError: too few threads.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        num_open = len(list(Path("/proc/self/fd").iterdir()))
    except OSError:  # to look takes one as well
        num_open = most
    if most != resource.RLIM_INFINITY and most - num_open < _DESCRIPTORS:
        raise ClusterError(
            f"a direct channel needs {_DESCRIPTORS} files of the {most} that this process may "
            f"have open, and {num_open} are. Raise the limit (ulimit -n), or close some."
        )
    is_seen = threading.Event()
    try:
        for number in range(_THREADS):
            start_thread(is_seen.wait, f"hetero-room-{number}")
    finally:
        is_seen.set()


def tcp_url(host: str) -> str:
    """Return where to listen for other nodes: any port."""
    return f"tcp://[{host}]:*" if ":" in host else f"tcp://{host}:*"


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
        private = is_private(folder)
    except OSError as error:
        raise ClusterError(
            f"no folder for a channel's sockets: {error}.", cause=str(error)
        ) from error
    if not private or len(os.fsencode(folder)) > _LONGEST_FOLDER:
        raise ClusterError(
            f"{folder} cannot hold a channel's sockets: wanted a folder that is yours alone "
            f"(chmod 700), with a path of at most {_LONGEST_FOLDER} bytes."
        )
    sweep(folder)
    return str(folder / owned_name(name))
