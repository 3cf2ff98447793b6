"""The ZeroMQ sockets of a direct channel: where they lie, how they are secured, what they bear."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Final

import zmq

from devices.errors import ClusterError
from scheduler.processes.owned_files import owned_name, sweep

#: Unix socket paths hold 107 bytes; the names of ours take up to 60.
_LONGEST_FOLDER: Final = 47
#: A connection over which nothing is acknowledged for so long is made anew, ms: TCP alone would
#: be silent for minutes after a cut.
_UNANSWERED_MS: Final = 2000
_RECONNECT_MS: Final = 50

Socket = zmq.Socket[bytes]


class Sockets:
    """Makes a channel's sockets.

    Attributes
    ----------
    public_key : bytes
        What those who connect over tcp need; empty where CURVE is off.
    """

    def __init__(self, *, curve: bool) -> None:
        self.context: zmq.Context[Socket] = zmq.Context()
        self.public_key, self._secret_key = zmq.curve_keypair() if curve else (b"", b"")

    def pull(self, *urls: str, secured: bool = False) -> tuple[Socket, int]:
        """Return a socket that others send to, and the port of its last url."""
        socket = self._socket(zmq.PULL)
        if secured and self._secret_key:
            socket.curve_server = True
            socket.curve_publickey, socket.curve_secretkey = self.public_key, self._secret_key
        try:
            for url in urls:
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

    def push(self, url: str, server_key: bytes = b"") -> Socket:
        """Return a socket that sends to a url, whether or not somebody listens there."""
        socket = self._socket(zmq.PUSH)
        if server_key and not url.startswith("ipc:"):
            mine = (self.public_key, self._secret_key) if self.public_key else zmq.curve_keypair()
            socket.curve_serverkey = server_key
            socket.curve_publickey, socket.curve_secretkey = mine
        socket.connect(url)
        return socket

    def _socket(self, kind: int) -> Socket:
        socket: Socket = self.context.socket(kind)
        # What is in flight is bounded by whoever sends; a full queue would block its thread.
        socket.set_hwm(0)
        socket.linger = 0
        socket.ipv6 = True
        socket.tcp_maxrt = socket.connect_timeout = _UNANSWERED_MS
        socket.reconnect_ivl = _RECONNECT_MS
        return socket


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
