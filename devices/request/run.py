"""One run of a request, from its submission to the end of its callback, and how long it took."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal

from devices.plugin.program import ExecutedNode, Value
from devices.request.results import ProfilingInfo, Results
from devices.request.target import Submission

#: No wait is longer: Python's own take no more.
LONGEST_S: Final = threading.TIMEOUT_MAX / 2

#: The guide's five counters, in the order of the stages.
STAGES: Final = {
    "preprocess": "1. input preprocessing",
    "upload": "2. input transfer to a device",
    "infer": "3. execution time",
    "download": "4. output transfer from a device",
    "postprocess": "5. output postprocessing",
}


class Run:
    """One start of a request, from submission to the end of its callback."""

    def __init__(self, userdata: Any, timeout_s: float | None) -> None:
        self.userdata = userdata
        self.started = time.perf_counter()
        self.timeout_s = None if timeout_s is None else min(timeout_s, LONGEST_S)
        self.submission: Submission | None = None
        #: The outputs by name, until someone takes them over.
        self.outputs: Mapping[str, Value] | None = None
        self.node_times_s: dict[str, float] = {}
        self.error: BaseException | None = None
        self.callback_error: BaseException | None = None
        self.results: Results | None = None
        self.answered = False
        self.taken = threading.Lock()
        self.ended = threading.Event()
        self.callback_thread = 0
        self.stage_s: dict[str, float] = dict.fromkeys(STAGES, 0.0)


def node_times_s(answer: Any) -> dict[str, float]:
    """Return seconds by executed node; those of a plan's stages are prefixed."""
    times: dict[str, float] = dict(getattr(answer, "node_times_s", {}))
    for run in getattr(answer, "stage_runs", ()):
        times |= {f"subgraph{run.stage}: {name}": s for name, s in run.node_times_s.items()}
    return times


def profile_rows(run: Run | None, nodes: Sequence[ExecutedNode]) -> list[ProfilingInfo]:
    """Return the stages and executed nodes of a run; not run, and 0, without one."""
    stage_s: Mapping[str, float] = run.stage_s if run else {}
    node_s: Mapping[str, float] = run.node_times_s if run else {}
    rows = [_row(label, "", "", stage_s.get(stage)) for stage, label in STAGES.items()]
    executed = [_row(n.name, n.layer_type, n.implementation, node_s.get(n.name)) for n in nodes]
    return [*rows[:3], *executed, *rows[3:]]


def _row(name: str, kind: str, implementation: str, seconds: float | None) -> ProfilingInfo:
    time_taken = timedelta(seconds=seconds or 0.0)
    status: Literal["EXECUTED", "NOT_RUN"] = "NOT_RUN" if seconds is None else "EXECUTED"
    return ProfilingInfo(name, kind, implementation, status, time_taken, time_taken)
