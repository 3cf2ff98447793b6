"""The metrics endpoint: what `Core.serve_metrics` counts, by HTTP, for Prometheus and ``top``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from hetero.devices.errors import ArgumentError
from hetero.scheduler.observe.load import Load
from hetero.scheduler.observe.observer import Observer

if TYPE_CHECKING:
    from hetero.observe.exposition import MetricsHTTPServer


class MetricsServer:
    """Counts a Core's requests and serves the figures by HTTP, until it is closed.

    Made by `Core.serve_metrics`; as a block it is closed at the block's end.
    """

    def __init__(
        self, observers: list[Observer], load: Callable[[], Load], host: str, port: int
    ) -> None:
        # Their library takes long to load.
        from hetero.observe.exposition import MetricsHTTPServer
        from hetero.scheduler.observe.metrics import Metrics

        self._observers = observers
        self._metrics = Metrics(load)
        self._host = host
        try:
            server = MetricsHTTPServer(host, port, self.text)
        except (OSError, OverflowError) as error:
            raise ArgumentError(
                f"cannot serve metrics at {host}:{port}: {error}. Give another port; 0 takes one "
                "that is free."
            ) from error
        self._server: MetricsHTTPServer | None = server
        self._port = server.server_port
        threading.Thread(
            target=server.serve_forever, args=(0.05,), name="metrics", daemon=True
        ).start()
        observers.append(self._metrics)

    def __repr__(self) -> str:
        return f"<MetricsServer {self.url}>"

    @property
    def url(self) -> str:
        """Where the metrics are, as ``http://127.0.0.1:9100/metrics``."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}/metrics"

    def text(self) -> str:
        """Return the metrics in Prometheus' text format."""
        from hetero.observe.exposition import write_text

        return write_text(self._metrics.families())

    def close(self) -> None:
        """Count and serve no more."""
        server, self._server = self._server, None
        if server is not None:
            self._observers.remove(self._metrics)
            server.shutdown()
            server.server_close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
