"""Ray's own metrics: what an executor's observers count, reported to the cluster's dashboards."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

from ray.util.metrics import Counter, Gauge

from scheduler.observe.observer import Observer

_log = logging.getLogger(__name__)

#: Seconds between two reports; Ray itself sends them on every ten.
_PERIOD_S: Final = 2.0


class RayReporter:
    """Reports what the first `Metrics` among the observers counts, in a thread of its own.

    Ray puts ``ray_`` before the names, and ``_total`` behind those of counters. Histograms go as
    gauges: Ray takes single values only.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self._metrics: Any = None
        self._instruments: dict[str, Any] = {}
        #: What was told of each counter so far, by name and labels.
        self._told: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ray-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Report a last time."""
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def report(self) -> None:
        """Report what has changed."""
        counting = (o for o in tuple(self._observers) if hasattr(o, "families"))
        metrics = next(counting, None)
        with self._lock:
            if metrics is not self._metrics:  # another one counts from 0
                self._metrics = metrics
                self._told.clear()
            for family in () if metrics is None else metrics.families():
                for name, labels, value, *_ in family.samples:
                    self._tell(family, name, labels, float(value))

    def _tell(self, family: Any, name: str, labels: dict[str, str], value: float) -> None:
        if family.type != "counter":
            self._instrument(Gauge, name, family, labels).set(value, labels)
            return
        key = (name, frozenset(labels.items()))
        more = value - self._told.get(key, 0.0)
        if more > 0:
            self._told[key] = value
            self._instrument(Counter, name.removesuffix("_total"), family, labels).inc(more, labels)

    def _instrument(self, kind: Any, name: str, family: Any, labels: dict[str, str]) -> Any:
        if name not in self._instruments:
            self._instruments[name] = kind(name, family.documentation, tuple(labels))
        return self._instruments[name]

    def _work(self) -> None:
        ended = False
        while not ended:
            ended = self._closed.wait(_PERIOD_S)
            try:
                self.report()
            except Exception:  # figures must not end what they are about
                _log.exception("metrics were not reported to Ray")
