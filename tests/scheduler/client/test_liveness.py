"""State machine of device liveness: observations and orders."""

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
from hetero.scheduler.types.events import (
    DeviceEnded,
    DeviceLost,
    DeviceRemoved,
    DeviceReturned,
    DeviceSteady,
)


def live(**options: Any) -> Liveness:
    """Return two live devices, A at a0 and B at b0."""
    liveness = Liveness(**options)
    assert liveness.observe_start(0.0, "A", "n1", "a0") == []
    assert liveness.observe_start(0.0, "B", "n2", "b0") == []
    return liveness


def test_suspected_device_is_lost_until_it_responds():
    m = live()
    loss = DeviceLost(
        1.0, "A", "n1", "it cannot be reached, and last could 1.8 s ago", may_live=True
    )
    assert m.observe_silence(1.0, "a0", 1.8) == [loss]
    assert m.observe_silence(1.5, "a0", 2.3) == []
    assert m.observe_answer(2.0, "a0") == [DeviceReturned(2.0, "A", is_steady=False)]
    assert m.observe_answer(2.1, "a0") == []
    assert m.tick(7.5) == []
    assert m.return_event(7.5, "A") == DeviceReturned(7.5, "A", is_steady=False)
    # It was unreachable since -0.8, for 2.8 s.
    assert m.tick(7.6) == [DeviceSteady(7.6, "A")]
    assert m.return_event(8.0, "A") == DeviceReturned(8.0, "A")
    assert m.tick(50.0) == []


def test_probation_has_a_maximum_duration():
    m = live(device_timeout_s=500.0)
    m.observe_silence(1.0, "a0", 2.0)
    m.observe_answer(100.0, "a0")
    assert m.tick(110.0) == [DeviceSteady(110.0, "A")]


def test_device_suspected_on_probation_is_excluded():
    m = live()
    m.observe_silence(2.0, "a0", 2.0)
    m.observe_answer(3.0, "a0")
    cause = "it cannot be reached, and last could 2.0 s ago"
    assert m.observe_silence(5.3, "a0", 2.0) == [
        DeviceLost(5.3, "A", "n1", cause, may_live=True),
        see.Exclude(5.3, "A", "n1", cause),
    ]
    m.observe_answer(6.6, "a0")
    assert m.tick(13.0) == []  # it was unreachable for 3.3 s
    assert m.tick(13.2) == [DeviceSteady(13.2, "A")]
    orders = m.observe_silence(15.0, "a0", 2.0)
    assert [type(order) for order in orders] == [DeviceLost]


def test_device_that_remains_suspected_is_restarted():
    m = live(device_timeout_s=2.0)
    m.observe_silence(1.0, "a0", 2.0)
    assert m.next_time_s == 3.0
    assert m.tick(2.9) == []
    restart = Restart("A", "a0", "it cannot be reached, and last could 2.0 s ago")
    assert m.tick(3.0) == [DeviceEnded(3.0, "A"), restart]
    assert m.tick(6.9) == []
    assert m.observe_answer(9.0, "a0") == []  # too late, because its restart has begun
    assert m.observe_start(10.0, "A", "n1", "a1") == [DeviceReturned(10.0, "A")]
    assert m.observe_silence(11.0, "a0", 9.0) == []
    assert m.state("A") is DeviceState.LIVE


def test_cut_off_device_is_excluded_and_restarted_when_reachable():
    m = live(device_timeout_s=2.0)
    assert m.cut_off(0.5, "a0") == []  # it responds nevertheless
    m.observe_silence(1.0, "a0", 2.0)
    away = see.Exclude(2.0, "A", "n1", "it cannot be reached, and last could 2.0 s ago")
    assert m.cut_off(2.0, "a0") == [away]
    assert m.tick(3.9) == []
    m.cut_off(3.9, "a0")
    assert m.tick(5.8) == []  # its node offers no device
    assert [type(order) for order in m.tick(5.9)] == [DeviceEnded, Restart]


def test_cut_off_device_returns_when_it_responds():
    m = live()
    m.observe_silence(1.0, "a0", 2.0)
    m.cut_off(2.0, "a0")
    assert m.observe_answer(20.0, "a0") == [DeviceReturned(20.0, "A", is_steady=False)]
    assert m.tick(50.0) == [DeviceSteady(50.0, "A")]


def test_observations_of_an_earlier_address_are_ignored():
    m = live()
    assert m.observe_start(1.0, "A", "n1", "a1") == []
    assert m.observe_end(2.0, "a0", "killed") == []
    assert m.observe_silence(2.0, "a0", 2.0) == []


def test_lost_messages_lose_and_return_their_device():
    assert live().messages_lost(1.0, "a0") == [
        DeviceLost(1.0, "A", "n1", "messages were lost on their way", on_the_way=True),
        DeviceReturned(1.0, "A"),
    ]
    liveness = live()
    liveness.observe_silence(2.0, "a0", 2.0)
    assert liveness.messages_lost(2.5, "a0") == []  # lost already
    liveness.observe_answer(3.0, "a0")
    assert liveness.messages_lost(3.5, "a0")[1] == DeviceReturned(3.5, "A", is_steady=False)


def test_ended_process_is_restarted_with_growing_pauses():
    m = live()
    orders = m.observe_end(1.0, "a0", "killed")
    assert orders == [DeviceLost(1.0, "A", "n1", "killed"), Restart("A", "a0", "killed")]
    assert m.tick(5.0) == [see.Exclude(5.0, "A", "n1", "killed")]
    now_s, pauses = 5.0, []
    for _ in range(7):
        assert m.start_failed(now_s, "A") == []
        pauses.append(m.next_time_s - now_s)
        now_s = m.next_time_s
        assert [type(order) for order in m.tick(now_s)] == [Restart]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    m.observe_start(now_s, "A", "n1", "a1")
    orders = m.observe_end(now_s + 30, "a1", "killed")
    assert [type(order) for order in orders] == [DeviceLost, Restart]  # it had run for a long time
    m.observe_start(now_s + 40, "A", "n1", "a2")
    orders = m.observe_end(now_s + 69.9, "a2", "killed")
    assert [type(order) for order in orders] == [DeviceLost]  # its restart has a pause


def test_process_with_a_hanging_stage_is_restarted():
    m = live()
    loss, restart = m.observe_overdue_run(5.2, "a0", 5.1)
    assert isinstance(loss, DeviceLost)
    assert "has run for 5.1 s, longer than its STAGE_TIMEOUT_S" in loss.cause
    assert restart == Restart("A", "a0", loss.cause)
    assert m.observe_overdue_run(5.4, "a0", 5.3) == []


def test_slowly_restarting_device_is_excluded_once():
    m = live()
    m.observe_end(1.0, "a0", "killed")
    assert m.tick(4.9) == []
    assert m.next_time_s == 5.0
    assert m.tick(5.0) == [see.Exclude(5.0, "A", "n1", "killed")]
    assert m.tick(9.0) == []
    assert m.observe_start(9.5, "A", "n1", "a1") == [DeviceReturned(9.5, "A")]


def test_device_of_a_removed_node_returns_after_restart():
    m = live()
    m.observe_end(1.0, "a0", "killed")
    assert m.observe_removal(3.0, "A", "left") == [DeviceRemoved(3.0, "A", "n1", "left")]
    assert m.observe_removal(4.0, "A", "left") == []
    assert m.tick(8.0) == []
    assert m.observe_start(9.0, "A", "n3", "a1") == [DeviceReturned(9.0, "A")]


kinds = st.sampled_from(
    ["suspected", "answered", "hangs", "lost", "ended", "failed", "left", "started"]
)
sights = st.lists(st.tuples(kinds, st.sampled_from("AB"), st.booleans(), st.floats(0, 5)))


@given(sights)
def test_each_loss_is_reported_once_and_ends(
    life,
):
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
                case DeviceRemoved():
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
                case see.Exclude():
                    assert away[name] == 1
                case Restart():
                    assert away[name] == 1
                    assert name not in restarting
                    restarting.add(name)

    for what, name, forever, seconds in life:
        now_s += seconds
        follow(m.tick(now_s))
        address = earlier[name] if forever else present[name]
        sight: dict[str, Callable[[], list[Order]]] = {
            "suspected": partial(m.observe_silence, now_s, address, 2.0),
            "answered": partial(m.observe_answer, now_s, address),
            "hangs": partial(m.observe_overdue_run, now_s, address, 9.0),
            "lost": partial(m.messages_lost, now_s, address),
            "ended": partial(m.observe_end, now_s, address, "x"),
            "left": partial(m.observe_removal, now_s, name, "x"),
        }
        if what == "failed" and name in restarting:
            restarting.discard(name)
            follow(m.observe_removal(now_s, name, "x") if forever else m.start_failed(now_s, name))
        elif what == "started" and (name in restarting or away[name] == 2):
            restarting.discard(name)
            earlier[name], present[name] = present[name], f"{name}{next(number)}"
            follow(m.observe_start(now_s, name, "n", present[name]))
            assert not away[name]
        elif what in sight:
            follow(sight[what]())
        # Each lost device responds, restarts, awaits its restart, or is removed.
        for device in "AB":
            state = m.state(device)
            assert (state is DeviceState.LIVE) == (not away[device])
            if state in (DeviceState.SUSPECTED, DeviceState.RESTARTING):
                assert device in restarting or m.next_time_s < inf
            # Each returned device is steady, or its probation has an end.
            if back := m.return_event(now_s, device):
                assert back.is_steady == (device not in unsteady)
                assert back.is_steady or m.next_time_s < inf


def test_device_that_unloaded_stages_reloads_them():
    liveness = live()
    cause = "it could not reach this client for long"
    assert liveness.observe_unloading(50.0, "a0") == [
        DeviceLost(50.0, "A", "n1", cause, may_live=True),
        Restart("A", "a0", cause, keep=True),
    ]
    assert liveness.observe_start(51.0, "A", "n1", "a0") == [DeviceReturned(51.0, "A")]
    assert liveness.observe_end(90.0, "a0", "killed") == [
        DeviceLost(90.0, "A", "n1", "killed"),
        Restart("A", "a0", "killed"),
    ]


def test_process_that_cannot_load_its_stages_is_replaced():
    liveness = live()
    liveness.observe_unloading(50.0, "a0")
    assert liveness.start_failed(51.0, "A") == []
    (restart,) = liveness.tick(51.5)  # half a second before the second start
    assert restart == Restart("A", "a0", "it could not reach this client for long", keep=False)


def test_client_of_pool_excludes_suspected_device_without_restart():
    m = live(of_pool=True, restarts=False)
    assert [type(order) for order in m.observe_silence(1.0, "a0", 2.0)] == [DeviceLost]
    assert m.tick(6.9) == []
    assert [type(order) for order in m.tick(7.0)] == [see.Exclude]
    assert m.tick(1000.0) == []
    assert m.observe_answer(1001.0, "a0") == [DeviceReturned(1001.0, "A", is_steady=False)]
    m.observe_silence(2000.0, "a0", 2.0)
    m.observe_answer(2001.0, "a0")
    assert [type(order) for order in m.tick(3000.0)] == [DeviceSteady]


def test_stage_timeout_on_pool_device_has_a_minimum():
    m = live(of_pool=True)
    assert m.observe_overdue_run(1.0, "a0", 0.1) == []
    assert isinstance(m.observe_overdue_run(11.0, "a0", 10.1)[-1], Restart)
