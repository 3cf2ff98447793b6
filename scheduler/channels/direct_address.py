"""Addresses of direct channels: one string that says how to reach a party, from its node or not."""

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
_LONGEST: Final = 1024
_Number = Annotated[int, Meta(ge=0, lt=2**31)]


class Endpoint(NamedTuple):
    """Where a party's sockets are: datagrams, data and control.

    `identity`: 8 random bytes: no two channels share them, not even one after another.
    `node`: the node as `this_node` tells it: those that share it share sockets in files and
        ``/dev/shm``.
    `number`, `started`: of the process.
    `path`: of the sockets on its node, less their suffixes.
    `host`: where the tcp sockets listen; empty without.
    `data_port`, `control_port`: their ports.
    `key`: CURVE's public key, as Z85; empty without.
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
        at = f"{self.host}:{self.data_port}" if self.host else "this node only"
        return f"process {self.number} ({self.identity.hex()}, {at})"

    @property
    def process(self) -> Process:
        """Whose it is."""
        return Process(self.number, self.started)

    @property
    def is_near(self) -> bool:
        """Whether it is on this process's node."""
        return self.node == this_node()

    @property
    def datagram_path(self) -> str:
        """Where datagrams from its node go."""
        return f"{self.path}.near"

    @property
    def control_path(self) -> str:
        """Where the socket of control messages from its node is."""
        return f"{self.path}.control"

    @property
    def data_url(self) -> str:
        """Where this process sends what is no datagram; empty if it cannot."""
        return f"ipc://{self.path}.data" if self.is_near else self._tcp(self.data_port)

    @property
    def control_url(self) -> str:
        """Where this process sends control messages; empty if it cannot."""
        return f"ipc://{self.control_path}" if self.is_near else self._tcp(self.control_port)

    def _tcp(self, port: int) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{port}" if host else ""


_READ: Final = Decoder(Endpoint)


def to_address(endpoint: Endpoint) -> str:
    """Return the address of an endpoint."""
    return _SCHEME + base64.urlsafe_b64encode(encode(endpoint)).decode()


@functools.lru_cache(4096)
def to_endpoint(address: str) -> Endpoint:
    """Return the endpoint of an address.

    Raises BlobError: it is none of a direct channel, or of another version.
    """
    if not address.startswith(_SCHEME) or len(address) > _LONGEST:
        raise BlobError(f"address {address[:80]!r} is none of a direct channel: {_SCHEME}...")
    try:
        data = base64.urlsafe_b64decode(address[len(_SCHEME) :])
    except ValueError as error:
        raise BlobError(f"address {address[:80]!r} is damaged: {error}") from error
    endpoint = unpack(data, _READ, f"address {address[:80]!r}")
    if len(endpoint.key) not in (0, 40):
        raise BlobError(f"address {address[:80]!r} is damaged: its key is no key.")
    return endpoint


@functools.cache
def this_node() -> str:
    """Return what tells this node from others: a machine, or a container or network name space."""
    parts = [Path("/proc/sys/kernel/random/boot_id").read_text(), str(os.getuid())]
    parts += [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("net", "pid", "mnt")]
    parts.append(str(Path("/dev/shm").stat().st_dev))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
