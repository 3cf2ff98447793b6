"""Refusal of requests that pages of other sites send through a user's browser."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from hetero.apps.serve.errors import protocol_error
from hetero.apps.serve.options import ServerOptions


class SiteRules:
    """Rules for the sites whose pages may send requests.

    A page of another site reaches a loopback address by DNS rebinding, which the Host header shows,
    or by a form or script, which browsers mark with Sec-Fetch-Site or Origin. Other clients send
    neither of the two.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        #: Clients may send any Host, so the cache is small.
        self._is_own = lru_cache(256)(self._check_host)

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise ProtocolError for a foreign Host on a loopback address, or a cross-site request."""
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if host is not None and not self._is_own(host):
            raise protocol_error(
                f"Host {host.decode('latin-1')!r} is not this server; --allow-host NAME allows it.",
                403,
            )
        site = headers.get(b"sec-fetch-site")
        is_foreign = site not in (None, b"same-origin", b"none")
        if site is None and origin is not None:
            is_foreign = origin.rpartition(b"//")[2] != host
        if is_foreign and not self._is_allowed(_host_name(origin or b"")):
            raise protocol_error(
                f"a page of another site ({(origin or b'unknown').decode('latin-1')!r}) sent the "
                "request; --allow-host NAME allows pages of a host.",
                403,
            )

    def _check_host(self, host: bytes) -> bool:
        """Return whether a Host header names this server; any does if it is no loopback address."""
        name = _host_name(host)
        if not self._options.is_loopback or name in ("localhost", self._options.host):
            return True
        if name.endswith(".localhost") or self._is_allowed(name):
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def _is_allowed(self, name: str) -> bool:
        return "*" in self._options.allowed_hosts or name in self._options.allowed_hosts


def _host_name(url: bytes) -> str:
    """Return the name in ``NAME:PORT`` or a URL; empty if there is none."""
    text = url.decode("latin-1")
    try:
        return urlsplit(text if "//" in text else f"//{text}").hostname or ""
    except ValueError:
        return ""
