"""Requests that pages of other sites send through a user's browser are refused."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from hetero.apps.serve.errors import protocol_error
from hetero.apps.serve.options import ServerOptions


def check_site(options: ServerOptions, headers: Mapping[bytes, bytes]) -> None:
    """Raise ProtocolError for a foreign Host on a loopback address and for cross-site requests.

    A page of another site reaches a loopback address by DNS rebinding, which the Host header shows,
    or by a form or script, which browsers mark with Sec-Fetch-Site or Origin. Other clients send
    neither of the two.
    """
    host, origin = headers.get(b"host"), headers.get(b"origin")
    if options.is_loopback and host is not None and not _is_own(_host_name(host), options):
        raise protocol_error(
            f"Host {host.decode('latin-1')!r} is not this server; --allow-host NAME allows it.", 403
        )
    site = headers.get(b"sec-fetch-site")
    is_foreign = site not in (None, b"same-origin", b"none")
    if site is None and origin is not None:
        is_foreign = origin.rpartition(b"//")[2] != host
    if is_foreign and not _is_allowed(_host_name(origin or b""), options):
        raise protocol_error(
            f"a page of another site ({(origin or b'unknown').decode('latin-1')!r}) sent the "
            "request; --allow-host NAME allows pages of a host.",
            403,
        )


def _host_name(url: bytes) -> str:
    """Return the name in ``NAME:PORT`` or a URL; empty if there is none."""
    text = url.decode("latin-1")
    try:
        return urlsplit(text if "//" in text else f"//{text}").hostname or ""
    except ValueError:
        return ""


def _is_allowed(name: str, options: ServerOptions) -> bool:
    return "*" in options.allowed_hosts or name in options.allowed_hosts


def _is_own(name: str, options: ServerOptions) -> bool:
    if name in ("localhost", options.host) or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return _is_allowed(name, options)
