"""Options of a server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hetero.devices.errors import ArgumentError


@dataclass(frozen=True)
class ServerOptions:
    """The addresses of a server, and the limits of its clients.

    Attributes
    ----------
    host : str
        The address to listen on; ``0.0.0.0`` for all addresses of this machine.
    port : int
        The port for HTTP; 0 takes a free one.
    grpc_port : int or None
        The port for gRPC; None serves no gRPC.
    tokens : tuple of str
        Requests other than health checks need one of them as ``Authorization: Bearer TOKEN``;
        empty lets everybody in.
    tls_key, tls_certificate : Path or None
        Files in PEM form, for TLS.
    allowed_hosts : tuple of str
        Names of this server, for ``Host`` and ``Origin`` headers that are refused otherwise: a
        server on a loopback address takes requests for ``localhost`` and loopback addresses only,
        so that no page of another site reaches it through the user's browser. ``*`` allows all.
    model_control : "none" or "explicit"
        Whether clients may load and unload models.
    body_nbytes : int
        Bytes that a request's body, packed or unpacked, or a tensor in shared memory may have.
    json_nbytes : int
        Bytes that JSON, or a gRPC message without its raw tensors, may have.
    all_bodies_nbytes : int
        Bytes that the bodies of all requests may have together; requests beyond are answered 503.
        0 is four times `body_nbytes`.
    body_s : float
        Seconds that a request's body may take.
    shared_memory : bool
        Whether clients on this machine may name shared memory of the server's user as tensors.
    access_log : bool
        Whether each HTTP request is a line of JSON in the logger ``hetero.serve.access``.
    drain_s : float
        Seconds that running requests have to end when the server is closed.
    watch_s : float
        Seconds between two searches of the model folder for changes; 0 never searches.
    shared_port : bool
        Whether other processes listen on the same ports (SO_REUSEPORT).
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None
    tokens: tuple[str, ...] = ()
    tls_key: Path | None = None
    tls_certificate: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    model_control: Literal["none", "explicit"] = "none"
    body_nbytes: int = 2**26
    json_nbytes: int = 2**24
    all_bodies_nbytes: int = 0
    body_s: float = 60.0
    shared_memory: bool = False
    access_log: bool = False
    drain_s: float = 30.0
    watch_s: float = 0.0
    shared_port: bool = False

    def __post_init__(self) -> None:
        if self.model_control not in ("none", "explicit"):
            raise ArgumentError(
                f"model_control={self.model_control!r}: expected 'none' or 'explicit'."
            )

        if not self.all_bodies_nbytes:
            object.__setattr__(self, "all_bodies_nbytes", 4 * self.body_nbytes)
        if self.all_bodies_nbytes < self.body_nbytes:
            raise ArgumentError(
                f"all_bodies_nbytes={self.all_bodies_nbytes}: expected at least body_nbytes, "
                f"{self.body_nbytes}, or no request of that size is ever served."
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
