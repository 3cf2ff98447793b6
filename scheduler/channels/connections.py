"""ZeroMQ connections from one socket to many peers, with a monitor of their state."""

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


class HeartbeatTimes(NamedTuple):
    """Times of ZeroMQ's heartbeats.

    libzmq's I/O thread sends and answers them, so a thread that holds the interpreter lock does not
    delay them.

    `interval_s`: time between two heartbeats.
    `timeout_s`: time after which an unanswered heartbeat closes the connection.
    """

    interval_s: float
    timeout_s: float


@dataclass(slots=True)
class _Connection:
    """A connection to one peer.

    `key`: the peer's CURVE key; empty without CURVE.
    `route`: routing id of the connection. libzmq aborts the process if one is used twice.
    """

    identity: bytes
    url: str
    key: bytes
    route: bytes = b""
    is_up: bool = False

    @property
    def endpoint(self) -> str:
        """Normalized url."""
        return _normalize_url(self.url)


class Connections:
    """A ROUTER socket with one connection to each peer; use it from one thread at a time.

    `heartbeats`: times of heartbeats; None disables them.
    `max_queued`: maximum number of messages in the queue of a connection; 0 means no limit.
    """

    def __init__(
        self, sockets: Sockets, heartbeats: HeartbeatTimes | None = None, max_queued: int = 0
    ) -> None:
        self._sockets = sockets
        self.socket = sockets.socket(zmq.ROUTER)
        self.socket.router_mandatory = True  # otherwise a full queue drops messages silently
        self.socket.sndhwm = max_queued
        if heartbeats is not None:
            self.socket.heartbeat_ivl = _milliseconds(heartbeats.interval_s)
            self.socket.heartbeat_timeout = _milliseconds(heartbeats.timeout_s)
        url = f"inproc://monitor-{id(self)}"
        self.socket.monitor(url, _UP | _DOWN)
        self.monitor = sockets.socket(zmq.PAIR)
        self.monitor.connect(url)
        self._by_identity: dict[bytes, _Connection] = {}
        self._by_endpoint: dict[str, _Connection] = {}
        self._by_route: dict[bytes, _Connection] = {}
        #: Identities whose connection was closed because another peer uses their endpoint.
        self._replaced: list[bytes] = []
        self._num_routes = 0

    def connect(self, identity: bytes, url: str, key: bytes) -> None:
        """Connect to a peer, whether or not it listens already.

        Raises zmq.ZMQError: libzmq rejects the url, or lacks resources.
        """
        self.disconnect(identity)
        # A peer with the same endpoint has ended, and its port was assigned again.
        if previous := self._by_endpoint.get(_normalize_url(url)):
            self.disconnect(previous.identity)
            self._replaced.append(previous.identity)
        self._connect(_Connection(identity, url, key))

    def _connect(self, connection: _Connection) -> None:
        self._num_routes += 1
        connection.route = b"p%d" % self._num_routes  # libzmq reserves ids that start with 0
        options: Any = self.socket
        options.connect_routing_id = connection.route
        self._sockets.connect(self.socket, connection.url, connection.key)
        self._by_identity[connection.identity] = connection
        self._by_endpoint[connection.endpoint] = connection
        self._by_route[connection.route] = connection

    def reconnect(self, identity: bytes) -> None:
        """Replace a connection, if there is one; its queued messages are lost.

        After a network outage TCP may wait for minutes before it retransmits.
        """
        connection = self._by_identity.get(identity)
        if connection is not None:
            self.disconnect(identity)
            self._connect(_Connection(identity, connection.url, connection.key))

    def disconnect(self, identity: bytes) -> None:
        """Close a connection, if there is one; its queued messages are lost."""
        connection = self._by_identity.pop(identity, None)
        if connection is not None:
            del self._by_endpoint[connection.endpoint], self._by_route[connection.route]
            with contextlib.suppress(zmq.ZMQError):
                self.socket.disconnect(connection.url)

    def __contains__(self, identity: bytes) -> bool:
        """Return whether there is a connection to a peer, established or not."""
        return identity in self._by_identity

    def is_up(self, identity: bytes) -> bool:
        """Return whether the connection to a peer is established."""
        connection = self._by_identity.get(identity)
        return connection is not None and connection.is_up

    def send(self, identity: bytes, frames: Sequence[Any], *, copy: bool = True) -> bool:
        """Queue frames for a peer; return False if its queue is full.

        Raises zmq.ZMQError: there is no connection to the peer.
        """
        connection = self._by_identity.get(identity)
        route = b"" if connection is None else connection.route
        try:
            self.socket.send_multipart((route, *frames), zmq.DONTWAIT, copy=copy)
        except zmq.Again:
            return False
        return True

    def receive(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield each reply with the identity of its connection's peer."""
        with contextlib.suppress(zmq.Again):
            while True:
                route, *_, data = self.socket.recv_multipart(zmq.DONTWAIT)
                if route in self._by_route:
                    yield self._by_route[route].identity, data

    def changes(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the identity of each connection that was established (True) or lost (False)."""
        while self._replaced:
            yield self._replaced.pop(), False
        with contextlib.suppress(zmq.Again):
            while True:
                event: Any = parse_monitor_message(self.monitor.recv_multipart(zmq.DONTWAIT))
                connection = self._by_endpoint.get(_normalize_url(event["endpoint"].decode()))
                is_up = event["event"] == _UP
                if connection is not None and connection.is_up != is_up:
                    connection.is_up = is_up
                    yield connection.identity, is_up

    def close(self) -> None:
        """Close the sockets."""
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1e3))


def _normalize_url(url: str) -> str:
    """Normalize a url: libzmq's events sometimes write an IPv4 address as IPv6."""
    scheme, _, rest = url.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme != "tcp":
        return url
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return url
    return f"{getattr(address, 'ipv4_mapped', None) or address}:{port}"
