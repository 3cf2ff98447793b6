"""Addresses of direct channels: one string with the sockets, process and node of a peer."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from msgspec import Meta
from msgspec.msgpack import Decoder, encode

from hetero.devices.errors import BlobError
from hetero.scheduler.formats.unpack import unpack
from hetero.scheduler.processes.owned_files import Process

_SCHEME: Final = "hetero2:"
_MAX_LENGTH: Final = 1024
_Number = Annotated[int, Meta(ge=0, lt=2**31)]


class Endpoint(NamedTuple):
    """Contents of an address.

    `identity`: 8 random bytes; every channel has its own, also after a restart.
    `node`: result of `this_node`; peers of one node share Unix sockets and ``/dev/shm``.
    `number`, `started`: id and start time of the process.
    `path`: path of the Unix sockets, without their suffixes.
    `host`: host of the TCP sockets; empty if there are none.
    `data_port`, `control_port`: ports of the TCP sockets.
    `key`: public CURVE key in Z85; empty without CURVE.
    """

    identity: Annotated[bytes, Meta(min_length=8, max_length=8)]
    node: str
    number: _Number
    started: str
    path: str
    host: str = ""
    data_port: _Number = 0
    control_port: _Number = 0
    key: bytes = b""

    def __str__(self) -> str:
        where = f"{self.host}:{self.data_port}" if self.host else "this node only"
        return f"process {self.number} ({self.identity.hex()}, {where})"

    @property
    def process(self) -> Process:
        """Process of the peer."""
        return Process(self.number, self.started)

    @property
    def is_local(self) -> bool:
        """Whether the peer is on this node."""
        return self.node == this_node()

    @property
    def local_path(self) -> str:
        """Path of the socket for messages within the node."""
        return f"{self.path}.local"

    @property
    def control_path(self) -> str:
        """Path of the socket for control messages within the node."""
        return f"{self.path}.control"

    @property
    def data_url(self) -> str:
        """Url for messages between nodes; empty if there is no TCP socket."""
        return self._tcp(self.data_port)

    @property
    def control_url(self) -> str:
        """Url for control messages from this process; empty if there is no common socket."""
        return f"ipc://{self.control_path}" if self.is_local else self._tcp(self.control_port)

    def _tcp(self, port: int) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{port}" if host else ""


_DECODER: Final = Decoder(Endpoint)


def to_address(endpoint: Endpoint) -> str:
    """Encode an endpoint as an address."""
    return _SCHEME + base64.urlsafe_b64encode(encode(endpoint)).decode()


@functools.lru_cache(4096)
def to_endpoint(address: str) -> Endpoint:
    """Decode an address.

    Raises BlobError: it is not an address of a direct channel, or of another version.
    """
    text = f"address {address[:80]!r}"
    if not address.startswith(_SCHEME) or len(address) > _MAX_LENGTH:
        raise BlobError(f"{text} does not belong to a direct channel; expected {_SCHEME}...")
    try:
        data = base64.urlsafe_b64decode(address[len(_SCHEME) :])
    except ValueError as error:
        raise BlobError(f"{text} is damaged: {error}") from error
    endpoint = unpack(data, _DECODER, text)
    if len(endpoint.key) not in (0, 40):
        raise BlobError(f"{text} is damaged: its key has {len(endpoint.key)} bytes; expected 40.")
    return endpoint


@functools.cache
def this_node() -> str:
    """Return an id of this node: of its boot, user, namespaces and shared memory."""
    parts = [Path("/proc/sys/kernel/random/boot_id").read_text(), str(os.getuid())]
    parts += [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("net", "pid", "mnt")]
    parts.append(str(Path("/dev/shm").stat().st_dev))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
