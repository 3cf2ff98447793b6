"""Live samples: a share of the requests is repeated on the reference, and differences are counted.

Nodes at fault are found as in the verification before the first request. Later compilations of
the model refuse them. If the user wants it, the running model is planned without their device.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from hetero.devices.errors import HeteroError
from hetero.devices.plugin.program import Value
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.target import Submission
from hetero.scheduler.observe.counter_rows import CounterRows
from hetero.verify.verdict import PartVerdict

_log = logging.getLogger(__name__)

#: Samples that wait for their check; further requests are not sampled.
_MAX_WAITING: Final = 4
#: Seconds that a sample waits for a moment without requests; then it is checked anyway.
_MAX_WAIT_S: Final = 5.0
_POLL_S: Final = 0.02
#: Seconds without samples after which the thread ends.
_IDLE_S: Final = 2.0

#: Checks the outputs of a request; returns the verdicts on wrong subgraphs. Without a located
#: fault, a verdict has no evidence.
Check = Callable[[Mapping[str, Value], Mapping[str, Value]], list[PartVerdict]]
#: Plans the model without a device, for a reason.
#: Raises HeteroError: the model cannot run without the device.
Exclude = Callable[[str, str], None]


class LiveCounts:
    """Numbers of sampled requests and of differences, of all models of a Core. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Model -> number of compared requests.
        self._samples: Counter[str] = Counter()
        #: Model, device and node at fault -> number of requests that differ.
        self._differences: Counter[tuple[str, ...]] = Counter()

    def add(self, model: str, verdicts: list[PartVerdict]) -> None:
        """Count a compared request and the nodes that are wrong for it."""
        with self._lock:
            self._samples[model] += 1
            for verdict in verdicts:
                nodes = [name for e in verdict.evidence for name in e.nodes] or [""]
                self._differences.update((model, verdict.device, node) for node in nodes)

    @property
    def samples(self) -> dict[str, int]:
        """Number of compared requests by model."""
        with self._lock:
            return dict(self._samples)

    @property
    def differences(self) -> dict[tuple[str, ...], int]:
        """Number of requests that differ, by model, device and node; "" for an unknown node."""
        with self._lock:
            return dict(self._differences)

    def counters(self) -> list[CounterRows]:
        """Return the counts as counters of Prometheus."""
        return [
            CounterRows(
                "hetero_verify_samples",
                "Requests that the reference repeated.",
                ("model",),
                {(model,): number for model, number in self.samples.items()},
            ),
            CounterRows(
                "hetero_verify_differences",
                "Those with another result, by the node at fault; empty if it is not known.",
                ("model", "device", "node"),
                self.differences,
            ),
        ]


class LiveSampler:
    """Samples the requests of one compiled model, and compares them in a thread of its own.

    `share`: share of the requests to sample.
    `is_idle`: whether no request is in flight.
    `exclude`: excludes a device with wrong results; None to report them only.
    """

    def __init__(
        self,
        model_name: str,
        share: float,
        check: Check,
        is_idle: Callable[[], bool],
        counts: LiveCounts,
        exclude: Exclude | None = None,
    ) -> None:
        self._model_name = model_name
        self._share = share
        self._check = check
        self._is_idle = is_idle
        self._counts = counts
        self._exclude = exclude
        self._random = random.Random(0)
        self._waiting: queue.Queue[tuple[Mapping[str, Value], Mapping[str, Value]]] = queue.Queue(
            _MAX_WAITING
        )
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(
        self, submission: Submission | CompletedSubmission, inputs: Mapping[str, Value]
    ) -> None:
        """Perhaps sample a submitted request; its inputs are copied."""
        if self._random.random() >= self._share or self._waiting.full():
            return
        copies = _copy_values(inputs)
        if copies is not None:
            submission.future.add_done_callback(partial(self._receive, copies))

    def _receive(self, inputs: Mapping[str, Value], future: Any) -> None:
        """Queue a request that has ended, with its outputs."""
        if future.exception() is not None:
            return
        outputs = _copy_values(future.result().outputs)
        if outputs is None:
            return
        with self._lock:
            try:
                self._waiting.put_nowait((inputs, outputs))
            except queue.Full:
                return
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run_samples, name="hetero-live-samples", daemon=True
                )
                self._thread.start()

    def _run_samples(self) -> None:
        while True:
            try:
                inputs, outputs = self._waiting.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._waiting.empty():
                        self._thread = None
                        return
                continue
            try:
                self._wait_until_idle()
                verdicts = self._check(inputs, outputs)
            except HeteroError as error:  # the Core is closed, or the reference refuses the model
                _log.info("model=%s: a request was not compared: %s", self._model_name, error)
                continue
            except Exception:  # a fault of the check; it must not end the thread unnoticed
                _log.exception("model=%s: a request was not compared", self._model_name)
                continue
            self._counts.add(self._model_name, verdicts)
            for verdict in verdicts:
                _log.warning(
                    "model=%s: a sampled request differs from the reference: %s",
                    self._model_name,
                    verdict.reason,
                )
                self._exclude_device(verdict)

    def _wait_until_idle(self) -> None:
        until_s = time.monotonic() + _MAX_WAIT_S
        while not self._is_idle() and time.monotonic() < until_s:
            time.sleep(_POLL_S)

    def _exclude_device(self, verdict: PartVerdict) -> None:
        """Exclude the device at fault, if the user wants it and the model can run without it."""
        if self._exclude is None or verdict.status != "refused":
            return
        device = verdict.device
        try:
            self._exclude(device, "its result of a sampled request is wrong")
        except HeteroError as error:
            _log.warning("model=%s: device %s stays: %s", self._model_name, device, error)
        else:
            _log.warning(
                "model=%s: device %s is excluded: VERIFY_SAMPLE_ACTION=EXCLUDE",
                self._model_name,
                device,
            )


def _copy_values(values: Mapping[str, Value]) -> dict[str, Value] | None:
    """Return copies of tensors; None if a value is not a tensor in host memory."""
    if not all(isinstance(value, np.ndarray) for value in values.values()):
        return None
    return {name: value.copy() for name, value in values.items()}
