"""One request for an inference, by either protocol: from its call to its answer, and timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from hetero.apps.serve.inference_request import InferCall, Output, placed
from hetero.apps.serve.served_model import ServedModel
from hetero.apps.serve.shared_memory import Regions
from hetero.devices.plugin.program import Value
from hetero.devices.request.request import Request
from hetero.devices.request.response import Response
from hetero.scheduler.executor import Submission

#: Seconds that a request may seem to take longer because others ran, too.
_NOISE_S: Final = 0.02


class Inference:
    """A block that is one request: it has succeeded where the block ends without an error.

    Stages that ran side by side count one after the other, so that times of parts may be more than
    the time of the whole.
    """

    __slots__ = (
        "_answer",
        "_began_s",
        "_read_s",
        "_runs",
        "_writes_s",
        "call",
        "goes_on",
        "model",
        "submission",
        "values",
    )

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.call: InferCall
        self.values: Mapping[str, Value]
        self.submission: Submission
        #: Whether it goes on in another block than the one that ends next.
        self.goes_on = False
        self._runs = False
        self._began_s = time.perf_counter()

    def __enter__(self) -> Inference:
        return self

    def asks(
        self, call: InferCall, left_s: float | None, trace: str, *, waits: bool | None, inline: bool
    ) -> None:
        """Check the inputs of a call, and have devices begin, now or once there is room.

        `left_s`: seconds until the client gives up. What has a deadline has another thread.
        """
        self.call, self.values = call, self.model.values(call)
        timeout_s = call.timeout_s
        if left_s is not None:
            timeout_s = left_s if timeout_s is None else min(left_s, timeout_s)
        request = Request(
            timeout_s,
            waits=waits,
            inline=inline and timeout_s is None,
            priority=call.priority,
            trace=trace,
        )
        self._read_s = time.perf_counter() - self._began_s
        with self.model.statistics.lock:
            self.model.statistics.num_in_flight += 1
        self._runs = True
        self.submission = self.model.submit(self.values, request)

    async def answered(self) -> Response:
        """Return the answer once it is there; whoever cancels this cancels the request."""
        made, loop, ended = self.submission.future, asyncio.get_running_loop(), asyncio.Event()

        def wake(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended, and with it who waited
                loop.call_soon_threadsafe(ended.set)

        made.add_done_callback(wake)
        try:
            await ended.wait()
        except asyncio.CancelledError:
            self.submission.cancel()
            raise
        return made.result()

    def outputs(self, answer: Response, regions: Regions) -> list[Output]:
        """Return the outputs that the call wants, which are written next."""
        self._writes_s, self._answer = time.perf_counter(), answer
        return [*placed(self.call, self.model.output_names, answer.outputs, regions)]

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self.goes_on:
            self.goes_on = False
            return
        ended_s, counts = time.perf_counter(), self.model.statistics
        took_s = ended_s - self._began_s
        rows = 0 if error is not None else self.model.rows(self.values)
        with counts.lock:
            counts.num_in_flight -= self._runs
            if error is not None:
                counts.num_failed += 1
                counts.seconds["fail"] += took_s
                return
            infer_s = sum(run.ended_s - run.started_s for run in self._answer.stage_timings)
            write_s, seconds = ended_s - self._writes_s, counts.seconds
            counts.num_succeeded += 1
            counts.num_inferences += rows
            seconds["success"] += took_s
            seconds["queue"] += max(0.0, took_s - infer_s - self._read_s - write_s)
            seconds["compute_input"] += self._read_s
            seconds["compute_infer"] += infer_s
            seconds["compute_output"] += write_s
            most_s = infer_s if infer_s > _NOISE_S else 1.1 * counts.usual_s
            counts.usual_s = min(max(infer_s, counts.usual_s / 2), most_s)
            counts.last_ms = int(time.time() * 1000)
