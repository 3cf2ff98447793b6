"""One run of an infer request, with its timings and profile."""

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

#: Maximum timeout: half of the limit of Python's locks.
MAX_TIMEOUT_S: Final = threading.TIMEOUT_MAX / 2


class Run:
    """One run of a request, from its start to the end of its callback."""

    # Defaults are class attributes, because most runs set few of them.
    submission: Submission | None = None
    #: The outputs by name, until they are stored in the request's tensors.
    outputs: Mapping[str, Value] | None = None
    stage_timings: tuple[StageTiming, ...] = ()
    error: BaseException | None = None
    callback_error: BaseException | None = None
    results: Results | None = None
    #: Whether the response or error has arrived.
    has_response = False
    #: Whether the deadline passed before the response.
    has_timed_out = False
    #: Futures of callers that wait for the end.
    futures: tuple[Future[Results], ...] = ()
    request_id: int | None = None
    callback_thread = 0
    preprocess_s = 0.0
    postprocess_s = 0.0
    #: Seconds from the start until admission, and until the response.
    admission_s = 0.0
    latency_s = 0.0
    #: Returns the history of the run, also after the submission is released.
    story: Callable[[], Sequence[StoryLine]] = tuple

    def __init__(self, userdata: Any, timeout_s: float | None) -> None:
        self.userdata = userdata
        self.start_s = time.perf_counter()
        self.timeout_s = None if timeout_s is None else min(timeout_s, MAX_TIMEOUT_S)
        #: Set when the run and its callback have ended.
        self.end = OneShotEvent()

    @property
    def times(self) -> RequestTimes:
        """Breakdown of the time of a run that has ended."""
        in_flight_s = max(0.0, self.latency_s - self.preprocess_s - self.admission_s)
        times_s = (self.preprocess_s, self.admission_s, in_flight_s, self.postprocess_s)
        return RequestTimes(*times_s, self.stage_timings)


def node_times_s(timings: Sequence[StageTiming], target: RequestTarget) -> dict[str, float]:
    """Return executed node -> seconds."""
    return {
        target.executed_name(timing.stage, node): seconds
        for timing in timings
        for node, seconds in timing.node_times_s.items()
    }


def profile_rows(run: Run | None, target: RequestTarget) -> list[ProfilingInfo]:
    """Return the profile of a run: OpenVINO's five counters and the executed nodes.

    The counters are sums over all stages. Without a run, all entries have the status NOT_RUN.
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
    duration = timedelta(seconds=seconds or 0.0)
    status = ProfilingStatus.NOT_RUN if seconds is None else ProfilingStatus.EXECUTED
    return ProfilingInfo(name, kind, implementation, status, duration, duration)
