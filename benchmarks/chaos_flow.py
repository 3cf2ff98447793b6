"""Flow of requests whose results can be checked exactly, with the outcome of each request."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import onnx

import hetero
from benchmarks.sessions import parsed

#: Device of each node of the model.
PLACES: Final = {"lift": "TOY.1", "zero": "NULL.2", "join": "TOY.2", "scale": "TOY.0"}
#: Devices in order of priority; each cluster node has one of each kind.
DEVICES: Final = "HETERO:" + ",".join(f"{kind}.{i}" for i in (2, 1, 0) for kind in ("TOY", "NULL"))
#: NULL devices return zeros; they support only ``zero``, which no other device supports.
CONFIG: Final = {"NULL_SUPPORTED": ("zero",), "NULL_NODE_TIME_US": 2000.0}
#: One in this number of requests is large; its tensors use another transport.
_LARGE_EVERY, _LARGE, _SMALL = 16, 250_000, 64
#: Pause after a failure before the next request.
_PAUSE_S = 0.05


def model() -> onnx.ModelProto:
    """Return ``y = 2 * (x + 1 + 0)`` in four stages, two of which read the first one's output."""
    return parsed(
        """chaos (float[n] x) => (float[n] y) <float[1] one = {1}, float[1] two = {2}> {
            [lift] a = Add(x, one)
            [zero] z = Exp(a)
            [join] b = Add(a, z)
            [scale] y = Mul(b, two) }"""
    )


def question(number: int) -> np.ndarray:
    """Return the input of a request; each request has a different one."""
    size = _SMALL if number % _LARGE_EVERY else _LARGE
    return np.arange(size, dtype=np.float32) % 7 + np.float32(8 * number)


class Flow:
    """Requests at a steady rate with at most `window` in flight, until `stop`.

    `timeout_s`: deadline of each request.
    """

    def __init__(
        self, compiled: hetero.CompiledModel, window: int, rate: float, timeout_s: float
    ) -> None:
        self._compiled = compiled
        self._timeout_s = timeout_s
        self._period_s = 1 / rate
        self._room = threading.Semaphore(window)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._begun_s: dict[int, float] = {}
        self._calls: Counter[int] = Counter()
        #: Times of submission and completion of each request with the correct result.
        self.answers: list[tuple[float, float]] = []
        self.errors: Counter[str] = Counter()
        #: The first error of each type.
        self.examples: dict[str, str] = {}
        self.wrong = 0
        self._thread = threading.Thread(target=self._submit, name="flow", daemon=True)
        self._thread.start()

    @property
    def requests(self) -> int:
        """Number of submitted requests."""
        return len(self._begun_s)

    @property
    def duplicated(self) -> int:
        """Number of requests that ended more than once."""
        with self._lock:
            return sum(calls > 1 for calls in self._calls.values())

    @property
    def lost(self) -> int:
        """Number of requests that ended in an error or not at all."""
        with self._lock:
            return len(self._begun_s) - len(self._calls) + self.errors.total()

    def stop(self, timeout_s: float) -> None:
        """Stop submitting, and wait until all requests have ended or `timeout_s` has passed."""
        self._stopped.set()
        end_s = time.monotonic() + timeout_s
        self._thread.join(timeout_s)
        while time.monotonic() < end_s and len(self._calls) < len(self._begun_s):
            time.sleep(0.05)

    def _submit(self) -> None:
        number, next_s = 0, time.monotonic()
        while not self._stopped.is_set():
            if not self._room.acquire(timeout=1):
                continue
            number += 1
            next_s = max(next_s + self._period_s, time.monotonic() - 1)
            self._stopped.wait(next_s - time.monotonic())
            self._start(number)

    def _start(self, number: int) -> None:
        x = question(number)
        request = self._compiled.create_infer_request()
        request.set_callback(self._ended(number, request, 2 * (x + 1)))
        self._begun_s[number] = time.monotonic()
        try:
            request.start_async({"x": x}, share_inputs=True, timeout_s=self._timeout_s)
        except Exception as error:  # any error means that the request has no result
            self._end(number, error=error)

    def _ended(
        self, number: int, request: hetero.InferRequest, expected: np.ndarray
    ) -> Callable[[Any], None]:
        def ended(_: Any) -> None:
            try:
                output = request.results["y"]
            except Exception as error:
                self._end(number, error=error)
            else:
                self._end(number, right=np.array_equal(output, expected))

        return ended

    def _end(self, number: int, *, right: bool = False, error: Exception | None = None) -> None:
        with self._lock:
            self._calls[number] += 1
            if self._calls[number] > 1:
                return
            if error is not None:
                kind = type(error).__name__
                self.errors[kind] += 1
                self.examples.setdefault(kind, str(error))
            elif right:
                self.answers.append((self._begun_s[number], time.monotonic()))
            else:
                self.wrong += 1
        if error is not None:
            self._stopped.wait(_PAUSE_S)
        self._room.release()
