"""Sockets of control messages; separate from data, so that large tensors do not delay them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import zmq

from hetero.scheduler.channels.connections import Connections, HeartbeatTimes
from hetero.scheduler.channels.protocol import MAX_CONTROL_NBYTES
from hetero.scheduler.channels.sockets import Socket, Sockets, Wakeup, tcp_url

#: Maximum numbers of queued messages for each peer, and from all of them.
_MAX_QUEUED: Final = 8
_MAX_RECEIVED: Final = 10_000
#: Time in which the last replies are sent after `close`.
_LINGER_MS: Final = 100


class ControlSockets:
    """Sockets of a channel's control messages; use them from one thread, except `wake`.

    `local`, `remote`: connections to peers of this node, and of other nodes if `host` is given.
    """

    def __init__(
        self, sockets: Sockets, path: str, host: str | None, heartbeats: HeartbeatTimes
    ) -> None:
        self._sockets = sockets
        limits: dict[str, Any] = {"max_nbytes": MAX_CONTROL_NBYTES, "max_received": _MAX_RECEIVED}
        self._listeners = [sockets.listen(zmq.ROUTER, f"ipc://{path}", **limits)[0]]
        self.port = 0
        self.local = Connections(sockets, heartbeats, _MAX_QUEUED)
        self.remote: Connections | None = None
        if host is not None:
            listener, self.port = sockets.listen(zmq.ROUTER, tcp_url(host), secured=True, **limits)
            self._listeners.append(listener)
            self.remote = Connections(sockets, heartbeats, _MAX_QUEUED)
        self._wakeup = Wakeup()

    @property
    def connections(self) -> list[Connections]:
        """Connections of either kind."""
        return [self.local] if self.remote is None else [self.local, self.remote]

    def register(self, poller: zmq.Poller) -> None:
        """Register all sockets for reading."""
        poller.register(self._wakeup, zmq.POLLIN)
        for socket in (*self._listeners, self._sockets.zap):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)
        for connections in self.connections:
            poller.register(connections.socket, zmq.POLLIN)
            poller.register(connections.monitor, zmq.POLLIN)

    def receive(self) -> Iterator[tuple[bytes, Callable[[bytes], object]]]:
        """Yield each incoming message with a function that replies to it."""
        self._wakeup.clear()
        for listener in self._listeners:
            with contextlib.suppress(zmq.Again):
                while True:
                    route, *_, data = listener.recv_multipart(zmq.DONTWAIT)
                    yield data, partial(_reply, listener, route)

    def authenticate(self) -> None:
        """Answer pending requests for authentication."""
        while self._sockets.zap is not None and self._sockets.zap.poll(0):
            self._sockets.authenticate()

    def wake(self) -> None:
        """Wake the polling thread; callable from any thread."""
        self._wakeup.set()

    def close(self) -> None:
        """Close the sockets after a moment for the last replies."""
        for connections in self.connections:
            connections.close()
        for listener in self._listeners:
            listener.close(_LINGER_MS)
        if self._sockets.zap is not None:
            self._sockets.zap.close()
        self._wakeup.close()


def _reply(listener: Socket, route: bytes, data: bytes) -> None:
    with contextlib.suppress(zmq.ZMQError):  # the peer has disconnected
        listener.send_multipart((route, data), zmq.DONTWAIT)
