"""Liveness: what is seen of devices, and what becomes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from math import inf
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hetero.scheduler.client import liveness as see
from hetero.scheduler.client.liveness import DeviceState, Liveness, Order, Restart
from hetero.scheduler.vocabulary.events import (
    DeviceEnded,
    DeviceGone,
    DeviceLost,
    DeviceReturned,
    DeviceSteady,
)


def live(**options: Any) -> Liveness:
    """Return two devices that live, A at a0 and B at b0."""
    made = Liveness(**options)
    assert made.started(0.0, "A", "n1", "a0") == []
    assert made.started(0.0, "B", "n2", "b0") == []
    return made


def test_a_silent_device_is_lost_and_back_when_it_is_heard() -> None:
    m = live()
    lost = DeviceLost(1.0, "A", "n1", "nothing was heard for 1.8 s", may_live=True)
    assert m.silent(1.0, "a0", 1.8) == [lost]
    assert m.silent(1.5, "a0", 2.3) == []
    assert m.heard(2.0, "a0") == [DeviceReturned(2.0, "A", is_steady=False)]
    assert m.heard(2.1, "a0") == []
    assert m.passed(7.5) == []
    assert m.returned(7.5, "A") == DeviceReturned(7.5, "A", is_steady=False)
    # It was silent since -0.8, for 2.8 s.
    assert m.passed(7.6) == [DeviceSteady(7.6, "A")]
    assert m.returned(8.0, "A") == DeviceReturned(8.0, "A")
    assert m.passed(50.0) == []


def test_a_device_that_was_silent_for_long_is_steady_after_a_while() -> None:
    m = live(device_timeout_s=500.0)
    m.silent(1.0, "a0", 2.0)
    m.heard(100.0, "a0")
    assert m.passed(110.0) == [DeviceSteady(110.0, "A")]


def test_a_device_that_is_silent_again_before_it_is_steady_is_to_be_done_without() -> None:
    m = live()
    m.silent(2.0, "a0", 2.0)
    m.heard(3.0, "a0")
    told = m.silent(5.3, "a0", 2.0)
    assert [type(order) for order in told] == [DeviceLost, see.StaysAway]
    m.heard(6.6, "a0")
    assert m.passed(13.0) == []  # it was silent for 3.3 s
    assert m.passed(13.2) == [DeviceSteady(13.2, "A")]
    told = m.silent(15.0, "a0", 2.0)
    assert [type(order) for order in told] == [DeviceLost]


def test_a_device_that_stays_silent_is_started_anew_elsewhere() -> None:
    m = live(device_timeout_s=2.0)
    m.silent(1.0, "a0", 2.0)
    assert m.next_time_s == 3.0
    assert m.passed(2.9) == []
    restart = Restart("A", "a0", "nothing was heard for 2.0 s")
    assert m.passed(3.0) == [DeviceEnded(3.0, "A"), restart]
    assert m.passed(6.9) == []
    assert m.heard(9.0, "a0") == []  # too late: it is being ended
    assert m.started(10.0, "A", "n1", "a1") == [DeviceReturned(10.0, "A")]
    assert m.silent(11.0, "a0", 9.0) == []
    assert m.state("A") is DeviceState.LIVE


def test_a_device_that_is_cut_off_is_done_without_at_once_and_started_once_it_is_reached() -> None:
    m = live(device_timeout_s=2.0)
    assert m.unreached(0.5, "a0") == []  # it is heard all the same
    m.silent(1.0, "a0", 2.0)
    away = see.StaysAway(2.0, "A", "n1", "nothing was heard for 2.0 s")
    assert m.unreached(2.0, "a0") == [away]
    assert m.passed(3.9) == []
    m.unreached(3.9, "a0")
    assert m.passed(5.8) == []  # there is nothing to start
    assert [type(order) for order in m.passed(5.9)] == [DeviceEnded, Restart]


def test_a_device_that_was_cut_off_is_back_when_it_is_heard() -> None:
    m = live()
    m.silent(1.0, "a0", 2.0)
    m.unreached(2.0, "a0")
    assert m.heard(20.0, "a0") == [DeviceReturned(20.0, "A", is_steady=False)]
    assert m.passed(50.0) == [DeviceSteady(50.0, "A")]


def test_what_is_heard_of_an_earlier_address_counts_for_nothing() -> None:
    m = live()
    assert m.started(1.0, "A", "n1", "a1") == []
    assert m.ended(2.0, "a0", "killed") == []
    assert m.silent(2.0, "a0", 2.0) == []


def test_lost_messages_have_all_that_was_sent_replayed() -> None:
    told = live().messages_lost(1.0, "a0")
    assert [type(order) for order in told] == [DeviceLost, DeviceReturned]


def test_a_process_that_ends_is_started_at_once_and_then_less_and_less_often() -> None:
    m = live()
    told = m.ended(1.0, "a0", "killed")
    assert told == [DeviceLost(1.0, "A", "n1", "killed"), Restart("A", "a0", "killed")]
    assert m.passed(5.0) == [see.StaysAway(5.0, "A", "n1", "killed")]
    now_s, pauses = 5.0, []
    for _ in range(7):
        assert m.start_failed(now_s, "A") == []
        pauses.append(m.next_time_s - now_s)
        now_s = m.next_time_s
        assert [type(order) for order in m.passed(now_s)] == [Restart]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    m.started(now_s, "A", "n1", "a1")
    told = m.ended(now_s + 60, "a1", "killed")
    assert [type(order) for order in told] == [DeviceLost, Restart]  # it had lived long


def test_a_stage_that_hangs_has_its_process_ended() -> None:
    m = live()
    lost, restart = m.heard(5.2, "a0", overdue_s=5.1)
    assert isinstance(lost, DeviceLost)
    assert "has run for 5.1 s, longer than its STAGE_TIMEOUT_S" in lost.cause
    assert restart == Restart("A", "a0", lost.cause)
    assert m.heard(5.4, "a0", overdue_s=5.3) == []


def test_a_device_that_takes_long_to_start_is_to_be_done_without_once() -> None:
    m = live()
    m.ended(1.0, "a0", "killed")
    assert m.passed(4.9) == []
    assert m.next_time_s == 5.0
    assert m.passed(5.0) == [see.StaysAway(5.0, "A", "n1", "killed")]
    assert m.passed(9.0) == []
    assert m.started(9.5, "A", "n1", "a1") == [DeviceReturned(9.5, "A")]


def test_a_device_that_cannot_come_back_is_gone_until_it_does() -> None:
    m = live()
    m.ended(1.0, "a0", "killed")
    assert m.node_left(3.0, "A", "left") == [DeviceGone(3.0, "A", "n1", "left")]
    assert m.node_left(4.0, "A", "left") == []
    assert m.passed(8.0) == []
    assert m.started(9.0, "A", "n3", "a1") == [DeviceReturned(9.0, "A")]


kinds = st.sampled_from(["silent", "heard", "hangs", "lost", "ended", "failed", "left", "started"])
sights = st.lists(st.tuples(kinds, st.sampled_from("AB"), st.booleans(), st.floats(0, 5)))


@given(sights)
def test_clients_hear_of_each_loss_and_return_once_and_each_loss_ends(
    life: list[tuple[str, str, bool, float]],
) -> None:
    m = live()
    number, now_s = count(1), 0.0
    present = {"A": "a0", "B": "b0"}
    earlier = {"A": "?", "B": "?"}
    away: Counter[str] = Counter()
    restarting: set[str] = set()
    unsteady: set[str] = set()

    def follow(orders: list[Order]) -> None:
        for order in orders:
            name = order.device
            match order:
                case DeviceLost():
                    assert not away[name]
                    away[name] = 1
                    unsteady.discard(name)
                case DeviceGone():
                    assert away[name] < 2
                    away[name] = 2
                    unsteady.discard(name)
                    restarting.discard(name)
                case DeviceReturned():
                    assert away[name]
                    away[name] = 0
                    (unsteady.discard if order.is_steady else unsteady.add)(name)
                case DeviceSteady():
                    assert not away[name]
                    unsteady.remove(name)
                case see.StaysAway():
                    assert away[name] == 1
                case Restart():
                    assert away[name] == 1
                    assert name not in restarting
                    restarting.add(name)

    for what, name, forever, seconds in life:
        now_s += seconds
        follow(m.passed(now_s))
        address = earlier[name] if forever else present[name]
        sight: dict[str, Callable[[], list[Order]]] = {
            "silent": partial(m.silent, now_s, address, 2.0),
            "heard": partial(m.heard, now_s, address),
            "hangs": partial(m.heard, now_s, address, overdue_s=9.0),
            "lost": partial(m.messages_lost, now_s, address),
            "ended": partial(m.ended, now_s, address, "x"),
            "left": partial(m.node_left, now_s, name, "x"),
        }
        if what == "failed" and name in restarting:
            restarting.discard(name)
            follow(m.node_left(now_s, name, "x") if forever else m.start_failed(now_s, name))
        elif what == "started" and (name in restarting or away[name] == 2):
            restarting.discard(name)
            earlier[name], present[name] = present[name], f"{name}{next(number)}"
            follow(m.started(now_s, name, "n", present[name]))
            assert not away[name]
        elif what in sight:
            follow(sight[what]())
        # Whoever is away is heard again, is started, is to be started, or is gone.
        for device in "AB":
            state = m.state(device)
            assert (state is DeviceState.LIVE) == (not away[device])
            if state in (DeviceState.SILENT, DeviceState.RESTARTING):
                assert device in restarting or m.next_time_s < inf
            # Whoever is back is steady, or will be said to be.
            if back := m.returned(now_s, device):
                assert back.is_steady == (device not in unsteady)
                assert back.is_steady or m.next_time_s < inf


def test_a_device_that_let_go_of_our_stages_loads_them_again_in_its_process() -> None:
    liveness = live()
    cause = "it has not heard of this client for long"
    assert liveness.unloaded(50.0, "a0") == [
        DeviceLost(50.0, "A", "n1", cause, may_live=True),
        Restart("A", "a0", cause, keep=True),
    ]
    assert liveness.started(51.0, "A", "n1", "a0") == [DeviceReturned(51.0, "A")]
    assert liveness.ended(90.0, "a0", "killed") == [
        DeviceLost(90.0, "A", "n1", "killed"),
        Restart("A", "a0", "killed"),
    ]


def test_a_pools_client_ends_no_silent_device_and_does_without_it_until_it_is_heard() -> None:
    m = live(of_pool=True, keeps=False)
    assert [type(order) for order in m.silent(1.0, "a0", 2.0)] == [DeviceLost]
    assert m.passed(6.9) == []
    assert [type(order) for order in m.passed(7.0)] == [see.StaysAway]
    assert m.passed(1000.0) == []
    assert m.heard(1001.0, "a0") == [DeviceReturned(1001.0, "A", is_steady=False)]
    m.silent(2000.0, "a0", 2.0)
    m.heard(2001.0, "a0")
    assert [type(order) for order in m.passed(3000.0)] == [DeviceSteady]


def test_a_stage_of_a_pools_device_may_take_longer_than_one_client_says() -> None:
    m = live(of_pool=True)
    assert m.heard(1.0, "a0", 0.1) == []
    assert isinstance(m.heard(11.0, "a0", 10.1)[-1], Restart)
