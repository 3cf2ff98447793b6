"""The metrics endpoint: what `Core.serve_metrics` counts, by HTTP, for Prometheus and ``top``."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from types import TracebackType
from typing import Any, Final

from devices.errors import ArgumentError, HeteroError
from scheduler.exposition import CONTENT_TYPE, write_text
from scheduler.load import Load
from scheduler.metrics import Metrics
from scheduler.observer import Observer

_log = logging.getLogger(__name__)

_PATHS: Final = ("/", "/metrics")
#: Seconds that someone who connects may take to say what is wanted.
_PATIENCE_S: Final = 10.0


class _Server(ThreadingHTTPServer):
    """An HTTP server that asks no name server, and prints nothing."""

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]  # typeshed gives any family's

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("client=%s was not answered", client_address, exc_info=True)


class MetricsServer:
    """A block in which a Core's requests are counted, and served by HTTP; see `Core.serve_metrics`.

    Parameters
    ----------
    observers : list
        The observer of requests: the counter, while the block lasts.
    load : callable
        Returns what waits and runs now.
    host, port : str, int
        Where to listen; port 0 takes one that is free.
    """

    def __init__(
        self, observers: list[Observer], load: Callable[[], Load], host: str, port: int
    ) -> None:
        self._observers = observers
        self._metrics = Metrics(load)
        self._host, self._port = host, port
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        """Where the metrics are, as ``http://127.0.0.1:9100/metrics``."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}/metrics"

    def text(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return write_text(self._metrics.families())

    def __enter__(self) -> MetricsServer:
        try:
            self._server = _Server(self._host, self._port, self._handler())
        except (OSError, OverflowError) as error:
            raise ArgumentError(
                f"cannot serve metrics at {self._host}:{self._port}: {error}. Give another port; "
                "0 takes one that is free."
            ) from error
        self._port = self._server.server_port
        threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="metrics", daemon=True
        ).start()
        self._observers.append(self._metrics)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._observers.remove(self._metrics)
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        text = self.text

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
