"""CUDA graphs: the work of a whole run, recorded once per input shape and launched at once."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from hetero.devices.gpu.backend import DeviceBackend
from hetero.devices.plugin.program import Value

_log = logging.getLogger(__name__)

#: Input shapes of a program that are remembered; the graph of each holds its own memory.
_MOST_SHAPES: Final = 8
#: Largest difference between a graph's results and those of the run before, relative to them:
#: a product may be added in another order.
_TOLERANCE: Final = 1e-2

#: Element type and shape of each input.
Signature = tuple[tuple[np.dtype, tuple[int, ...]], ...]


def signature(values: Sequence[Value]) -> Signature | None:
    """Return the types and shapes of inputs; None if one is not an array."""
    if not all(hasattr(value, "dtype") for value in values):
        return None
    return tuple((np.dtype(value.dtype), tuple(value.shape)) for value in values)


@dataclass(eq=False)
class RunGraph:
    """A recorded run, which reads and writes arrays of its own."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    launch: Callable[[], None]
    #: Held while a request uses the arrays.
    lock: threading.Lock = field(default_factory=threading.Lock)


class GraphCache:
    """Graphs of one program, by input types and shapes.

    The first run of a signature compiles kernels, the second records the graph, and later ones
    launch it. A run that copies between host and device or waits for the device has no graph.
    """

    def __init__(self, backend: DeviceBackend) -> None:
        self._backend = backend
        #: None: seen once; False: without a graph.
        self._graphs: OrderedDict[Signature, RunGraph | bool | None] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: Signature) -> RunGraph | None:
        """Return the graph of a signature, or None."""
        with self._lock:
            graph = self._graphs.get(key)
            if graph is not None:
                self._graphs.move_to_end(key)
        return graph if isinstance(graph, RunGraph) else None

    def is_due(self, key: Signature) -> bool:
        """Return whether to record this run; the first one of a signature is only remembered."""
        with self._lock:
            if key not in self._graphs:
                self._graphs[key] = None
                if len(self._graphs) > _MOST_SHAPES:
                    self._graphs.popitem(last=False)
                return False
            is_due = self._graphs[key] is None
            self._graphs[key] = self._graphs[key] or False  # other threads do not record it again
            return is_due

    def record(
        self,
        key: Signature,
        values: Sequence[Value],
        outputs: Sequence[Value],
        run: Callable[[Sequence[Value]], Sequence[Value]],
    ) -> None:
        """Record `run` on copies of `values`, and keep the graph if it gives `outputs` again."""
        backend = self._backend
        if not all(map(backend.is_on_device, outputs)):
            return
        try:
            inputs = [backend.copy(value) for value in values]
            recorded, launch = backend.capture(lambda: run(inputs))
            graph = RunGraph(inputs, list(recorded), launch)
            launch()
            backend.finish()
            is_equal = all(map(self._are_close, graph.outputs, outputs))
        except Exception as error:  # an optimisation only: later runs work without a graph
            _log.debug("a run has no CUDA graph: %s", error)
            return
        if is_equal:
            with self._lock:
                self._graphs[key] = graph

    def clear(self) -> None:
        """Drop all graphs and their memory."""
        with self._lock:
            self._graphs.clear()

    def _are_close(self, result: Any, expected: Any) -> bool:
        """Return whether a graph's output equals the output of the run before it."""
        if not self._backend.is_on_device(result):
            return False
        a, b = self._backend.download(result), self._backend.download(expected)
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if a.dtype.kind not in "fc":
            return bool(np.array_equal(a, b))
        scale = float(np.max(np.abs(b), initial=0, where=np.isfinite(b)))
        return bool(np.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True))
