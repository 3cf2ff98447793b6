"""A client of a faulty cluster: it does what the liveness machine orders.

The keeper of devices on Ray does the same by way of Ray's calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Concatenate, Final, ParamSpec

from hetero.scheduler.client.deployments import Deployments
from hetero.scheduler.client.liveness import Exclude, Liveness, Order, Restart
from hetero.scheduler.observe.observer import Observer
from hetero.scheduler.simulation.client import PlayedClient, PlayedDeployment
from hetero.scheduler.simulation.device import PlayedDevice
from hetero.scheduler.simulation.world import WorldEvent
from hetero.scheduler.types.events import ClientEvent, DeviceLost, DeviceReturned
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.placement import Placement
from tests.simulation.faulty_cluster import FaultyCluster

P = ParamSpec("P")
#: Seconds that a call to a device's process takes, there or back; and after which it has failed.
_WAY_S: Final = 0.001
_CALL_S: Final = 2.0
#: Seconds between two looks at how long stages have run, and at nodes that are cut off.
_LOOK_S: Final = 0.5
#: Seconds after which a pool's device that its keeper has not started anew is taken for well; and
#: between two looks whether it has.
_ANOTHER_S: Final = 10.0
_AGAIN_S: Final = 0.25


class KeptDeployment(PlayedDeployment):
    """A placement on devices that may be lost."""

    def __init__(self, client: PlayedClient, key: str, placement: Placement, limits: Limits):
        #: Devices that are lost now; those that have not heard where others are.
        self.away: set[str] = set()
        self.stale: set[str] = set()
        super().__init__(client, key, placement, limits)

    def tell(self, event: ClientEvent) -> None:
        if isinstance(event, DeviceLost):
            self.away.add(event.device)
        elif isinstance(event, DeviceReturned):
            self.away.discard(event.device)
        super().tell(event)


class KeptClient(PlayedClient):
    """One client.

    `keeps_pool`: whether it is no client but the keeper of a pool, for those that come after it.
    """

    kind = KeptDeployment
    cluster: FaultyCluster
    deployments: Deployments[KeptDeployment]  # type: ignore[assignment]  # of its kind

    def __init__(
        self,
        cluster: FaultyCluster,
        name: str,
        node: str,
        observers: Sequence[Observer] = (),
        *,
        keeps_pool: bool = False,
    ) -> None:
        super().__init__(cluster, name, node, observers)
        self._keeps_pool = keeps_pool
        self._keeps = cluster.keeper is None
        self._liveness = Liveness(
            device_timeout_s=cluster.timeout_s,
            of_pool=keeps_pool or not self._keeps,
            restarts=self._keeps,
        )
        #: The lives of devices that it listens to, by address, and those that are not heard.
        self._watched: dict[str, PlayedDevice] = {}
        self._silent: set[str] = set()
        #: What the pool's keeper has started.
        self._published: dict[str, PlayedDevice] = {}
        #: What is yet to be taken in, in order.
        self._orders: deque[Callable[[], None]] = deque()
        self._is_keeping = False
        self._looks = False
        if keeps_pool:
            cluster.keeper = self
            for device in cluster.devices.values():
                self._watch(device)
            self._look_for_overdue()
        cluster.clients.append(self)

    def is_lost(self, address: str) -> bool:
        is_given_up = address in self._silent | self._liveness.given_up
        return is_given_up or super().is_lost(address)

    def deploy(self, placement: Placement, limits: Limits | None = None) -> PlayedDeployment:
        deployment = super().deploy(placement, limits)
        if limits and limits.stage_timeout_s and self._keeps and not self._looks:
            self._looks = True
            self.process.do(_LOOK_S, 0.0, self._look_for_overdue)
        return deployment

    def load(self, deployment: PlayedDeployment, placement: Placement) -> None:
        """Load stages of a deployment that it has not yet, and watch their devices."""
        super().load(deployment, placement)
        for name in placement.devices:
            if self._liveness.state(name) is None:
                self._watch(self.cluster.devices[name])

    def _watch(self, device: PlayedDevice) -> None:
        self._watched[device.address] = device
        self._silent.discard(device.address)
        self.see(self._liveness.started, device.name, device.node, device.address)
        if not self.cluster.is_heard(device.process, self.process):
            self.look()

    # What is seen.

    def ended(self, address: str, cause: str) -> None:
        """Take in that a device's process has ended."""
        self._silent.add(address)
        self.see(self._liveness.ended, address, cause)

    def published(self, device: PlayedDevice) -> None:
        """Take in that the pool's keeper has started a device anew; older news is too late."""
        last = self._published.get(device.name)
        if last is not None and last.life > device.life:
            return
        self._published[device.name] = device
        for old in list(self._watched.values()):
            if old.name == device.name and old is not device:
                self.ended(old.address, "the pool supervisor has restarted it")

    def lost(self, address: str) -> None:
        """Take in that messages from or to a device were lost."""
        self.see(self._liveness.messages_lost, address)

    def look(self) -> None:
        """See which devices are heard."""
        for device in list(self._watched.values()):
            address, is_heard = device.address, self.cluster.is_heard(device.process, self.process)
            if is_heard and address in self._silent:
                self._silent.discard(address)
                self.see(self._liveness.answered, address)
            elif not is_heard and address not in self._silent:
                self.process.do(self.cluster.timeout_s, 0.0, self._still_silent, device)
            if is_heard and (address, self.address) in self.cluster.given_up:
                self.cluster.given_up.discard((address, self.address))
                keys = [d.key for d in self.deployments if device.name in d.placement.devices]
                if not device.host.has_all(keys):
                    self.see(self._liveness.unloaded, address)

    def _still_silent(self, device: PlayedDevice) -> None:
        is_watched = device.address in self._watched and device.address not in self._silent
        if is_watched and not self.cluster.is_heard(device.process, self.process):
            self._silent.add(device.address)
            self.see(self._liveness.suspected, device.address, self.cluster.timeout_s)
            self._reach(device)

    def _reach(self, device: PlayedDevice) -> None:
        """While a silent device's node is cut off, say so."""
        if device.address in self._silent and self.cluster.is_cut(device.process, self.process):
            self.see(self._liveness.cut_off, device.address)
            self.process.do(_LOOK_S, 0.0, self._reach, device)

    def _look_for_overdue(self) -> None:
        for device in list(self._watched.values()):
            overdue_s = device.loop.status()["overdue_s"]
            if overdue_s and self.cluster.is_heard(device.process, self.process):
                self.see(self._liveness.overdue, device.address, overdue_s)
        self.process.do(_LOOK_S, 0.0, self._look_for_overdue)

    def see(
        self, seen: Callable[Concatenate[float, P], list[Order]], *what: P.args, **more: P.kwargs
    ) -> None:
        """Take in what is seen now, after what was before it: one of the liveness's methods."""
        self._do(partial(self._see, partial(seen, self.world.now, *what, **more)))

    def _do(self, order: Callable[[], None]) -> None:
        self._orders.append(order)
        if not self._is_keeping:
            self._is_keeping = True
            self.process.do(0.0, 0.0, self._keep)

    def _keep(self) -> None:
        while self._orders:
            self._orders.popleft()()
            self._see(partial(self._liveness.tick, self.world.now))
        self._is_keeping = False
        due_s = self._liveness.next_time_s
        if due_s < inf:
            late_s = max(0.0, due_s - self.world.now)
            self.process.do(late_s, 0.0, self.see, self._liveness.tick)

    def _see(self, seen: Callable[[], list[Order]]) -> None:
        for order in seen():
            self.world.note(f"{self.process.name}: {type(order).__name__} {order.device}")
            if isinstance(order, Restart):
                self.world.spawn(partial(self._restart, order))
            elif not isinstance(order, Exclude):
                self.deployments.tell(order)
                for deployment in self.deployments:
                    if order.device not in deployment.placement.devices:
                        continue
                    if isinstance(order, DeviceReturned):
                        self._welcome(deployment, order)
                    else:
                        deployment.tell(order)
                self.deployments.told(order)

    def _welcome(self, deployment: KeptDeployment, order: DeviceReturned) -> None:
        """Say that a device is back; one that was cut off is to hear first where others are."""
        if order.device in deployment.stale:
            self.world.spawn(partial(self._reopen, deployment, order))
        else:
            deployment.tell(order)

    def _reopen(self, deployment: KeptDeployment, order: DeviceReturned) -> None:
        device = self.cluster.devices[order.device]
        deployment.stale.discard(device.name)  # first: who moves meanwhile says so again
        if self._ask(device, partial(device.open, deployment.opened_on(device.name))):
            self._do(partial(self._welcome_if_live, deployment, order))
        else:
            deployment.stale.add(device.name)
            self.see(self._liveness.suspected, device.address, 0.0)

    def _welcome_if_live(self, deployment: KeptDeployment, order: DeviceReturned) -> None:
        if back := self._liveness.returned(self.world.now, order.device):
            self._welcome(deployment, back)

    # What is done.

    def _restart(self, order: Restart) -> None:
        """Start a device again and load its stages, in a fiber."""
        name = order.device
        self._watched.pop(order.address, None)
        self._silent.add(order.address)
        if self._keeps or order.keep:
            device = self.cluster.revive(name, order.address, order.keep)
        else:
            device = self._another(name, order.address)
        if device is None or not self._use(device):
            self.see(self._liveness.start_failed, name)
            return
        self._watch(device)
        if self._keeps_pool:
            self.cluster.publish(device)

    def _another(self, name: str, address: str) -> PlayedDevice | None:
        """Return a device once the pool's keeper has started it anew, in a fiber; None: not."""
        until_s = self.world.now + _ANOTHER_S
        while self.world.now < until_s:
            found = self._published.get(name)
            if found is not None and found.address != address and found.process.is_alive:
                return found
            self.world.sleep(_AGAIN_S)
        return self.cluster.devices[name] if self.cluster.find(address) else None

    def _use(self, device: PlayedDevice) -> bool:
        """Load and open the stages of a device that has started, in a fiber; whether it could."""
        name = device.name
        for deployment in self.deployments:
            if name not in deployment.placement.devices:
                continue
            for stage in deployment.placement.on[name]:
                if not self._ask(device, partial(device.load, deployment.key, stage)):
                    return False
            deployment.move(name, device.address)
            deployment.stale.discard(name)  # as above
            if not self._ask(device, partial(device.open, deployment.opened_on(name))):
                return False
            others = [o for o in deployment.placement.devices if o != name]
            deployment.stale |= deployment.away.intersection(others)
            told = [self.cluster.devices[o] for o in others if o not in deployment.away]
            asked = [
                self._call(other, partial(other.open, deployment.opened_on(other.name)))
                for other in told
            ]
            for other, answered in zip(told, asked, strict=True):
                is_heard = self.cluster.is_heard(other.process, self.process)
                if is_heard and not answered.wait(_CALL_S):
                    return False
            if deployment.is_closed:
                self._call(device, partial(device.unload, deployment.key))
        return True

    def _ask(self, device: PlayedDevice, work: Callable[[], object]) -> bool:
        return self._call(device, work).wait(_CALL_S)

    def _call(self, device: PlayedDevice, work: Callable[[], object]) -> WorldEvent:
        """Have a device's process do something; return what is set once its answer is there."""
        answered = WorldEvent(self.world)
        late, is_told = self.cluster.fate()
        cut_s = self.cluster.cut_s

        def call() -> None:
            work()
            if is_told:
                back_s = _WAY_S + cut_s(device.process, self.process)
                self.process.do(back_s, 0.0, answered.set)

        for late_s in late:
            there_s = _WAY_S + cut_s(self.process, device.process)
            device.process.do(there_s + late_s, 0.0, call)
        return answered
