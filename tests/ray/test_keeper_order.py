"""What becomes of a device is told to every deployment in the order in which it was seen."""

from __future__ import annotations

import threading
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from hetero.scheduler.client.liveness import Restart
from hetero.scheduler.ray.actor import DeviceActor
from hetero.scheduler.ray.deployment import RayDeployment
from hetero.scheduler.ray.keeper import DeviceKeeper
from hetero.scheduler.vocabulary import events
from tests.scheduler.parties import wait_for

_WAIT_S = 30.0


class _Deployment:
    """A deployment that notes what it is told; the first is slow to take a device back."""

    key = "key"
    gone: frozenset[str] = frozenset()
    remake = None
    stateful = False

    def __init__(self, is_slow: bool, is_lost_again: threading.Event) -> None:
        self.devices = {"D": _device("a1")}
        self.told: list[str] = []
        self._is_slow = is_slow
        self._is_lost_again = is_lost_again

    def tell(self, event: events.ClientEvent) -> None:
        if self._is_slow and isinstance(event, events.DeviceReturned):
            self._is_lost_again.wait(0.5)
        self.told.append(type(event).__name__)
        if not self._is_slow and self.told.count("DeviceLost") == 2:
            self._is_lost_again.set()

    def welcome(self, back: events.DeviceReturned) -> bool:
        self.tell(back)
        return True


class _Deployments(list[_Deployment]):
    def tell(self, event: Any) -> None:
        """Nobody looks."""

    told = tell


def _device(address: str) -> Any:
    descriptor = SimpleNamespace(name="D", node="here")
    return SimpleNamespace(address=address, descriptor=descriptor, actor_id=address, node_id="n")


def test_a_device_that_dies_as_its_return_is_told_is_away_for_all() -> None:
    is_lost_again = threading.Event()
    slow, other = _Deployment(True, is_lost_again), _Deployment(False, is_lost_again)
    session: Any = SimpleNamespace(is_left=False)
    survey = SimpleNamespace(answers=lambda node_id: False)
    devices: Any = SimpleNamespace(forget=lambda actor_id: None, survey=survey)
    deployments: Any = _Deployments([slow, other])
    nobody: Any = None
    keeper = DeviceKeeper(
        session, devices, deployments, nobody, nobody, nobody, nobody, device_timeout_s=_WAIT_S
    )
    keeper._restart_soon = lambda order: None  # type: ignore[method-assign]  # the test starts it
    channel: Any = SimpleNamespace(watch=lambda address: None, status_of=lambda address: {})
    keeper.serve(channel)
    first, second = _device("a1"), _device("a2")
    keeper.watch(first)
    keeper.channel_ended("a1")
    wait_for(lambda: "DeviceLost" in other.told)
    for deployment in (slow, other):
        deployment.devices["D"] = second
    starts = threading.Thread(target=keeper.watch, args=(second,))
    starts.start()
    wait_for(lambda: "a2" in keeper._actors)
    keeper.channel_ended("a2")
    assert is_lost_again.wait(_WAIT_S)
    starts.join(_WAIT_S)
    keeper.close()
    assert slow.told == other.told == ["DeviceLost", "DeviceReturned", "DeviceLost"]


def _keeper(**options: Any) -> DeviceKeeper:
    nobody: Any = None
    session: Any = SimpleNamespace(is_left=False)
    devices: Any = SimpleNamespace(
        forget=lambda actor_id: None,
        survey=SimpleNamespace(answers=lambda node_id: True),
        pool_table=SimpleNamespace(rows={}, started={}) if options else None,
    )
    deployments: Any = _Deployments([_Deployment(False, threading.Event())])
    return DeviceKeeper(
        session,
        devices,
        deployments,
        nobody,
        nobody,
        nobody,
        nobody,
        device_timeout_s=_WAIT_S,
        **options,
    )


def test_a_device_that_has_given_a_client_up_loads_its_stages_again_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hetero.scheduler.ray.keeper.ray.get", lambda answer, timeout: answer)
    keeper, device, ended = _keeper(), _device("a1"), 0.0
    has_stages = True

    def has_all(deployments: list[str]) -> bool:
        assert deployments == ["key"]
        return has_stages

    device.actor = SimpleNamespace(has_all=SimpleNamespace(remote=has_all))
    restarts: Queue[Restart] = Queue()
    keeper._restart_soon = restarts.put  # type: ignore[method-assign]
    channel: Any = SimpleNamespace(
        watch=lambda address: None, status_of=lambda address: {"leases_ended": ended}
    )
    keeper.serve(channel)
    keeper.watch(device)
    wait_for(lambda: keeper._leases_ended.get("a1") == 0.0)
    ended = 1.0  # another client's
    wait_for(lambda: keeper._leases_ended.get("a1") == 1.0)
    assert restarts.empty()
    has_stages, ended = False, 2.0
    order = restarts.get(timeout=_WAIT_S)
    assert (order.device, order.address, order.keep) == ("D", "a1", True)
    keeper.close()


def test_a_pools_client_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[Any] = []
    monkeypatch.setattr("hetero.scheduler.ray.keeper.ray.kill", killed.append)
    device = _device("a1")
    device.actor = "actor of D"
    for keeps in (False, True):
        keeper = _keeper(of_pool=True, keeps=keeps)
        channel: Any = SimpleNamespace(unwatch=lambda address: None)
        keeper._channel = channel
        keeper._give_up(device)
        assert killed == ["actor of D"] * keeps


def test_a_lease_ends_where_its_client_stays_silent_and_not_where_it_was_heard() -> None:
    actor = DeviceActor.__new__(DeviceActor)  # of all the rest nothing is wanted here
    actor._outlives, actor._num_leases_ended = True, 0
    gone: list[str] = []
    forgotten: list[str] = []
    silent_s: dict[str, float] = {"flaps": 1.0, "stopped": 61.0}
    parts: Any = SimpleNamespace(
        client_gone=gone.append,
        num_streams=1,
        silent_s=silent_s.get,
        unwatch=forgotten.append,
        run_at_once=lambda num_streams: None,
        status=dict,
    )
    actor._loop = actor._channel = actor._workers = parts
    for client in ("flaps", "stopped", "unknown"):
        actor._end_lease(client, 60.0)
    assert gone == forgotten == ["stopped", "unknown"]
    assert actor._status() == {"leases_ended": 2}


def test_a_device_that_hears_where_others_are_hears_it_again_if_one_moves_meanwhile() -> None:
    deployment = RayDeployment.__new__(RayDeployment)  # of all the rest nothing is wanted here
    deployment.stale, deployment.devices, deployment._num_streams = {"D"}, {"D": _device("a1")}, {}
    deployment._opened_on = lambda name: []  # type: ignore[method-assign]
    deployment._ask = lambda device, method, stages: deployment.stale.add("D")
    deployment._telling = threading.RLock()
    deployment.open_on("D")
    assert not deployment.welcome(events.DeviceReturned(1.0, "D"))
