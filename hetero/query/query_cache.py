"""Cache of query results: each device is queried once per model and options.

Concurrent callers share one query.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any

from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Refusal, Support
from hetero.properties.compile_request import CompileRequest

#: The result of a query that may still run: the device's support, and the query's seconds.
_PendingResult = Future[tuple[Support, float]]
#: Queries a device: device name, model, options -> support.
QueryFunction = Callable[[str, Model, Mapping[str, Any]], Support]


class QueryCache:
    """Query results by model, device and options; dropped with the model. Thread-safe."""

    def __init__(self, query: QueryFunction) -> None:
        self._query = query
        self._lock = threading.Lock()
        self._results: weakref.WeakKeyDictionary[Model, dict[tuple[str, str], _PendingResult]]
        self._results = weakref.WeakKeyDictionary()

    def support(self, device: str, model: Model, config: Mapping[str, Any]) -> Support:
        """Return which nodes of a model a device supports."""
        return self.query_with_seconds(device, model, config)[0]

    def querier(self, request: CompileRequest) -> Callable[[str, Model], Support]:
        """Return a function that queries devices, each together with its replicas."""

        def query(device: str, model: Model) -> Support:
            support, *others = (
                self.support(name, model, request.configs[name])
                for name in (device, *request.replicas.get(device, ()))
            )
            for other in others:
                support = _common_support(support, other, device)
            return support

        return query

    def query_with_seconds(
        self, device: str, model: Model, config: Mapping[str, Any]
    ) -> tuple[Support, float]:
        """Return which nodes of a model a device supports, and the seconds that the query took."""
        key = (device, repr(sorted(config.items())))
        while True:
            with self._lock:
                results = self._results.setdefault(model, {})
                is_shared = key in results
                pending = results.setdefault(key, Future())
            if is_shared:
                with contextlib.suppress(CancelledError):  # the querying thread was interrupted
                    return pending.result()
                continue
            start_s = time.perf_counter()
            try:
                result = self._query(device, model, config), time.perf_counter() - start_s
            except BaseException as error:
                with self._lock:
                    del results[key]
                if isinstance(error, Exception):
                    pending.set_exception(error)
                else:
                    pending.cancel()
                raise
            pending.set_result(result)
            return result


def _common_support(support: Support, other: Support, device: str) -> Support:
    """Return a device's support without the nodes that its replica refuses, with the reasons."""
    refused = {}
    for name in support.devices:
        if name not in other.devices:
            reasons = other.unsupported.get(name) or other.refusals.get(name, {})
            reason = next(iter(reasons.values()), Refusal("policy", "its replica refuses it"))
            refused[name] = {device: reason}
    return Support(
        {name: d for name, d in support.devices.items() if name not in refused},
        {**support.unsupported, **refused},
        {**support.refusals, **refused},
        support.notes,
    )
