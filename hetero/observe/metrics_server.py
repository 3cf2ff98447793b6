"""The metrics endpoint of `Core.serve_metrics`, for Prometheus and ``hetero top``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hetero.devices.errors import ArgumentError, HeteroError
from hetero.scheduler.observe.counter_rows import CounterRows
from hetero.scheduler.observe.load import Load
from hetero.scheduler.observe.observer import Observer

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_log = logging.getLogger(__name__)


class MetricsServer:
    """Counts a Core's requests and serves the figures over HTTP until it is closed.

    Made by `Core.serve_metrics`; as a context manager it closes itself.
    """

    def __init__(
        self,
        observers: list[Observer],
        load: Callable[[], Load],
        host: str,
        port: int,
        more_counters: Callable[[], Iterable[CounterRows]] = tuple,
    ) -> None:
        # prometheus_client takes long to import.
        from prometheus_client import CollectorRegistry, start_http_server

        from hetero.scheduler.observe.metrics import Metrics

        self._observers = observers
        self._metrics = Metrics(load)
        self._more_counters = more_counters
        self._host = host
        self._is_failing = False
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise ArgumentError(
                f"cannot serve metrics at {host}:{port}: {str(error).rstrip('.')}. Pass another "
                "port; 0 takes a free one."
            ) from error
        self._port = self._server.server_port
        observers.append(self._metrics)

    def __repr__(self) -> str:
        return f"<MetricsServer {self.url}>"

    @property
    def url(self) -> str:
        """The endpoint, such as ``http://127.0.0.1:9100/metrics``."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}/metrics"

    def describe(self) -> list[Metric]:
        """Return an empty list: the registry need not know the names in advance."""
        return []

    def collect(self) -> list[Metric]:
        """Return the current figures; an empty list while the cluster does not answer."""
        try:
            families = self._families()
        except HeteroError as error:
            if not self._is_failing:
                _log.warning("no metrics at %s: %s", self.url, error)
            self._is_failing = True
            return []
        self._is_failing = False
        return families

    def text(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return write_text(self._families())

    def _families(self) -> list[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily

        families = self._metrics.families()
        for rows in self._more_counters():
            counter = CounterMetricFamily(rows.name, rows.text, labels=rows.labels)
            for labels, number in rows.values.items():
                counter.add_metric(labels, number)
            families.append(counter)
        return families

    def close(self) -> None:
        """Stop to count and to serve."""
        if self._metrics in self._observers:
            self._observers.remove(self._metrics)
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def write_text(families: Iterable[Metric]) -> str:
    """Return metrics in Prometheus' text format."""
    from prometheus_client import generate_latest

    registry: Any = SimpleNamespace(collect=lambda: families)
    return generate_latest(registry).decode()


def read_text(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield each sample's name, labels and value; ValueError for text of another format."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value
    except (LookupError, TypeError, AttributeError) as error:  # the parser trusts its input
        raise ValueError(f"not Prometheus' text format: {error}") from error
