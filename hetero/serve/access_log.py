"""The trace that a request is a part of (W3C Trace Context), and a line of JSON for each one."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from hetero.serve.http_exchange import Exchange
from hetero.serve.rest_messages import dump_json

log: Final = logging.getLogger("hetero.serve.access")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def trace_of(headers: Mapping[Any, Any], name: bytes | str) -> str:
    """Return the ``traceparent`` among headers, of which `name` is its name; empty for none."""
    given = headers.get(name, "")
    given = given.decode("latin-1") if isinstance(given, bytes) else given
    return given if _TRACEPARENT.fullmatch(given) else ""


def write_line(exchange: Exchange, took_s: float) -> None:
    """Log a request that has ended."""
    line: dict[str, Any] = {
        "client": (exchange.scope.get("client") or [None])[0],
        "method": exchange.method,
        "path": exchange.path,
        "status": exchange.status,
        "took_s": round(took_s, 6),
        "received_nbytes": exchange.received_nbytes,
        "sent_nbytes": exchange.sent_nbytes,
    }
    if trace := trace_of(exchange.headers, b"traceparent"):
        _, line["trace_id"], line["parent_id"], _ = trace.split("-")
    log.info(dump_json(line).decode())
