"""Routing: turns by share, credits and debts, and the routes that losses leave."""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.devices.model.tensor_spec import TensorSpec
from hetero.scheduler.client.routes import Pace, Routes, share_by_speed
from hetero.scheduler.types import events as ev
from hetero.scheduler.types.placement import Route
from hetero.scheduler.types.plan import Plan, Stage
from tests.support.machine_routes import route


def routes_with_shares(*shares: float) -> Routes:
    return Routes(
        [route(device, share=share) for device, share in zip("ABC", shares, strict=False)]
    )


def choices(routes: Routes, number: int) -> str:
    """Return the chosen routes; none of their requests lasts."""
    return "".join("ABC"[way] for _ in range(number) if (way := routes.choose()) is not None)


def lost(device: str) -> ev.DeviceLost:
    return ev.DeviceLost(0.0, device, "n", "killed")


def removed(device: str) -> ev.DeviceRemoved:
    return ev.DeviceRemoved(0.0, device, "n", "left")


# With shares 3 and 1, a choice advances the time by 1/4. A's turns are due at 1/3, 2/3, 1, 4/3 and
# so on, B's at 1, 2, ...; the lower number comes first at 1.
@pytest.mark.parametrize(
    ("shares", "expected_choices"),
    [
        ((1, 1), "ABABABAB"),
        ((3, 1), "AAABAAAB"),
        ((1, 3), "BBABBBAB"),
        ((1, 2, 1), "BABCBABC"),
        ((0.5, 0.5, 0.5), "ABCABCAB"),
    ],
)
def test_idle_routes_take_turns_by_share(shares, expected_choices):
    assert choices(routes_with_shares(*shares), 8) == expected_choices


def test_route_with_a_backlog_is_skipped_until_it_ends():
    routes = routes_with_shares(1, 1)
    for _ in range(3):
        routes.begin(0, 0.0)
    # A's next request would finish after three others: now + 3. B's is due at now + 2 at most.
    assert choices(routes, 6) == "BBBBBB"
    for _ in range(3):
        routes.end(0)
    # Waiting has given A the credit of one request only, and B has the debt of one.
    assert choices(routes, 6) == "AABABA"


def test_request_that_lasts_delays_its_route_by_one_turn():
    routes = routes_with_shares(1, 1)
    assert routes.choose() == 0
    routes.begin(0, 0.0)
    # Due at 1 + 2 for A, at 1, 2 and 3 for B; at 3 A is first.
    assert choices(routes, 3) == "BBA"


def test_routes_near_the_inputs_come_before_turns():
    routes = Routes([route("A", "B"), route("A"), route("B"), route("A")])
    devices = frozenset
    assert [routes.choose(preferred_devices=devices("A")) for _ in range(4)] == [
        1,
        3,
        1,
        3,
    ]
    assert routes.choose(preferred_devices=devices("AB")) == 0
    assert routes.choose([1, 3], devices("A")) == 0  # the only other one that has A
    assert routes.choose([0, 1, 3], devices("A")) == 2
    assert routes.choose([0, 1, 2, 3], devices("A")) is None


def test_excluded_routes_keep_their_turn():
    routes = routes_with_shares(1, 1, 1)
    assert routes.choose([0]) == 1
    # A and C are due at 1, B at 2; then all at 2, in order.
    assert choices(routes, 5) == "ACABC"
    assert routes.choose([0, 1, 2]) is None
    assert Routes([route("A")]).choose([0]) is None


def test_lost_devices_leave_other_routes_until_they_return():
    routes = Routes([route("A", "B"), route("B", "C"), route("C")])
    routes.mark_lost(lost("B"))
    assert set(routes.live) == {2}
    assert routes.unavailability() is None
    routes.mark_lost(lost("C"))
    assert (set(routes.live), routes.choose()) == (set(), None)
    assert routes.unavailability() == lost("B")  # the first loss
    routes.mark_lost(removed("A"))
    assert routes.unavailability() == removed("A")  # a removal is the better reason
    routes.mark_lost(removed("Z"))  # of another model
    assert routes.unavailability() == removed("A")
    assert routes.may_become_live()
    assert not routes.may_become_live([1, 2])  # route 0 needs the removed device
    routes.mark_available("C")
    assert set(routes.live) == {2}
    routes.mark_available("B")
    assert set(routes.live) == {1, 2}
    routes.mark_available("A")
    assert set(routes.live) == {0, 1, 2}
    assert routes.may_become_live([1, 2])
    assert (routes.is_any_live([0, 1]), routes.is_any_live([0, 1, 2])) == (True, False)


def test_unsteady_devices_are_used_if_no_other_route_is_live():
    routes = Routes([route("A"), route("B")])
    routes.mark_lost(lost("A"))
    routes.mark_available("A", is_steady=False)
    assert set(routes.live) == {1}
    routes.mark_lost(lost("B"))
    assert set(routes.live) == {0}  # better than none
    routes.mark_available("B")
    assert set(routes.live) == {1}
    routes.mark_steady("A")
    assert set(routes.live) == {0, 1}
    routes.mark_lost(lost("A"))
    routes.mark_available("A", is_steady=False)
    routes.mark_lost(lost("A"))  # a second loss ends the probation of the first
    routes.mark_available("A")
    assert set(routes.live) == {0, 1}


def test_attempt_is_whole_with_all_runs_and_outputs():
    spec = TensorSpec("y", "tensor(float)", ())
    stages = (Stage(0, "A", (), ("h",), ()), Stage(1, "B", ("h",), ("y", "z"), ()))
    outputs = tuple(TensorSpec(name, spec.type, ()) for name in ("y", "z", "y"))
    routes = Routes(
        [Route(Plan("m", (), outputs, stages), (0, 1)), Route(Plan("e", (), (), ()), ())]
    )
    complete = [(r, o) for r in range(4) for o in range(4) if routes.is_whole(0, r, o)]
    assert complete == [(2, 2), (2, 3), (3, 2), (3, 3)]  # two stages; y and z, h is no output
    assert routes.is_whole(1, 0, 0)
    assert (routes.uses(0, "B"), routes.uses(0, "C")) == (True, False)


def test_added_routes_start_at_the_present_time():
    routes = routes_with_shares(1, 1)
    assert choices(routes, 20) == "AB" * 10
    routes.add([route("C")])
    # C has no credit for the time before: all are due within one turn.
    assert sorted(choices(routes, 3)) == ["A", "B", "C"]
    assert sorted(choices(routes, 3)) == ["A", "B", "C"]


@pytest.mark.parametrize(
    ("planned_share", "speed", "fastest", "expected"),
    [
        (3, None, 0, 3),
        (3, None, 2, 3),
        (3, 2, 2, 3),
        (3, 1.34, 2, 3),  # two thirds of the fastest
        (3, 1.3, 2, 1.95),
        (1, 0.5, 2, 0.25),
    ],
)
def test_measured_speed_lowers_the_share(planned_share, speed, fastest, expected):
    assert share_by_speed(planned_share, speed, fastest) == pytest.approx(expected)


def complete_run(pace: Pace, num_at_a_time: int, num_stages: int, latency_s: float) -> None:
    """Complete eight attempts: always `num_at_a_time` of them run, each for `latency_s`."""
    begun_s = pace._until_s
    pace.pass_time(begun_s + 1000, 0)  # the route is idle, which does not count
    for number in range(1, 9):
        pace.pass_time(begun_s + 1000 + number * latency_s / num_at_a_time, num_at_a_time)
        pace.complete(num_stages)


@pytest.mark.parametrize(
    ("num_at_a_time", "num_stages", "latency_s", "expected_s"),
    [
        (1, 1, 2.0, 2.0),
        (4, 1, 2.0, 0.5),
        (1, 4, 2.0, 0.5),  # four stages of 0.5 s, three of them idle
        (4, 4, 3.5, 0.5),  # the fourth request in a pipeline waits for three others
        (2, 0, 2.0, 1.0),  # the outputs are constants
    ],
)
def test_pace_is_the_time_of_one_request(num_at_a_time, num_stages, latency_s, expected_s):
    pace = Pace()
    complete_run(pace, num_at_a_time, num_stages, 7 * latency_s)
    assert pace.seconds is None  # the first runs may take longer
    complete_run(pace, num_at_a_time, num_stages, latency_s)
    assert pace.seconds == pytest.approx(expected_s)
    complete_run(pace, num_at_a_time, num_stages, 5 * latency_s)
    assert pace.seconds == pytest.approx(expected_s)  # one stall
    complete_run(pace, num_at_a_time, num_stages, 3 * latency_s)
    assert pace.seconds == pytest.approx(3 * expected_s)


class OneAtATime:
    """Routes whose requests run one at a time; `seconds` are the times of each route."""

    def __init__(self, *shares: float) -> None:
        self.routes, self.now_s = routes_with_shares(*shares), 0.0

    def run_requests(self, number: int, *seconds: float) -> str:
        """Run requests; return their routes."""
        chosen = ""
        for _ in range(number):
            way = self.routes.choose()
            assert way is not None
            self.routes.begin(way, self.now_s)
            self.now_s += seconds[way]
            self.routes.end(way, self.now_s)
            chosen += "ABC"[way]
        return chosen

    @property
    def shares(self) -> list[float]:
        return [state.share for state in self.routes.states]


def test_slow_route_gets_fewer_turns_until_it_recovers():
    one = OneAtATime(1, 1)
    assert one.run_requests(32, 1.0, 4.0) == "AB" * 16
    assert one.shares == [1, 0.25]
    assert one.run_requests(30, 1.0, 4.0).count("B") == 6
    one.run_requests(80, 1.0, 1.0)  # 16 measured requests of B
    assert one.shares == [1, 1]
    assert one.run_requests(10, 1.0, 1.0) in ("AB" * 5, "BA" * 5)
    one.routes.begin(0, one.now_s)
    for _ in range(100):  # failed attempts measure nothing
        one.routes.begin(1, one.now_s)
        one.routes.end(1)
        one.now_s += 1
    assert one.shares == [1, 1]


def test_shares_follow_the_fastest_route():
    one = OneAtATime(2, 1, 1)
    one.run_requests(200, 1.0, 2.0, 8.0)  # as planned, except the last
    assert one.shares == pytest.approx([2, 1, 0.25])
    one.run_requests(400, 4.0, 2.0, 8.0)  # now the second is the fastest
    assert one.shares == pytest.approx([0.5, 1, 0.25])
    one.run_requests(400, 4.0, 20.0, 8.0)
    assert one.shares == pytest.approx([2, 0.4, 1])  # all are relative to the first
    one.run_requests(600, 1.0, 2.0, 2.0)
    assert one.shares == [2, 1, 1]


def test_route_added_later_starts_with_its_planned_share():
    one = OneAtATime(1, 1)
    one.run_requests(40, 1.0, 4.0)
    one.routes.add([route("C")])
    assert one.shares == [1, 0.25, 1]
    chosen = one.run_requests(90, 1.0, 4.0, 1.0)
    assert chosen.count("B") == 10


class ExactRoutes:
    """The policy without a heap, in fractions: each choice compares all live routes."""

    def __init__(self) -> None:
        self.shares: list[Fraction] = []
        self.devices: list[frozenset[str]] = []
        self.turns: list[Fraction] = []
        self.running: list[int] = []
        self.away: set[str] = set()
        self.now = Fraction(0)

    def add(self, devices: frozenset[str], share: float) -> None:
        self.shares.append(Fraction(share))
        self.devices.append(devices)
        self.turns.append(self.now)
        self.running.append(0)

    def choose(self, exclusions: Collection[int], preferred_devices: frozenset[str]) -> int | None:
        live = [i for i, devices in enumerate(self.devices) if self.away.isdisjoint(devices)]
        allowed = [i for i in live if i not in exclusions]
        if not allowed:
            return None
        if len(self.devices) == 1:  # a route alone needs no turns
            return allowed[0]
        self.now += 1 / sum(self.shares[i] for i in live)

        def rank(i: int) -> tuple[int, int, Fraction, int]:
            length = 1 / self.shares[i]
            due = max(self.turns[i], self.now - length) + length * (1 + self.running[i])
            devices = self.devices[i]
            return (
                (len(preferred_devices - devices), len(devices - preferred_devices), due, i)
                if preferred_devices
                else (0, 0, due, i)
            )

        chosen = min(allowed, key=rank)
        length = 1 / self.shares[chosen]
        paid = self.turns[chosen] + length
        self.turns[chosen] = min(max(paid, self.now), self.now + length)
        return chosen


_DEVICES = st.sets(st.sampled_from("ABC"), min_size=1, max_size=2).map(frozenset)
_SHARES = st.sampled_from([0.5, 1.0, 2.0, 3.0])


@given(
    st.lists(st.tuples(_DEVICES, _SHARES), min_size=1, max_size=4),
    st.lists(
        st.one_of(
            st.tuples(
                st.just("choose"),
                st.sets(st.integers(0, 3), max_size=2),
                _DEVICES | st.just(frozenset()),
            ),
            st.tuples(st.just("choose"), st.just(()), st.just(frozenset())),
            st.tuples(st.just("end"), st.integers(0, 3)),
            st.tuples(st.sampled_from(["lose", "regain"]), st.sampled_from("ABC")),
            st.tuples(st.just("add"), _DEVICES, _SHARES),
        ),
        max_size=40,
    ),
)
def test_choices_equal_those_of_the_exact_policy(first, steps):
    exact, routes = ExactRoutes(), Routes([route(*sorted(d), share=share) for d, share in first])
    for devices, share in first:
        exact.add(devices, share)
    for step in steps:
        match step:
            case ("choose", exclusions, preferred_devices):
                number = routes.choose(exclusions, preferred_devices)
                assert number == exact.choose(exclusions, preferred_devices)
                if number is not None:
                    routes.begin(number, 0.0)
                    exact.running[number] += 1
            case ("end", number) if number < len(exact.running) and exact.running[number]:
                routes.end(number)
                exact.running[number] -= 1
            case ("lose", device):
                routes.mark_lost(lost(device))
                exact.away.add(device)
            case ("regain", device):
                routes.mark_available(device)
                exact.away.discard(device)
            case ("add", devices, share):
                routes.add([route(*sorted(devices), share=share)])
                exact.add(devices, share)
