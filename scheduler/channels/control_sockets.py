"""The sockets of control messages, apart from those of tensors, which would hold them up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import zmq

from hetero.scheduler.channels.connections import Connections, Heartbeats
from hetero.scheduler.channels.protocol import MOST_CONTROL_NBYTES
from hetero.scheduler.channels.sockets import Socket, Sockets, Wakeup, tcp_url

#: Messages that wait for a party that does not read, and for this one.
_MOST_WAITING: Final = 8
_MOST_UNREAD: Final = 10_000
#: How long the last replies may take.
_FAREWELL_MS: Final = 100


class ControlSockets:
    """The sockets of control messages; for one thread, except `wake`.

    `near`, `far`: the connections to parties on this node and, with a `host`, on others.
    """

    def __init__(
        self, sockets: Sockets, path: str, host: str | None, heartbeats: Heartbeats
    ) -> None:
        self._sockets = sockets
        limits: dict[str, Any] = {"most_nbytes": MOST_CONTROL_NBYTES, "most_unread": _MOST_UNREAD}
        self._listeners = [sockets.listen(zmq.ROUTER, f"ipc://{path}", **limits)[0]]
        self.port = 0
        if host is not None:
            listener, self.port = sockets.listen(zmq.ROUTER, tcp_url(host), secured=True, **limits)
            self._listeners.append(listener)
        self.near = Connections(sockets, heartbeats, _MOST_WAITING)
        self.far = Connections(sockets, heartbeats, _MOST_WAITING) if host is not None else None
        self._wakeup = Wakeup()

    @property
    def connections(self) -> list[Connections]:
        """Those that there are."""
        return [self.near] if self.far is None else [self.near, self.far]

    def register(self, poller: zmq.Poller) -> None:
        """Have a poller find what can be received."""
        poller.register(self._wakeup, zmq.POLLIN)
        for found in (*self._listeners, self._sockets.gate):
            if found is not None:
                poller.register(found, zmq.POLLIN)
        for connections in self.connections:
            poller.register(connections.socket, zmq.POLLIN)
            poller.register(connections.monitor, zmq.POLLIN)

    def receive(self) -> Iterator[tuple[bytes, Callable[[bytes], object]]]:
        """Yield what others have sent, and what sends a reply."""
        self._wakeup.clear()
        for listener in self._listeners:
            with contextlib.suppress(zmq.Again):
                while True:
                    route, *_, data = listener.recv_multipart(zmq.DONTWAIT)
                    yield data, partial(_reply, listener, route)

    def admit(self) -> None:
        """Answer clients that ask whether they may connect."""
        while self._sockets.gate is not None and self._sockets.gate.poll(0):
            self._sockets.admit()

    def wake(self) -> None:
        """Make the thread that polls go on; from any thread."""
        self._wakeup.set()

    def close(self) -> None:
        """Close the sockets; the last replies may take a moment."""
        for connections in self.connections:
            connections.close()
        for listener in self._listeners:
            listener.close(_FAREWELL_MS)
        if self._sockets.gate is not None:
            self._sockets.gate.close()
        self._wakeup.close()


def _reply(listener: Socket, route: bytes, data: bytes) -> None:
    with contextlib.suppress(zmq.ZMQError):  # it is gone
        listener.send_multipart((route, data), zmq.DONTWAIT)
