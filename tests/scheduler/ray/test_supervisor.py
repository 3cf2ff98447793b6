"""The supervisor publishes device events to every deployment in the order of their occurrence."""

from __future__ import annotations

import threading
from queue import Queue
from types import SimpleNamespace
from typing import Any

from hetero.scheduler.client.device_states import DeploymentDevices
from hetero.scheduler.client.liveness import Restart
from hetero.scheduler.ray.actor import DeviceActor
from hetero.scheduler.ray.deployment import RayDeployment
from hetero.scheduler.ray.supervisor import DeviceSupervisor
from hetero.scheduler.types import events
from tests.scheduler.endpoints import wait_for

_WAIT_S = 30.0


class _Deployment:
    """A deployment that records events; a slow one takes long to accept a returned device."""

    key = "key"
    replan = None
    stateful = False

    def __init__(self, is_slow: bool, is_lost_again: threading.Event) -> None:
        self.devices = {"D": _device("a1")}
        self.device_states = DeploymentDevices()
        self.events: list[str] = []
        self._is_slow = is_slow
        self._is_lost_again = is_lost_again

    def notify(self, event: events.ClientEvent) -> None:
        if self._is_slow and isinstance(event, events.DeviceReturned):
            self._is_lost_again.wait(0.5)
        self.events.append(type(event).__name__)
        if not self._is_slow and self.events.count("DeviceLost") == 2:
            self._is_lost_again.set()

    def mark_returned_if_open(self, event: events.DeviceReturned) -> bool:
        self.notify(event)
        return True


class _Deployments(list[_Deployment]):
    def notify(self, event: Any) -> None:
        """Ignore events for observers."""

    fail_lost_tensors = notify


def _device(address: str) -> Any:
    descriptor = SimpleNamespace(name="D", node="here")
    return SimpleNamespace(address=address, descriptor=descriptor, actor_id=address, node_id="n")


def test_device_lost_during_its_return_is_lost_for_all():
    is_lost_again = threading.Event()
    slow, other = _Deployment(True, is_lost_again), _Deployment(False, is_lost_again)
    session: Any = SimpleNamespace(is_left=False)
    discovery = SimpleNamespace(responds=lambda node_id: False)
    devices: Any = SimpleNamespace(forget=lambda actor_id: None, discovery=discovery)
    deployments: Any = _Deployments([slow, other])
    unused: Any = None
    supervisor = DeviceSupervisor(
        session, devices, deployments, unused, unused, unused, unused, device_timeout_s=_WAIT_S
    )
    supervisor._restart_soon = lambda order: None  # type: ignore[method-assign]  # the test starts it
    channel: Any = SimpleNamespace(watch=lambda address: None, status_of=lambda address: {})
    supervisor.serve(channel)
    first, second = _device("a1"), _device("a2")
    supervisor.watch(first)
    supervisor.channel_ended("a1")
    wait_for(lambda: "DeviceLost" in other.events)
    for deployment in (slow, other):
        deployment.devices["D"] = second
    thread = threading.Thread(target=supervisor.watch, args=(second,))
    thread.start()
    wait_for(lambda: "a2" in supervisor._actors)
    supervisor.channel_ended("a2")
    assert is_lost_again.wait(_WAIT_S)
    thread.join(_WAIT_S)
    supervisor.close()
    assert slow.events == other.events == ["DeviceLost", "DeviceReturned", "DeviceLost"]


def _supervisor(**options: Any) -> DeviceSupervisor:
    unused: Any = None
    session: Any = SimpleNamespace(is_left=False)
    devices: Any = SimpleNamespace(
        forget=lambda actor_id: None,
        discovery=SimpleNamespace(responds=lambda node_id: True),
        pool_table=SimpleNamespace(rows={}, running_devices={}) if options else None,
    )
    deployments: Any = _Deployments([_Deployment(False, threading.Event())])
    return DeviceSupervisor(
        session,
        devices,
        deployments,
        unused,
        unused,
        unused,
        unused,
        device_timeout_s=_WAIT_S,
        **options,
    )


def test_device_that_ended_a_lease_reloads_stages(
    monkeypatch,
):
    monkeypatch.setattr("hetero.scheduler.ray.supervisor.ray.get", lambda result, timeout: result)
    supervisor, device, num_leases_ended = _supervisor(), _device("a1"), 0.0
    has_stages = True

    def has_all(deployments: list[str]) -> bool:
        assert deployments == ["key"]
        return has_stages

    device.actor = SimpleNamespace(has_all=SimpleNamespace(remote=has_all))
    restarts: Queue[Restart] = Queue()
    supervisor._restart_soon = restarts.put  # type: ignore[method-assign]
    channel: Any = SimpleNamespace(
        watch=lambda address: None, status_of=lambda address: {"leases_ended": num_leases_ended}
    )
    supervisor.serve(channel)
    supervisor.watch(device)
    wait_for(lambda: supervisor._leases_ended.get("a1") == 0.0)
    num_leases_ended = 1.0  # the lease of another client
    wait_for(lambda: supervisor._leases_ended.get("a1") == 1.0)
    assert restarts.empty()
    has_stages, num_leases_ended = False, 2.0
    restart = restarts.get(timeout=_WAIT_S)
    assert (restart.device, restart.address, restart.keep) == ("D", "a1", True)
    supervisor.close()


def test_pool_device_returns_after_it_failed_to_open():
    supervisor = _supervisor(of_pool=True, keeps=False)
    supervisor._devices.pool_table = None
    (deployment,) = supervisor._deployments
    channel: Any = SimpleNamespace(
        watch=lambda address: None,
        status_of=lambda address: {},
        is_suspected=lambda address: False,
    )
    supervisor.serve(channel)
    supervisor.watch(_device("a1"))
    supervisor._note(supervisor._liveness.observe_silence, "a1", 0.0)
    wait_for(lambda: deployment.events == ["DeviceLost", "DeviceReturned"])
    supervisor.close()


def test_client_of_pool_kills_no_process(monkeypatch):
    killed: list[Any] = []
    monkeypatch.setattr("hetero.scheduler.ray.supervisor.ray.kill", killed.append)
    device = _device("a1")
    device.actor = "actor of D"
    for keeps in (False, True):
        supervisor = _supervisor(of_pool=True, keeps=keeps)
        channel: Any = SimpleNamespace(unwatch=lambda address: None)
        supervisor._channel = channel
        supervisor._give_up(device)
        assert killed == ["actor of D"] * keeps


def test_lease_ends_only_for_silent_clients():
    actor = DeviceActor.__new__(DeviceActor)  # the test needs no other attribute
    actor._outlives, actor._num_leases_ended = True, 0
    removed_clients: list[str] = []
    unwatched: list[str] = []
    silent_s: dict[str, float] = {"flaps": 1.0, "stopped": 61.0}
    parts: Any = SimpleNamespace(
        client_gone=removed_clients.append,
        num_streams=1,
        silent_s=silent_s.get,
        unwatch=unwatched.append,
        run_at_once=lambda num_streams: None,
        status=dict,
    )
    actor._loop = actor._channel = actor._workers = parts
    for client in ("flaps", "stopped", "unknown"):
        actor._end_lease(client, 60.0)
    assert removed_clients == unwatched == ["stopped", "unknown"]
    assert actor._status() == {"leases_ended": 2}


def test_device_that_moves_during_open_needs_another_open():
    deployment = RayDeployment.__new__(RayDeployment)  # the test needs no other attribute
    deployment.device_states = DeploymentDevices()
    deployment.devices, deployment._num_streams = {"D": _device("a1")}, {}
    deployment.device_states.mark_lost("D")
    deployment.device_states.mark_moved("E", ["D", "E"])
    deployment._opened_on = lambda name: []  # type: ignore[method-assign]
    deployment._ask = lambda device, method, stages: deployment.device_states.mark_moved("E", ["D"])
    deployment._events_lock = threading.RLock()
    deployment.open_on("D")
    assert not deployment.mark_returned_if_open(events.DeviceReturned(1.0, "D"))
