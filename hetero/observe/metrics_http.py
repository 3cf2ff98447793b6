"""HTTP for the metrics endpoint; to import HTTP takes longer than to serve a metric."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final

from devices.errors import HeteroError
from scheduler.observe.exposition import CONTENT_TYPE

_log = logging.getLogger(__name__)

_PATHS: Final = ("/", "/metrics")
#: Seconds that someone who connects may take to say what is wanted.
_PATIENCE_S: Final = 10.0


class MetricsHTTPServer(ThreadingHTTPServer):
    """An HTTP server that asks no name server, and prints nothing.

    `text`: returns the metrics in Prometheus' text format.
    """

    def __init__(self, host: str, port: int, text: Callable[[], str]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _handler(text))

    def server_bind(self) -> None:
        """Listen, without a name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]  # typeshed gives any family's

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Go on with the others."""
        _log.debug("client=%s was not answered", client_address, exc_info=True)


def _handler(text: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET with the metrics."""

        timeout = _PATIENCE_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in _PATHS:
                self.send_error(404, "metrics are at /metrics")
                return
            try:
                body = text().encode()
            except HeteroError as error:
                self.send_error(503, "no metrics now", str(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Keep scrapes out of the output."""

    return Handler
