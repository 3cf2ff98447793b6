"""Connections of one ZeroMQ socket to many parties, and a monitor that reports which are up."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

from hetero.scheduler.channels.sockets import Sockets

_UP: Final = zmq.EVENT_HANDSHAKE_SUCCEEDED
_DOWN: Final = zmq.EVENT_DISCONNECTED


class Heartbeats(NamedTuple):
    """ZeroMQ's heartbeats: seconds between two, and after which an unanswered one ends the
    connection. Its own thread answers them, whatever keeps the interpreter.
    """

    interval_s: float
    timeout_s: float


@dataclass(slots=True)
class _Connection:
    identity: bytes
    url: str
    key: bytes

    @property
    def place(self) -> str:
        """The url as `_place_of` writes it."""
        return _place_of(self.url)

    #: What ZeroMQ calls it: never twice the same, which would end the process.
    route: bytes = b""
    is_up: bool = False


class Connections:
    """A socket with a connection to each party; for one thread at a time.

    `most_waiting`: how many messages wait for a party that does not read; 0: any number.
    """

    def __init__(
        self, sockets: Sockets, heartbeats: Heartbeats | None = None, most_waiting: int = 0
    ) -> None:
        self._sockets = sockets
        self.socket = sockets.socket(zmq.ROUTER)
        self.socket.router_mandatory = True  # else it drops what finds no room, and is silent
        self.socket.sndhwm = most_waiting
        if heartbeats is not None:
            self.socket.heartbeat_ivl = _milliseconds(heartbeats.interval_s)
            self.socket.heartbeat_timeout = _milliseconds(heartbeats.timeout_s)
        url = f"inproc://monitor-{id(self)}"
        self.socket.monitor(url, _UP | _DOWN)
        self.monitor = sockets.socket(zmq.PAIR)
        self.monitor.connect(url)
        self._by_identity: dict[bytes, _Connection] = {}
        self._by_place: dict[str, _Connection] = {}
        self._by_route: dict[bytes, _Connection] = {}
        self._replaced: list[bytes] = []
        self._count = 0

    def connect(self, identity: bytes, url: str, key: bytes) -> None:
        """Connect to a party, whether or not it listens; `key`: CURVE's, empty without.

        Raises zmq.ZMQError.
        """
        self.disconnect(identity)
        if last := self._by_place.get(_place_of(url)):  # it has ended: another has its port
            self.disconnect(last.identity)
            self._replaced.append(last.identity)
        self._connect(_Connection(identity, url, key))

    def _connect(self, made: _Connection) -> None:
        self._count += 1
        made.route = b"p%d" % self._count  # libzmq keeps routes that begin with 0 for itself
        options: Any = self.socket
        options.connect_routing_id = made.route
        self._sockets.connect(self.socket, made.url, made.key)
        self._by_identity[made.identity] = self._by_place[made.place] = made
        self._by_route[made.route] = made

    def renew(self, identity: bytes) -> None:
        """Connect anew: after a cut a connection may hang for long. What waits on it is lost."""
        made = self._by_identity.get(identity)
        if made is not None:
            self.disconnect(identity)
            self._connect(_Connection(identity, made.url, made.key))

    def disconnect(self, identity: bytes) -> None:
        """End a connection, if there is one; what waits on it is lost."""
        made = self._by_identity.pop(identity, None)
        if made is not None:
            del self._by_place[made.place], self._by_route[made.route]
            with contextlib.suppress(zmq.ZMQError):
                self.socket.disconnect(made.url)

    def knows(self, identity: bytes) -> bool:
        """Return whether there is a connection to a party, made or to be made."""
        return identity in self._by_identity

    def is_up(self, identity: bytes) -> bool:
        """Return whether a party is connected."""
        made = self._by_identity.get(identity)
        return made is not None and made.is_up

    def send(self, identity: bytes, frames: Sequence[Any], *, copy: bool = True) -> bool:
        """Send frames to a party, now or once it is connected; return whether there is room.

        Raises zmq.ZMQError: there is no connection to it.
        """
        made = self._by_identity.get(identity)
        route = b"" if made is None else made.route
        try:
            self.socket.send_multipart((route, *frames), zmq.DONTWAIT, copy=copy)
        except zmq.Again:
            return False
        return True

    def receive(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the identities of parties, and what they have sent back."""
        with contextlib.suppress(zmq.Again):
            while True:
                route, *_, data = self.socket.recv_multipart(zmq.DONTWAIT)
                if route in self._by_route:
                    yield self._by_route[route].identity, data

    def changes(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the identities of parties, and whether they are up now, where that has changed."""
        while self._replaced:
            yield self._replaced.pop(), False
        with contextlib.suppress(zmq.Again):
            while True:
                event: Any = parse_monitor_message(self.monitor.recv_multipart(zmq.DONTWAIT))
                made = self._by_place.get(_place_of(event["endpoint"].decode()))
                is_up = event["event"] == _UP
                if made is not None and made.is_up != is_up:
                    made.is_up = is_up
                    yield made.identity, is_up

    def close(self) -> None:
        """Close the sockets."""
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1e3))


def _place_of(url: str) -> str:
    """Return a url in one way: ZeroMQ's events name an IPv4 address as IPv6 sometimes."""
    scheme, _, rest = url.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme != "tcp":
        return url
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return url
    return f"{getattr(address, 'ipv4_mapped', None) or address}:{port}"
