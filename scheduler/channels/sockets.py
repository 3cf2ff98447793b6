"""Creation of a direct channel's sockets: their paths, security and limits."""

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

#: Longest folder of sockets: a Unix socket's path has at most 107 bytes, our file names up to 60.
_MAX_FOLDER_NBYTES: Final = 47
#: Endpoint at which libzmq requests the authentication of a client (RFC 27).
_ZAP: Final = "inproc://zeromq.zap.01"
_CONNECT_MS: Final = 2000
#: Times between attempts to connect: the first, and the longest.
_RECONNECT_MS: Final = 50
_RECONNECT_MAX_MS: Final = 500
#: Time without a TCP acknowledgement after which a connection is closed. Otherwise TCP would wait
#: about as long again as an outage has lasted.
_UNACKNOWLEDGED_MS: Final = 4000
#: libzmq's default is 30 s, which is too long if the last message of a handshake is lost.
_HANDSHAKE_MS: Final = 4000
#: Maximum size of a frame. A frame that declares more closes its connection before memory is
#: allocated for it.
MAX_FRAME_NBYTES: Final = 2**32

#: Free descriptors and threads that a new channel requires: it uses 26 and 3.
_DESCRIPTORS: Final = 32
_THREADS: Final = 4


Socket = zmq.Socket[bytes]


class Sockets:
    """Factory of a channel's ZeroMQ sockets.

    `curve`: whether to encrypt TCP connections.
    `secret`: CURVE's secret key in Z85, shared by all peers; other clients are rejected.
    `public_key`: CURVE key that connecting peers need; empty without CURVE.
    `zap`: socket of authentication requests, answered by `authenticate`; None without CURVE.
    """

    def __init__(self, *, curve: bool, secret: bytes | None = None) -> None:
        self.context: zmq.Context[Socket] = zmq.Context()
        # libzmq's default limit of 1,023 sockets is too low for a large cluster.
        self.context.max_sockets = min(16 * 1024, int(self.context.get(zmq.SOCKET_LIMIT)))
        self.public_key, self._secret_key = zmq.curve_keypair() if curve else (b"", b"")
        secret = secret or _process_secret()
        self._client_keys = zmq.curve_public(secret), secret
        self.zap: Socket | None = None
        if curve:
            self.zap = self.context.socket(zmq.REP)
            self.zap.linger = 0
            self.zap.bind(_ZAP)

    def listen(
        self,
        kind: int,
        url: str,
        *,
        secured: bool = False,
        max_nbytes: int | None = None,
        max_received: int = 0,
    ) -> tuple[Socket, int]:
        """Return a bound socket and its port.

        `max_nbytes`, `max_received`: maximum size of a message, and number of queued messages. They
        must be set before the socket is bound.
        Raises ClusterError: libzmq cannot bind it.
        """
        socket = self.socket(kind)
        socket.rcvhwm = max_received
        if max_nbytes is not None:
            socket.maxmsgsize = max_nbytes
        if secured and self._secret_key:
            socket.curve_server = True
            socket.curve_publickey, socket.curve_secretkey = self.public_key, self._secret_key
        try:
            socket.bind(url)
        except zmq.ZMQError as error:
            self.context.destroy(linger=0)
            raise ClusterError(
                f"a direct channel cannot listen at {url}: {error}. Choose a writable folder, or "
                "an address of this node.",
                cause=str(error),
            ) from error
        _, _, port = socket.get_string(zmq.LAST_ENDPOINT).rpartition(":")
        return socket, int(port) if port.isdigit() else 0

    def connect(self, socket: Socket, url: str, server_key: bytes) -> None:
        """Connect a socket to a url, whether or not a peer listens there.

        `server_key`: the peer's `public_key`.
        """
        if server_key and not url.startswith("ipc:"):
            socket.curve_serverkey = server_key
            socket.curve_publickey, socket.curve_secretkey = self._client_keys
        socket.connect(url)

    def authenticate(self) -> None:
        """Answer one authentication request; call it when `zap` is readable."""
        assert self.zap is not None
        request = self.zap.recv_multipart()
        is_known = len(request) == 7 and z85.encode(request[6]) == self._client_keys[0]
        status = (b"200", b"") if is_known else (b"400", b"unknown key")
        self.zap.send_multipart([*request[:2], *status, b"", b""])

    def socket(self, kind: int) -> Socket:
        """Return a new socket."""
        socket: Socket = self.context.socket(kind)
        # The senders bound the messages in flight; a full queue would block their threads.
        socket.set_hwm(0)
        socket.linger = 0
        socket.ipv6 = True
        socket.maxmsgsize = MAX_FRAME_NBYTES
        socket.tcp_maxrt = _UNACKNOWLEDGED_MS
        socket.connect_timeout = _CONNECT_MS
        socket.handshake_ivl = _HANDSHAKE_MS
        socket.reconnect_ivl, socket.reconnect_ivl_max = _RECONNECT_MS, _RECONNECT_MAX_MS
        return socket


class Wakeup:
    """Descriptor that other threads make readable to wake a thread that polls it.

    `counts`: whether each `set` needs a `clear` of its own.
    """

    def __init__(self, *, counts: bool = False) -> None:
        self._lock = threading.Lock()
        flags = os.EFD_NONBLOCK | os.EFD_CLOEXEC | (os.EFD_SEMAPHORE if counts else 0)
        self._descriptor: int | None = os.eventfd(0, flags)

    def fileno(self) -> int:
        """Return the descriptor; -1 if it is closed."""
        return -1 if self._descriptor is None else self._descriptor

    def set(self) -> None:
        """Make the descriptor readable; after `close` it has no effect."""
        with self._lock:
            if self._descriptor is not None:
                os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """Undo one `set`, or all if they are not counted."""
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


def check_resources() -> None:
    """Check that descriptors and threads suffice for a channel; libzmq aborts if they run out.

    Raises ClusterError: too few descriptors are free.
    Raises OverloadedError: too few threads can be started.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        num_open = len(list(Path("/proc/self/fd").iterdir()))
    except OSError:  # reading the folder needs a descriptor as well
        num_open = limit
    if limit != resource.RLIM_INFINITY and limit - num_open < _DESCRIPTORS:
        raise ClusterError(
            f"a direct channel needs {_DESCRIPTORS} free file descriptors; {num_open} of the "
            f"limit of {limit} are in use. Raise the limit (ulimit -n), or close files."
        )
    is_done = threading.Event()
    try:
        for number in range(_THREADS):
            start_thread(is_done.wait, f"hetero-check-{number}")
    finally:
        is_done.set()


def tcp_url(host: str) -> str:
    """Return the url for listening at any port of a host."""
    return f"tcp://[{host}]:*" if ":" in host else f"tcp://{host}:*"


def new_secret() -> bytes:
    """Return a new secret for the channels of a cluster."""
    return zmq.curve_keypair()[1]


#: Default secret: only channels of this process reach each other.
_process_secret: Final = functools.cache(new_secret)


def socket_path(folder: Path | None, name: str) -> str:
    """Return the path prefix of a new channel's sockets; remove those of ended processes.

    Raises ClusterError: the folder is accessible to other users, cannot be created, or its path is
    too long.
    """
    if folder is None:
        parent = tempfile.gettempdir()
        is_short = len(parent) < _MAX_FOLDER_NBYTES - 20
        folder = Path(parent if is_short else "/tmp") / f"hetero-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        private = is_private(folder)
    except OSError as error:
        raise ClusterError(
            f"the folder {folder} for a channel's sockets cannot be created: {error}.",
            cause=str(error),
        ) from error
    if not private or len(os.fsencode(folder)) > _MAX_FOLDER_NBYTES:
        raise ClusterError(
            f"{folder} cannot hold a channel's sockets: expected a folder that only you can access "
            f"(chmod 700), with a path of at most {_MAX_FOLDER_NBYTES} bytes."
        )
    sweep(folder)
    return str(folder / owned_name(name))
