"""A line of JSON for each request, with the trace that it is a part of (W3C Trace Context)."""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from hetero.serve.http_exchange import Exchange
from hetero.serve.rest_messages import dump_json

log: Final = logging.getLogger("hetero.serve.access")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


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
    if parent := _TRACEPARENT.match(exchange.header(b"traceparent")):
        line["trace_id"], line["parent_id"] = parent.groups()
    log.info(dump_json(line).decode())
