"""A client of a faulty cluster, which follows the instructions of the liveness state machine.

It corresponds to the device supervisor on Ray, which uses calls of Ray instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Concatenate, Final, ParamSpec

from hetero.scheduler.client.deployments import Deployments
from hetero.scheduler.client.device_states import DeploymentDevices
from hetero.scheduler.client.liveness import DeviceState, Exclude, Liveness, Order, Restart
from hetero.scheduler.observe.observer import Observer
from hetero.scheduler.simulation.client import SimulatedClient, SimulatedDeployment
from hetero.scheduler.simulation.device import SimulatedDevice
from hetero.scheduler.simulation.simulator import SimEvent
from hetero.scheduler.types.events import ClientEvent, DeviceLost, DeviceRemoved, DeviceReturned
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.placement import Placement
from tests.simulation.faulty_cluster import FaultyCluster

P = ParamSpec("P")
#: Latency of a call to a device's process in one direction, and the timeout of a call.
_LATENCY_S: Final = 0.001
_CALL_S: Final = 2.0
#: Interval of checks for overdue stages and for nodes that are cut off.
_CHECK_INTERVAL_S: Final = 0.5
#: Time after which a device that the pool supervisor has not restarted counts as healthy, and the
#: interval of checks for the restart.
_RESTART_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.25


class SupervisedDeployment(SimulatedDeployment):
    """A deployment on devices that may be lost."""

    def __init__(self, client: SimulatedClient, key: str, placement: Placement, limits: Limits):
        self.device_states = DeploymentDevices()
        super().__init__(client, key, placement, limits)

    def notify(self, event: ClientEvent) -> None:
        if isinstance(event, DeviceLost | DeviceRemoved):
            self.device_states.mark_lost(event.device)
        super().notify(event)

    def exclude(self, order: Exclude) -> None:
        """Do without a device, if the other routes suffice: there is no planner to add one."""
        excluded = self.device_states.excluded | {order.device}
        if any(excluded.isdisjoint(route.plan.devices) for route in self.placement.routes):
            self.device_states.exclude([order.device])
            self.notify(DeviceRemoved(order.now_s, order.device, order.node, order.cause))


class SupervisedClient(SimulatedClient):
    """A client, or the supervisor of a pool of devices.

    `supervises_pool`: whether it only supervises the devices of the clients created after it.
    """

    kind = SupervisedDeployment
    cluster: FaultyCluster
    deployments: Deployments[SupervisedDeployment]  # type: ignore[assignment]  # a narrower type

    def __init__(
        self,
        cluster: FaultyCluster,
        name: str,
        node: str,
        observers: Sequence[Observer] = (),
        *,
        supervises_pool: bool = False,
    ) -> None:
        super().__init__(cluster, name, node, observers)
        self._supervises_pool = supervises_pool
        self._restarts_devices = cluster.keeper is None
        self._liveness = Liveness(
            device_timeout_s=cluster.timeout_s,
            of_pool=supervises_pool or not self._restarts_devices,
            restarts=self._restarts_devices,
        )
        #: Observed processes of devices by address, and addresses without heartbeats.
        self._observed_devices: dict[str, SimulatedDevice] = {}
        self._silent_addresses: set[str] = set()
        #: Devices that are loading stages.
        self._loading: set[str] = set()
        #: Devices that the pool supervisor has restarted.
        self._published_devices: dict[str, SimulatedDevice] = {}
        #: Actions to process, in order.
        self._pending_actions: deque[Callable[[], None]] = deque()
        self._is_processing = False
        self._checks_overdue = False
        if supervises_pool:
            cluster.keeper = self
            for device in cluster.devices.values():
                self._watch(device)
            self._look_for_overdue()
        cluster.clients.append(self)

    def is_lost(self, address: str) -> bool:
        is_given_up = address in self._silent_addresses | self._liveness.given_up
        return is_given_up or super().is_lost(address)

    def is_live(self, device: SimulatedDevice) -> bool:
        """Whether a device runs, as far as this client knows and in fact."""
        is_running = device.process.is_alive and not device.process.is_stopped
        state = self._liveness.state(device.name)
        return is_running and device.name not in self._loading and state in (None, DeviceState.LIVE)

    def deploy(self, placement: Placement, limits: Limits | None = None) -> SimulatedDeployment:
        deployment = super().deploy(placement, limits)
        if (
            limits
            and limits.stage_timeout_s
            and self._restarts_devices
            and not self._checks_overdue
        ):
            self._checks_overdue = True
            self.process.do(_CHECK_INTERVAL_S, 0.0, self._look_for_overdue)
        return deployment

    def load(self, deployment: SimulatedDeployment, placement: Placement) -> None:
        """Load the missing stages of a deployment, and observe their devices."""
        super().load(deployment, placement)
        for name in placement.devices:
            if self._liveness.state(name) is None:
                self._watch(self.cluster.devices[name])

    def _watch(self, device: SimulatedDevice) -> None:
        self._observed_devices[device.address] = device
        self._silent_addresses.discard(device.address)
        self.observe(self._liveness.observe_start, device.name, device.node, device.address)
        if not self.cluster.is_reachable(device.process, self.process):
            self.update_reachability()

    # Observations.

    def ended(self, address: str, cause: str) -> None:
        """Handle the end of a device's process."""
        self._silent_addresses.add(address)
        self.observe(self._liveness.observe_end, address, cause)

    def published(self, device: SimulatedDevice) -> None:
        """Handle a restart by the pool supervisor; ignore notices of earlier restarts."""
        last = self._published_devices.get(device.name)
        if last is not None and last.life > device.life:
            return
        self._published_devices[device.name] = device
        for old in list(self._observed_devices.values()):
            if old.name == device.name and old is not device:
                self.ended(old.address, "the pool supervisor has restarted it")

    def lost(self, address: str) -> None:
        """Handle lost messages from or to a device."""
        self.observe(self._liveness.messages_lost, address)

    def update_reachability(self) -> None:
        """Report devices that have become silent or reachable."""
        for device in list(self._observed_devices.values()):
            address, is_reachable = (
                device.address,
                self.cluster.is_reachable(device.process, self.process),
            )
            if is_reachable and address in self._silent_addresses:
                self._silent_addresses.discard(address)
                self.observe(self._liveness.observe_answer, address)
            elif not is_reachable and address not in self._silent_addresses:
                self.process.do(self.cluster.timeout_s, 0.0, self._suspect_if_silent, device)
            if is_reachable and (address, self.address) in self.cluster.given_up:
                self.cluster.given_up.discard((address, self.address))
                keys = [d.key for d in self.deployments if device.name in d.placement.devices]
                if not device.host.has_all(keys):
                    self.observe(self._liveness.observe_unloading, address)

    def _suspect_if_silent(self, device: SimulatedDevice) -> None:
        is_watched = (
            device.address in self._observed_devices
            and device.address not in self._silent_addresses
        )
        if is_watched and not self.cluster.is_reachable(device.process, self.process):
            self._silent_addresses.add(device.address)
            self.observe(self._liveness.observe_silence, device.address, self.cluster.timeout_s)
            self._report_cut_off(device)

    def _report_cut_off(self, device: SimulatedDevice) -> None:
        """Report repeatedly that the node of a silent device is cut off."""
        if device.address in self._silent_addresses and self.cluster.is_cut(
            device.process, self.process
        ):
            self.observe(self._liveness.cut_off, device.address)
            self.process.do(_CHECK_INTERVAL_S, 0.0, self._report_cut_off, device)

    def _look_for_overdue(self) -> None:
        for device in list(self._observed_devices.values()):
            overdue_s = device.loop.status()["overdue_s"]
            if overdue_s and self.cluster.is_reachable(device.process, self.process):
                self.observe(self._liveness.observe_overdue_run, device.address, overdue_s)
        self.process.do(_CHECK_INTERVAL_S, 0.0, self._look_for_overdue)

    def observe(
        self,
        observe: Callable[Concatenate[float, P], list[Order]],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> None:
        """Enqueue an observation; `observe` is a method of the liveness state machine."""
        self._enqueue(
            partial(self._execute, partial(observe, self.simulator.now, *arguments, **options))
        )

    def _enqueue(self, order: Callable[[], None]) -> None:
        self._pending_actions.append(order)
        if not self._is_processing:
            self._is_processing = True
            self.process.do(0.0, 0.0, self._process_pending)

    def _process_pending(self) -> None:
        while self._pending_actions:
            self._pending_actions.popleft()()
            self._execute(partial(self._liveness.tick, self.simulator.now))
        self._is_processing = False
        due_s = self._liveness.next_time_s
        if due_s < inf:
            late_s = max(0.0, due_s - self.simulator.now)
            self.process.do(late_s, 0.0, self.observe, self._liveness.tick)

    def _execute(self, observe: Callable[[], list[Order]]) -> None:
        for order in observe():
            self.simulator.note(f"{self.process.name}: {type(order).__name__} {order.device}")
            if isinstance(order, Restart):
                self.simulator.spawn(partial(self._restart, order))
            elif isinstance(order, Exclude):
                for deployment in self.deployments:
                    is_used = order.device in deployment.placement.devices
                    if is_used and order.device not in self._loading:
                        deployment.exclude(order)
            else:
                self.deployments.notify(order)
                for deployment in self.deployments:
                    if order.device not in deployment.placement.devices:
                        continue
                    if isinstance(order, DeviceReturned):
                        self._report_returned(deployment, order)
                    else:
                        deployment.notify(order)
                self.deployments.fail_lost_tensors(order)

    def _report_returned(self, deployment: SupervisedDeployment, order: DeviceReturned) -> None:
        """Report a returned device, after it has received the addresses of others."""
        if deployment.device_states.mark_returned(order.device):
            deployment.notify(order)
            self.cluster.on_returned(deployment)
        else:
            self.simulator.spawn(partial(self._reopen, deployment, order))

    def _reopen(self, deployment: SupervisedDeployment, order: DeviceReturned) -> None:
        device = self.cluster.devices[order.device]
        # Before the device opens, because a restart in the meantime makes it unopened again.
        deployment.device_states.mark_opening(device.name)
        if self._call_and_wait(device, partial(device.open, deployment.opened_on(device.name))):
            self._enqueue(partial(self._report_returned_if_live, deployment, order))
        else:
            deployment.device_states.mark_open_failed(device.name)
            self.observe(self._liveness.observe_silence, device.address, 0.0)
            if not self._restarts_devices:
                self.process.do(_CHECK_INTERVAL_S, 0.0, self._report_answer, device.address)

    def _report_answer(self, address: str) -> None:
        """Report that a suspected device answers: no heartbeat will, if none was missed."""
        if address not in self._silent_addresses:
            self.observe(self._liveness.observe_answer, address)

    def _report_returned_if_live(
        self, deployment: SupervisedDeployment, order: DeviceReturned
    ) -> None:
        if back := self._liveness.return_event(self.simulator.now, order.device):
            self._report_returned(deployment, back)

    # Actions.

    def _restart(self, order: Restart) -> None:
        """Restart a device and load its stages, by a `SimThread`."""
        name = order.device
        self._observed_devices.pop(order.address, None)
        self._silent_addresses.add(order.address)
        if self._restarts_devices or order.keep:
            device = self.cluster.restart(name, order.address, order.keep)
        else:
            device = self._await_restart(name, order.address)
        self._loading.add(name)
        is_loaded = device is not None and self._load_stages(device)
        self._loading.discard(name)
        if device is None or not is_loaded:
            self.observe(self._liveness.start_failed, name)
            return
        self._watch(device)
        if self._supervises_pool:
            self.cluster.publish(device)

    def _await_restart(self, name: str, address: str) -> SimulatedDevice | None:
        """Wait for the pool supervisor to restart a device; return None on timeout."""
        until_s = self.simulator.now + _RESTART_TIMEOUT_S
        while self.simulator.now < until_s:
            device = self._published_devices.get(name)
            if device is not None and device.address != address and device.process.is_alive:
                return device
            self.simulator.sleep(_POLL_S)
        return self.cluster.devices[name] if self.cluster.find(address) else None

    def _load_stages(self, device: SimulatedDevice) -> bool:
        """Load and open the stages of a started device, by a `SimThread`; return its success."""
        name = device.name
        for deployment in self.deployments:
            if name not in deployment.placement.devices:
                continue
            for stage in deployment.placement.stages_by_device[name]:
                if not self._call_and_wait(device, partial(device.load, deployment.key, stage)):
                    return False
            deployment.set_address(name, device.address)
            # Before the device opens, because a restart in the meantime makes it unopened again.
            deployment.device_states.mark_opening(name)
            if not self._call_and_wait(device, partial(device.open, deployment.opened_on(name))):
                return False
            others = deployment.device_states.mark_moved(name, deployment.placement.devices)
            reachable = [self.cluster.devices[other] for other in others]
            calls = [
                self._call(other, partial(other.open, deployment.opened_on(other.name)))
                for other in reachable
            ]
            for other, call in zip(reachable, calls, strict=True):
                is_reachable = self.cluster.is_reachable(other.process, self.process)
                if is_reachable and not call.wait(_CALL_S):
                    return False
            deployment.device_states.mark_loaded(name)
            if deployment.is_closed:
                self._call(device, partial(device.unload, deployment.key))
        return True

    def _call_and_wait(self, device: SimulatedDevice, work: Callable[[], object]) -> bool:
        return self._call(device, work).wait(_CALL_S)

    def _call(self, device: SimulatedDevice, work: Callable[[], object]) -> SimEvent:
        """Call a device's process; return an event that is set when its response arrives."""
        answered = SimEvent(self.simulator)
        delays, is_answered = self.cluster.call_outcome()
        cut_s = self.cluster.cut_s

        def call() -> None:
            work()
            if is_answered:
                response_s = _LATENCY_S + cut_s(device.process, self.process)
                self.process.do(response_s, 0.0, answered.set)

        for delay_s in delays:
            request_s = _LATENCY_S + cut_s(self.process, device.process)
            device.process.do(request_s + delay_s, 0.0, call)
        return answered
