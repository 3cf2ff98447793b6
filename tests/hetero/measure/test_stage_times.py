"""Stage times of requests: clocks of other nodes, batches, medians."""

from __future__ import annotations

from hetero.devices.request.response import StageTiming
from hetero.measure.stage_times import StageTimes, median_of

#: Stage 0 feeds 1 and 2, which feed 3.
LINKS = [(0, 1), (0, 2), (1, 3), (2, 3)]


def stage_run(stage: int, start_s: float, end_s: float, queued_s: float = 0.0) -> StageTiming:
    return StageTiming(stage, "D", queued_s=queued_s, started_s=start_s, ended_s=end_s)


RUNS = (
    stage_run(0, 11, 12),
    stage_run(1, 13, 15, 0.25),
    stage_run(2, 12.5, 14),
    stage_run(3, 16, 17),
)


def test_stage_wait_starts_with_its_last_producers_end():
    times = StageTimes(LINKS)
    times.add(10, 18, RUNS)
    assert dict(times.waits_s) == {(0, "D"): [1], (1, "D"): [1], (2, "D"): [0.5], (3, "D"): [1]}
    assert dict(times.transfers_s) == {0: [1], 1: [0.75], 2: [0.5], 3: [1]}
    assert dict(times.gaps_s) == {(0, 1): [1], (0, 2): [0.5], (1, 3): [1], (2, 3): [2]}


def test_batch_run_counts_once_and_every_wait_counts():
    times = StageTimes(LINKS)
    for sent_s in (10, 10.5):
        times.add(sent_s, 18, RUNS)
    assert len(times.runs_of(0)) == 1
    assert times.waits_s[0, "D"] == [1, 0.5]


def test_run_by_another_clock_counts_its_duration_only():
    times = StageTimes(LINKS)
    times.add(10, 18, (RUNS[0], stage_run(1, 1000, 1002), *RUNS[2:]))
    assert [r.ended_s - r.started_s for r in times.runs_of(1)] == [2]
    assert times.waits_s.keys() == {(0, "D"), (2, "D")}  # stage 3 may wait for stage 1
    assert times.gaps_s.keys() == {(0, 2), (2, 3)}


def test_median_of_nothing_is_none():
    assert median_of([]) is None
    assert median_of([3, 1, 2]) == 2
