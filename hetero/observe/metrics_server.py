"""The metrics endpoint: what `Core.serve_metrics` counts, by HTTP, for Prometheus and ``top``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from devices.errors import ArgumentError
from scheduler.observe.load import Load
from scheduler.observe.metrics import Metrics
from scheduler.observe.observer import Observer

if TYPE_CHECKING:
    from hetero.observe.exposition import MetricsHTTPServer


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
        self._server: MetricsHTTPServer | None = None

    @property
    def url(self) -> str:
        """Where the metrics are, as ``http://127.0.0.1:9100/metrics``."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}/metrics"

    def text(self) -> str:
        """Return the metrics in Prometheus' text format."""
        from hetero.observe.exposition import write_text

        return write_text(self._metrics.families())

    def __enter__(self) -> MetricsServer:
        from hetero.observe.exposition import MetricsHTTPServer

        try:
            self._server = MetricsHTTPServer(self._host, self._port, self.text)
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
