"""The sockets of control messages: one for this node's parties, one to all others, one from them.

None is shared with data, so that no tensor holds up what is said here.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any, Final

import zmq

from scheduler.channels.direct_address import Endpoint
from scheduler.channels.protocol import MOST_CONTROL_NBYTES
from scheduler.channels.sockets import Socket, Sockets

_log = logging.getLogger(__name__)

#: Messages that wait for a party that does not read: beats are of no use once there are later ones.
_MOST_WAITING: Final = 8
_MOST_UNREAD: Final = 10_000
#: How long the last messages may take.
_FAREWELL_MS: Final = 100


class ControlSockets:
    """Sends from any thread; receives in one."""

    def __init__(self, sockets: Sockets, path: str, host: str | None) -> None:
        self._sockets = sockets
        self._lock = threading.Lock()
        self._path = path
        self._in: Socket | None = None
        self.port = 0
        if host is not None:
            self._in, self.port = sockets.listen(zmq.DEALER, tcp_url(host), secured=True)
            self._in.maxmsgsize = MOST_CONTROL_NBYTES
            self._in.rcvhwm = _MOST_UNREAD
        self._out: Socket | None = None
        self._connected: set[bytes] = set()
        self._closed = False
        self._near = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._near.bind(path)

    def register(self, poller: zmq.Poller) -> None:
        """Have a poller find what can be received."""
        for found in (self._near, self._in, self._sockets.gate):
            if found is not None:
                poller.register(found, zmq.POLLIN)

    def drain(self) -> Iterator[bytes]:
        """Yield what has come; answer who asks whether it may connect."""
        with contextlib.suppress(BlockingIOError):
            while True:
                yield self._near.recv(MOST_CONTROL_NBYTES + 1)
        with contextlib.suppress(zmq.Again):
            while self._in is not None:
                yield self._in.recv_multipart(zmq.DONTWAIT)[-1]
        gate = self._sockets.gate
        while gate is not None and gate.poll(0):
            self._sockets.admit()

    def send(self, endpoint: Endpoint, data: bytes) -> bool:
        """Send a message; False: there is no room now. Where nobody is there it is dropped."""
        if endpoint.is_near:
            try:
                self._near.sendto(data, endpoint.control_path)
            except BlockingIOError:
                return False
            except OSError as error:
                _log.debug("no control message to %s: %s", endpoint, error)
            return True
        with self._lock:
            if self._closed:
                return True
            try:
                self._to(endpoint).send_multipart((_route(endpoint), data), zmq.DONTWAIT)
            except zmq.Again:
                return False
            except zmq.ZMQError as error:
                _log.debug("no control message to %s: %s", endpoint, error)
        return True

    def forget(self, endpoint: Endpoint) -> None:
        """End what leads to a party."""
        with self._lock:
            if self._out is not None and not self._closed and endpoint.identity in self._connected:
                self._connected.discard(endpoint.identity)
                with contextlib.suppress(zmq.ZMQError):
                    self._out.disconnect(endpoint.control_url)

    def wake(self) -> None:
        """Make who polls see something: an empty message."""
        with contextlib.suppress(OSError):  # full: there is something to see
            self._near.sendto(b"", self._path)

    def close(self) -> None:
        """Receive nothing more, and send nothing but what was sent."""
        self._near.close()
        with self._lock:
            self._closed = True
            for found in (self._in, self._sockets.gate):
                if found is not None:
                    found.close()
            if self._out is not None:
                self._out.close(_FAREWELL_MS)

    def _to(self, endpoint: Endpoint) -> Socket:
        if self._out is None:
            self._out = self._sockets.socket(zmq.ROUTER)
            self._out.router_mandatory = True  # else it drops what finds no room, and is silent
            self._out.sndhwm = _MOST_WAITING
        if endpoint.identity not in self._connected:
            options: Any = self._out
            options.connect_routing_id = _route(endpoint)
            self._sockets.connect(self._out, endpoint.control_url, endpoint.key)
            self._connected.add(endpoint.identity)
        return self._out


def tcp_url(host: str) -> str:
    """Return where to listen for other nodes: any port."""
    return f"tcp://[{host}]:*" if ":" in host else f"tcp://{host}:*"


def _route(endpoint: Endpoint) -> bytes:
    return b"p" + endpoint.identity  # libzmq keeps those that begin with 0 for itself
