"""Routing: turns by share, and several deployments behind one."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.errors import DeviceLostError
from devices.request.answer import Answer, StageRun
from devices.request.request import PLAIN, Request
from hetero.routing import RoutedDeployment, SmoothRoundRobin
from scheduler.executor import Submission


def test_the_published_sequence() -> None:
    # Weights 5, 1, 1: the example that the smooth algorithm was introduced with.
    turns = SmoothRoundRobin([5, 1, 1])
    assert [turns.next() for _ in range(14)] == [0, 0, 1, 0, 2, 0, 0] * 2


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6), st.integers(1, 300))
def test_no_route_strays_from_its_share(shares: list[float], requests: int) -> None:
    turns = SmoothRoundRobin(shares)
    counts: Counter[int] = Counter()
    for number in range(1, requests + 1):
        counts[turns.next()] += 1
        for place, share in enumerate(shares):
            assert abs(counts[place] - number * share / sum(shares)) < len(shares)


@pytest.mark.parametrize("shares", [[], [1, 0], [1, -1]])
def test_shares_are_positive(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        SmoothRoundRobin(shares)


class _Plan:
    def __init__(self, stages: int) -> None:
        self.stages = (None,) * stages


class _Route:
    """A deployment that answers at once, with its name."""

    def __init__(self, name: str, stages: int, *, lost: bool = False) -> None:
        self.plan: Any = _Plan(stages)
        self.imported = {0}
        self.num_stages = stages
        self.name = name
        self.lost = lost
        self.calls: list[Any] = []
        self.error: Exception | None = None

    def submit(self, inputs: Any, request: Request = PLAIN) -> Submission:
        if self.lost:
            raise DeviceLostError("gone", device=self.name)
        future: Future[Answer] = Future()
        runs = tuple(StageRun(i, self.name) for i in range(len(self.plan.stages)))
        if self.error:
            future.set_exception(self.error)
        else:
            future.set_result(Answer({"y": self.name}, runs))
        self.calls.append(("submit", request))
        return Submission(7, future, lambda: self.calls.append(("cancel",)) is None)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))


def test_requests_go_by_turns_and_stages_are_numbered_through() -> None:
    first, second = _Route("a", 2), _Route("b", 3)
    routed = RoutedDeployment([first, second], [1, 1])
    made = [routed.submit({}) for _ in range(4)]
    answers = [m.future.result() for m in made]
    assert [a.outputs["y"] for a in answers] == ["a", "b", "a", "b"]
    assert [r.stage for r in answers[1].stage_runs] == [2, 3, 4]
    assert made[1].cancel()
    routed.story(made[0].request_id)
    routed.executed_nodes(4)
    routed.export(0)
    assert ("cancel",) in second.calls
    assert ("executed_nodes", 2) in second.calls
    assert ("story", 7) in first.calls
    assert ("export", 0) in first.calls
    assert routed.imported == {0, 2}
    routed.close()
    assert first.calls[-1] == second.calls[-1] == ("close",)


def test_errors_pass_through() -> None:
    second = _Route("b", 1)
    second.error = ValueError("no")
    routed = RoutedDeployment([_Route("a", 1), second], [1, 1])
    routed.submit({})
    with pytest.raises(ValueError, match="no"):
        routed.submit({}).future.result()


def test_a_route_whose_device_is_gone_is_passed_over() -> None:
    routed = RoutedDeployment([_Route("a", 1, lost=True), _Route("b", 1)], [1, 1])
    assert [routed.submit({}).future.result().outputs["y"] for _ in range(3)] == ["b"] * 3
    with pytest.raises(DeviceLostError):
        RoutedDeployment([_Route("a", 1, lost=True)], [1]).submit({})
