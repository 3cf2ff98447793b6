"""Metrics in Prometheus' text format: written and read by its own library, served by HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import TCPServer
from types import SimpleNamespace
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, ThreadingWSGIServer
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from hetero.devices.errors import HeteroError

#: Seconds that someone who connects may take to say what is wanted.
_PATIENCE_S: Final = 10.0
#: Connections that are answered at once, a thread each; one more is closed.
MOST_CONNECTIONS: Final = 32


def write_text(families: Iterable[Metric]) -> str:
    """Return metrics as text."""
    registry: Any = SimpleNamespace(collect=lambda: families)
    return generate_latest(registry).decode()


def read_text(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield each number's name, labels and value; ValueError for text of another kind."""
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value
    except (LookupError, TypeError, AttributeError) as error:  # its parser trusts the text
        raise ValueError(f"no text of metrics: {error}") from error


class MetricsHTTPServer(ThreadingWSGIServer):
    """Serves metrics; asks no name server, and prints nothing."""

    #: Of five, which it is else, more that come at once wait for a second, or three.
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, host: str, port: int, text: Callable[[], str]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((host, port), _Handler)
        self.set_app(lambda environ, start: _answer(text, start))

    def server_bind(self) -> None:
        """Listen, without a name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]  # typeshed gives any family's
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, where there is room."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Go on with the others."""


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE_S

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep scrapes out of the output."""


def _answer(text: Callable[[], str], start: Callable[..., Any]) -> list[bytes]:
    try:
        status, kind, body = "200 OK", CONTENT_TYPE_PLAIN_0_0_4, text()
    except HeteroError as error:
        status, kind, body = "503 no metrics now", "text/plain; charset=utf-8", str(error)
    start(status, [("Content-Type", kind)])
    return [body.encode()]
