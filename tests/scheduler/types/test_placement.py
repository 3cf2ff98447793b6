"""Placements: one plan, several, and stages on several devices."""

from __future__ import annotations

import sys
from collections import Counter, deque
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.devices.errors import PlanError
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.scheduler.client.routes import Routes
from hetero.scheduler.types import events as ev
from hetero.scheduler.types.placement import Placement, share, single_placement
from hetero.scheduler.types.plan import Plan, Stage
from tests.scheduler.models import replicate
from tests.support.machine_routes import route
from tests.support.rows import for_each_row

X, Y = (TensorSpec(name, "f32", (1,)) for name in "xy")


def chain(*devices: str) -> Plan:
    """Return x -> t0 -> t1 -> ... -> y, a stage on each device."""
    names = ["x", *(f"t{i}" for i in range(len(devices) - 1)), "y"]
    stages = (
        Stage(i, device, (names[i],), (names[i + 1],), (f"n{i}",))
        for i, device in enumerate(devices)
    )
    return Plan("m", (X,), (Y,), tuple(stages))


def test_single_plan_has_one_route():
    placed = single_placement(chain("A", "B"))
    assert placed.stages == chain("A", "B").stages
    assert [r.stages for r in placed.routes] == [(0, 1)]
    assert placed.devices == ("A", "B")
    assert placed.levels == (0, 1)
    assert placed.sends == ({0: ((1, ("t0",)),)}, {0: ()})


def test_equal_parts_of_plans_are_one_stage():
    placed = share([chain("A", "B"), chain("A", "C"), chain("C", "B")], [1, 1, 1])
    assert [(s.index, s.device) for s in placed.stages] == [
        *((0, "A"), (1, "B"), (2, "C"), (3, "C")),
    ]
    assert [r.stages for r in placed.routes] == [(0, 1), (0, 2), (3, 1)]


def test_plans_that_share_requests_have_separate_stages():
    placed = share([chain("A", "B"), chain("C")], [3, 1])
    assert [(s.index, s.device) for s in placed.stages] == [(0, "A"), (1, "B"), (2, "C")]
    assert [(r.stages, r.share) for r in placed.routes] == [((0, 1), 3), ((2,), 1)]
    assert placed.sends == ({0: ((1, ("t0",)),)}, {0: ()}, {1: ()})


def test_replicated_stage_has_a_route_per_device():
    placed = replicate(chain("A", "B", "C"), {1: {"B": 2 / 3, "D": 1 / 3}})
    assert [(s.index, s.device) for s in placed.stages] == [
        *((0, "A"), (1, "B"), (2, "C"), (3, "D")),
    ]
    assert [r.stages for r in placed.routes] == [(0, 1, 2), (0, 3, 2)]
    assert [r.share for r in placed.routes] == pytest.approx([2 / 3, 1 / 3])
    assert [r.plan.devices for r in placed.routes] == [("A", "B", "C"), ("A", "D", "C")]
    assert placed.levels == (0, 1, 2, 1)
    assert placed.sends[0] == {0: ((1, ("t0",)),), 1: ((3, ("t0",)),)}
    assert placed.sends[3] == {1: ((2, ("t1",)),)}


def test_placement_is_extended_by_missing_stages():
    placed = single_placement(chain("A", "B", "C")).with_routes(
        single_placement(chain("A", "C", "C"))
    )
    assert [(s.index, s.device) for s in placed.stages] == [(0, "A"), (1, "B"), (2, "C"), (3, "C")]
    assert [r.stages for r in placed.routes] == [(0, 1, 2), (0, 3, 2)]


def test_invalid_placements_are_refused():
    with pytest.raises(PlanError, match="no route"):
        Placement((), ())
    with pytest.raises(PlanError, match="ports"):
        share([chain("A"), replace(chain("A"), inputs=(X, TensorSpec("z", "f32", ())))], [1, 1])
    with pytest.raises(PlanError, match="share"):
        share([chain("A")], [0])
    with pytest.raises(PlanError, match="one each"):
        share([chain("A")], [1, 1])
    with pytest.raises(PlanError, match="do not match its plan"):
        Placement((), single_placement(chain("A")).routes)


def test_equal_idle_routes_take_turns():
    routes = Routes([route("A"), route("B"), route("C")])
    assert [routes.choose() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4))
def test_idle_routes_get_their_shares(shares):
    routes = Routes([route(str(i), share=part) for i, part in enumerate(shares)])
    count = 20 * sum(shares)
    counts = Counter(routes.choose() for _ in range(count))
    for number, part in enumerate(shares):
        assert abs(counts[number] - 20 * part) <= 2


@for_each_row("seed", range(20))
def test_route_that_is_due_first_is_chosen(seed):
    """The expected route follows from integer credits; the last route is stuck."""
    random = Random(seed)
    shares = [random.choice((1, 2, 4)) for _ in range(random.randint(2, 6))]
    routes = Routes([route(str(i), share=part) for i, part in enumerate(shares)])
    numbers = range(len(shares))
    credit, running = [Fraction(0) for _ in numbers], [0 for _ in numbers]
    for _ in range(300):
        for number in numbers[:-1]:
            if running[number] and random.random() < 0.6:
                routes.end(number)
                running[number] -= 1
        but = random.choice(((), (), (random.choice(numbers),)))
        credit = [min(Fraction(1), credit[i] + Fraction(shares[i], sum(shares))) for i in numbers]
        due = [((1 + running[i] - credit[i]) / shares[i], i) for i in numbers if i not in but]
        route_number = min(due)[1]
        assert routes.choose(but) == route_number
        credit[route_number] = max(Fraction(-1), credit[route_number] - 1)
        routes.begin(route_number, 0.0)
        running[route_number] += 1


def calls_of_choices(count: int) -> int:
    """Count the calls of a choice among `count` routes with ten requests each."""
    routes = Routes([route(str(i), share=1 + i % 3) for i in range(count)])
    running = deque[int]()

    def begin() -> None:
        route_number = routes.choose()
        assert route_number is not None
        routes.begin(route_number, 0.0)
        running.append(route_number)

    for _ in range(10 * count):
        begin()
    calls = Counter[str]()
    sys.setprofile(lambda frame, event, what: calls.update([event]))
    try:
        for _ in range(1000):
            routes.end(running.popleft())
            begin()
    finally:
        sys.setprofile(None)
    return calls["call"] + calls["c_call"]


def test_choice_of_route_has_constant_cost():
    assert calls_of_choices(1000) < 1.5 * calls_of_choices(10)


def test_congested_route_is_avoided():
    routes = Routes([route("A"), route("B")])
    for _ in range(4):
        routes.begin(0, 0.0)
    assert [routes.choose() for _ in range(4)] == [1] * 4


def test_device_on_probation_is_used_as_last_choice():
    routes = Routes([route("A"), route("B")])

    def route_number() -> set[int | None]:
        return {routes.choose() for _ in range(4)}

    routes.mark_lost(ev.DeviceLost(0.0, "A", "n", "silent"))
    routes.mark_available("A", is_steady=False)
    assert route_number() == {1}
    routes.mark_lost(ev.DeviceLost(1.0, "B", "n", "silent"))
    assert route_number() == {0}
    routes.mark_steady("B")  # a lost device may be unsteady, too
    assert route_number() == {0}
    routes.mark_available("B")
    assert route_number() == {1}
    routes.mark_steady("A")
    assert route_number() == {0, 1}
    routes.mark_available("A", is_steady=False)
    routes.mark_lost(ev.DeviceLost(2.0, "A", "n", "silent"))
    routes.mark_available("A")
    assert route_number() == {0, 1}


def test_slow_route_gets_requests_by_its_speed():
    """A runs a request in 1 s, B in 4 s, with 5 in flight, so B runs a fifth."""
    routes = Routes([route("A", share=4), route("B", share=1)])
    takes_s, ends, done = (1, 4), [0, 0], Counter[int]()
    pending: list[tuple[int, int]] = []
    now_s = 0
    for _ in range(200):
        while len(pending) < 5:
            way = routes.choose()
            assert way is not None
            routes.begin(way, 0.0)
            ends[way] = max(ends[way], now_s) + takes_s[way]
            pending.append((ends[way], way))
        pending.sort()
        now_s, way = pending.pop(0)
        routes.end(way)
        done[way] += 1
    assert now_s <= 200 / (1 + 1 / 4) * 1.05
    assert done[1] == pytest.approx(40, abs=3)


def test_requests_run_on_the_device_of_their_inputs():
    routes = Routes([route("A", "B", "C"), route("A", "C"), route("D")])
    devices = frozenset("AC")
    assert [routes.choose(preferred_devices=devices) for _ in range(3)] == [1] * 3
    routes.mark_lost(ev.DeviceLost(0.0, "C", "n", "x"))
    assert routes.choose(preferred_devices=devices) == 2
    routes.mark_available("C")
    assert routes.choose([1], preferred_devices=devices) == 0
    assert {routes.choose() for _ in range(3)} == {0, 1, 2}


def test_routes_with_a_lost_device_are_not_used():
    routes = Routes([route("A"), route("A", "B"), route("C")])
    routes.mark_lost(ev.DeviceLost(0.0, "A", "n", "x"))
    assert [routes.choose(), routes.choose([2])] == [2, None]
    routes.mark_lost(ev.DeviceRemoved(0.0, "C", "n", "x"))
    assert routes.choose() is None
    assert routes.may_become_live()
    assert not routes.may_become_live([0, 1])
    routes.mark_available("A")
    assert routes.choose() in (0, 1)
