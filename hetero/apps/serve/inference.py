"""An inference request of either protocol, from its message to its outputs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from hetero.apps.serve.inference_request import (
    InferenceRequest,
    OutputTensor,
    RequestMessage,
    check_document,
    decode_request,
    requested_outputs,
)
from hetero.apps.serve.served_model import ServedModel
from hetero.apps.serve.shared_memory import SharedMemoryRegions
from hetero.devices.plugin.program import Value
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.request import Request
from hetero.devices.request.response import Response
from hetero.devices.request.target import Submission

#: Device time of a model up to which the event loop's thread runs a small request itself: handing
#: it to another thread takes about as long.
_INLINE_S: Final = 0.0005
#: Seconds by which other requests may make one slower; a longer one is not the typical time.
_NOISE_S: Final = 0.02


def _set_result(future: asyncio.Future[None]) -> None:
    if not future.done():  # its task was cancelled meanwhile
        future.set_result(None)


class Inference:
    """A request; as a context manager it counts itself as succeeded or failed.

    The times of stages that ran in parallel are added up, so parts may exceed the whole.
    """

    __slots__ = (
        "_decode_s",
        "_encode_start_s",
        "_is_running",
        "_regions",
        "_response",
        "_start_s",
        "_submission",
        "_values",
        "model",
        "request",
    )

    def __init__(self, model: ServedModel, regions: SharedMemoryRegions) -> None:
        self.model: Final = model
        self.request: InferenceRequest
        self._regions = regions
        self._values: Mapping[str, Value]
        self._submission: Submission | CompletedSubmission
        self._response: Response | CompletedSubmission
        self._is_running = False
        self._start_s = time.perf_counter()

    def __enter__(self) -> Inference:
        return self

    def read(self, message: RequestMessage) -> None:
        """Check a message and decode its inputs; takes long for large ones."""
        check_document(message.document)
        self.model.check(message.document)
        self.request = decode_request(message, self._regions)
        self._values = self.model.convert(self.request)

    def submit(self, client_timeout_s: float | None, trace: str, *, is_small: bool) -> None:
        """Start the request, now or once the model has room for it.

        `client_timeout_s`: seconds until the client gives up.
        """
        timeouts_s = [s for s in (client_timeout_s, self.request.timeout_s) if s is not None]
        timeout_s = max(0.0, min(timeouts_s)) if timeouts_s else None
        is_quick = self.model.statistics.typical_s < _INLINE_S and timeout_s is None
        request = Request(
            timeout_s,
            waits=None,
            inline=is_small and is_quick,
            priority=self.request.priority,
            trace=trace,
        )
        self._decode_s = time.perf_counter() - self._start_s
        with self.model.statistics.lock:
            self.model.statistics.num_in_flight += 1
        self._is_running = True
        self._submission = self.model.submit(self._values, request)

    @property
    def is_done(self) -> bool:
        """Whether the devices have answered."""
        submission = self._submission
        return isinstance(submission, CompletedSubmission) or submission.future.done()

    async def wait(self) -> None:
        """Wait until the devices have answered; cancel the request if this is cancelled."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def wake(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended, and with it the waiting task
                loop.call_soon_threadsafe(_set_result, done)

        self._submission.future.add_done_callback(wake)
        try:
            await done
        except asyncio.CancelledError:
            self._submission.cancel()
            raise

    def outputs(self) -> list[OutputTensor]:
        """Return the requested outputs; encode them next."""
        self._encode_start_s = time.perf_counter()
        submission = self._submission
        if isinstance(submission, CompletedSubmission):
            self._response = submission
        else:
            self._response = submission.future.result()
        names, results = self.model.output_names, self._response.outputs
        return [*requested_outputs(self.request, names, results, self._regions)]

    def __exit__(self, error_type: object, error: object, traceback: object) -> None:
        end_s, statistics = time.perf_counter(), self.model.statistics
        total_s = end_s - self._start_s
        num_rows = 0 if error is not None else self.model.num_rows(self._values)
        with statistics.lock:
            statistics.num_in_flight -= self._is_running
            if error is not None:
                statistics.num_failed += 1
                statistics.seconds["fail"] += total_s
                return
            infer_s = sum(run.ended_s - run.started_s for run in self._response.stage_timings)
            encode_s, seconds = end_s - self._encode_start_s, statistics.seconds
            statistics.num_succeeded += 1
            statistics.num_inferences += num_rows
            seconds["success"] += total_s
            seconds["queue"] += max(0.0, total_s - infer_s - self._decode_s - encode_s)
            seconds["compute_input"] += self._decode_s
            seconds["compute_infer"] += infer_s
            seconds["compute_output"] += encode_s
            limit_s = infer_s if infer_s > _NOISE_S else 1.1 * statistics.typical_s
            statistics.typical_s = min(max(infer_s, statistics.typical_s / 2), limit_s)
            statistics.last_ms = int(time.time() * 1000)
