"""One run of a request, from its submission to the end of its callback, and how long it took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Final

from hetero.devices.plugin.one_shot_event import OneShotEvent
from hetero.devices.plugin.program import Value
from hetero.devices.request.response import RequestTimes, StageTiming
from hetero.devices.request.results import ProfilingInfo, ProfilingStatus, Results
from hetero.devices.request.story import StoryLine
from hetero.devices.request.target import RequestTarget, Submission

#: No wait is longer: Python's own take no more.
LONGEST_S: Final = threading.TIMEOUT_MAX / 2


class Run:
    """One start of a request, from submission to the end of its callback."""

    # Of the class until they are set: most runs set few of them.
    submission: Submission | None = None
    #: The outputs by name, until someone takes them over.
    outputs: Mapping[str, Value] | None = None
    stage_timings: tuple[StageTiming, ...] = ()
    error: BaseException | None = None
    callback_error: BaseException | None = None
    results: Results | None = None
    answered = False
    #: Whether it was not answered when its time was up.
    given_up = False
    #: What waits for it as futures.
    futures: tuple[Future[Results], ...] = ()
    request_id: int | None = None
    callback_thread = 0
    preprocess_s = 0.0
    postprocess_s = 0.0
    #: Until it was admitted, and until it had ended, from its start.
    admission_s = 0.0
    latency_s = 0.0
    #: Returns its story; kept when the submission is not.
    story: Callable[[], Sequence[StoryLine]] = tuple

    def __init__(self, userdata: Any, timeout_s: float | None) -> None:
        self.userdata = userdata
        self.started = time.perf_counter()
        self.timeout_s = None if timeout_s is None else min(timeout_s, LONGEST_S)
        self.taken = threading.Lock()
        self.ended = OneShotEvent()

    @property
    def times(self) -> RequestTimes:
        """Where its time went, once it has ended."""
        in_flight_s = max(0.0, self.latency_s - self.preprocess_s - self.admission_s)
        times_s = (self.preprocess_s, self.admission_s, in_flight_s, self.postprocess_s)
        return RequestTimes(*times_s, self.stage_timings)


def node_times_s(runs: Sequence[StageTiming], target: RequestTarget) -> dict[str, float]:
    """Return seconds by executed node."""
    return {
        target.executed_name(run.stage, node): seconds
        for run in runs
        for node, seconds in run.node_times_s.items()
    }


def profile_rows(run: Run | None, target: RequestTarget) -> list[ProfilingInfo]:
    """Return the guide's five counters, summed over stages, and executed nodes between them.

    Without a run they are not run, and 0.
    """
    stages = run.stage_timings if run else ()
    nodes_s = node_times_s(stages, target)
    counters = {
        "1. input preprocessing": run.preprocess_s if run else 0.0,
        "2. input transfer to a device": sum(stage.upload_s for stage in stages),
        "3. execution time": sum(stage.infer_s for stage in stages),
        "4. output transfer from a device": sum(stage.download_s for stage in stages),
        "5. output postprocessing": run.postprocess_s if run else 0.0,
    }
    rows = [_row(name, "", "", seconds if run else None) for name, seconds in counters.items()]
    executed = [
        _row(node.name, node.layer_type, node.implementation, nodes_s.get(node.name))
        for node in target.executed_nodes()
    ]
    return [*rows[:3], *executed, *rows[3:]]


def _row(name: str, kind: str, implementation: str, seconds: float | None) -> ProfilingInfo:
    time_taken = timedelta(seconds=seconds or 0.0)
    status = ProfilingStatus.NOT_RUN if seconds is None else ProfilingStatus.EXECUTED
    return ProfilingInfo(name, kind, implementation, status, time_taken, time_taken)
