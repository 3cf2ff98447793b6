"""How a server listens, and what it allows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server listens and what it allows.

    Attributes
    ----------
    host : str
        The address to listen on; ``0.0.0.0`` for all of this machine's.
    port : int
        Where to listen for HTTP; 0 takes one that is free.
    grpc_port : int or None
        Where to listen for gRPC; None: nowhere.
    tokens : tuple of str
        One of them has to come as ``Authorization: Bearer TOKEN``, except with health checks; none:
        anybody may ask.
    tls_key, tls_certificate : Path or None
        Files in PEM form, for TLS.
    body_nbytes : int
        Bytes that a request's body may have, packed or unpacked.
    body_s : float
        Seconds that a request's body may take.
    shared_memory : bool
        Whether clients on this machine may name shared memory of the server's user as tensors.
    access_log : bool
        Whether each HTTP request is a line of JSON in the logger ``hetero.serve.access``.
    drain_s : float
        Seconds that requests have to end once the server is closed.
    watch_s : float
        Seconds after which the repository is looked at for changes; 0: never.
    shared_port : bool
        Whether other processes listen on the same ports (SO_REUSEPORT).
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None
    tokens: tuple[str, ...] = ()
    tls_key: Path | None = None
    tls_certificate: Path | None = None
    body_nbytes: int = 2**30
    body_s: float = 60.0
    shared_memory: bool = False
    access_log: bool = False
    drain_s: float = 30.0
    watch_s: float = 0.0
    shared_port: bool = False
