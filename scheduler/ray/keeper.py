"""The keeper of devices: it watches their actors, tells deployments, and starts what is lost again.

The channel and Ray report what becomes of devices; `hetero.scheduler.client.liveness` decides what
is to be done about it. A pool's devices are ended and started by the pool's keeper alone; its
clients look at the version in that one's status, and read its table when there is another.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Concatenate, Final, ParamSpec

import ray
from ray import exceptions

from hetero.devices.errors import ClusterError, HeteroError, UnknownDeviceError
from hetero.scheduler.channels.direct import DirectChannel
from hetero.scheduler.client import liveness as see
from hetero.scheduler.client.deployments import Deployments
from hetero.scheduler.ray.deployment import RayDeployment
from hetero.scheduler.ray.devices import ActorDevice, RayDevices, why_lost
from hetero.scheduler.ray.loading import StageLoader
from hetero.scheduler.ray.start import RaySession
from hetero.scheduler.vocabulary.events import DeviceLost, DeviceRemoved, DeviceReturned

_log = logging.getLogger(__name__)
P = ParamSpec("P")

#: Seconds that Ray may take to say why a process has ended.
_REASON_S: Final = 1.0
#: Seconds between two looks at how long stages have run, and at the nodes of devices that are away.
_LOOK_S: Final = 0.5
#: Seconds after which a pool's device that its keeper has not started anew is taken for well.
_ANOTHER_S: Final = 10.0
#: Seconds between two looks whether it has.
_AGAIN_S: Final = 0.1


class DeviceKeeper:
    """Keeps the devices of an executor's deployments alive.

    `spawn`: has what may wait done by a thread of its own, with a name.
    `do_without`: has a deployment do without a device that is gone for good.
    `of_pool`: whether the devices are a pool's; `keeps`: whether they are ended and started here.
    """

    def __init__(
        self,
        session: RaySession,
        devices: RayDevices,
        deployments: Deployments[RayDeployment],
        loader: StageLoader,
        spawn: Callable[[Callable[[], None], str], object],
        do_without: Callable[[RayDeployment, DeviceRemoved], None],
        cluster_gone: Callable[[ClusterError], None],
        *,
        device_timeout_s: float,
        of_pool: bool = False,
        keeps: bool = True,
    ) -> None:
        self._session = session
        self._devices = devices
        self._deployments = deployments
        self._loader = loader
        self._spawn = spawn
        self._do_without = do_without
        self._cluster_gone = cluster_gone
        self._liveness = see.Liveness(device_timeout_s, of_pool=of_pool, restarts=keeps)
        self._keeps = keeps
        self._keeps_pool = of_pool and keeps
        #: How many times the devices that live have changed; those of a pool that are gone.
        self.num_changes = 0
        self._gone: set[str] = set()
        self._channel: DirectChannel  # once it serves
        #: The present actors of the devices that deployments use, by address.
        self._actors: dict[str, ActorDevice] = {}
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        #: Devices whose node is back, that are being started; those that load their stages.
        self._coming: set[str] = set()
        self._loading: set[str] = set()
        #: Held while devices that are gone are looked for.
        self._is_looking = threading.Lock()
        #: Nodes of silent devices, which are asked again and again.
        self._asked: set[str] = set()
        #: Address -> how many clients a device has given up, as we last saw.
        self._leases_ended: dict[str, float] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="keeper", daemon=True)

    def serve(self, channel: DirectChannel) -> None:
        """Begin, with the channel on which devices are heard."""
        self._channel = channel
        self._thread.start()

    def close(self) -> None:
        """Let devices die."""
        self._closed = True
        self._orders.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def watch(self, device: ActorDevice) -> None:
        """Keep a device that has its stages from now on; again is harmless."""
        with self._lock:
            if device.address in self._actors:
                return
            self._actors[device.address] = device
            self.num_changes += 1
        self._gone.discard(device.descriptor.name)
        name, node = device.descriptor.name, device.descriptor.node
        self._note(self._liveness.started, name, node, device.address)
        self._channel.watch(device.address)

    @property
    def live(self) -> list[ActorDevice]:
        """The devices that are kept now."""
        with self._lock:
            return list(self._actors.values())

    def is_lost(self, address: str) -> bool:
        """Whether a device's process is not heard, or was given up and is ended soon."""
        return address in self._liveness.given_up or self._channel.is_suspected(address)

    # What is seen, in threads of the channel's and of Ray's, which must not be kept.

    def suspected(self, address: str, silent_s: float) -> None:
        """Take in that an address cannot be reached."""
        self._note(self._liveness.suspected, address, silent_s)
        device = self._actors.get(address)
        if device is not None and device.node_id not in self._asked:
            self._asked.add(device.node_id)
            self._spawn(partial(self._reach, device), f"{device.descriptor.node}-reach")

    def channel_ended(self, address: str) -> None:
        """Take in that the channel at an address has ended, and most likely its process."""
        device = self._actors.get(address)
        if device is not None:
            self._orders.put(partial(self._ask_why, device))

    def live_again(self, address: str) -> None:
        """Take in that an address that was suspected answers."""
        self._note(self._liveness.answered, address)

    def messages_lost(self, address: str) -> None:
        """Take in that messages from or to an address were lost."""
        self._note(self._liveness.messages_lost, address)

    def ended(self, device: ActorDevice, error: BaseException) -> None:
        """Take in what Ray says of an actor; one that it cannot reach may be heard all the same."""
        if isinstance(error, exceptions.ActorUnavailableError):
            self._orders.put(partial(self._devices.watch, device))
        else:
            self._orders.put(partial(self._end, device, why_lost(error)))

    # What is done, in the keeper's thread.

    def _work(self) -> None:
        while True:
            try:
                order = self._orders.get(timeout=_LOOK_S)
            except queue.Empty:
                order = self._look
            if order is None or self._session.is_left:
                return  # a call to an actor would have Ray start, or join, another cluster
            try:
                order()
                self._see(partial(self._liveness.tick, time.monotonic()))
            except ClusterError as error:
                self._cluster_gone(error)
            except Exception:  # one device's trouble must not end the care for the others
                _log.exception("devices go on being kept")

    def _note(
        self,
        seen: Callable[Concatenate[float, P], list[see.Order]],
        *what: P.args,
        **more: P.kwargs,
    ) -> None:
        """Have the keeper's thread take in what is seen now: one of the liveness's methods."""
        self._orders.put(partial(self._see, partial(seen, time.monotonic(), *what, **more)))

    def _see(self, seen: Callable[[], list[see.Order]]) -> None:
        with self._lock:
            orders = seen()
        for order in orders:
            if self._closed or self._session.is_left:
                return  # actors end with the Ray that this process leaves
            if isinstance(order, see.Restart):
                by = "here" if self._keeps else "by its pool's keeper"
                _log.warning("device=%s is started again %s: %s", order.device, by, order.cause)
                self._restart_soon(order)
                continue
            if isinstance(order, see.Exclude):
                self._plan_around(order)
                continue
            if isinstance(order, DeviceRemoved):
                self._gone.add(order.device)
                self.num_changes += 1
            self._deployments.tell(order)
            for deployment in self._deployments:
                used = deployment.devices.get(order.device)
                if used is None:
                    continue
                if isinstance(order, DeviceReturned):
                    # Another process does not have its stages yet.
                    if used.address in self._actors:
                        self._welcome(deployment, used, order)
                elif isinstance(order, DeviceRemoved):
                    self._do_without(deployment, order)
                else:
                    deployment.tell(order)
                    if isinstance(order, DeviceLost) and not order.on_the_way:
                        self._stand_in(deployment, order)
            self._deployments.told(order)

    def _reach(self, of: ActorDevice) -> None:
        """While devices of a node are silent, say whether it is cut off; in a thread."""
        node_id = of.node_id
        try:
            while not (self._closed or self._session.is_left):
                is_reached = self._devices.is_reached(of)
                mine = [(a, d) for a, d in self._actors.copy().items() if d.node_id == node_id]
                silent = [(a, d) for a, d in mine if self._channel.is_suspected(a)]
                if not silent:
                    return
                for address, device in silent if not is_reached else ():
                    if is_reached is None:
                        why = "its node has left the cluster"
                        self._note(self._liveness.removed, device.descriptor.name, why)
                    else:
                        self._note(self._liveness.cut_off, address)
                if is_reached is None:
                    return
                time.sleep(_LOOK_S)
        except (HeteroError, exceptions.RayError) as error:
            _log.info("node=%s cannot be looked for: %s", of.descriptor.node, error)
        finally:
            self._asked.discard(node_id)

    def _welcome(
        self, deployment: RayDeployment, device: ActorDevice, order: DeviceReturned
    ) -> None:
        """Say that a device is back; one that was cut off is to hear first where others are."""
        if deployment.welcome(order):
            return

        def tell() -> None:
            if back := self._liveness.returned(time.monotonic(), order.device):
                self._welcome(deployment, device, back)

        def reopen() -> None:
            try:
                deployment.open_on(order.device)
            except Exception:  # whatever it is, the device is not left
                self._note(self._liveness.suspected, device.address, 0.0)
            else:
                self._orders.put(tell)

        self._spawn(reopen, f"{order.device}-open")

    def _plan_around(self, away: see.Exclude) -> None:
        """Have deployments that can be placed anew do without a device, until it has started."""
        if away.device in self._loading:
            return  # elsewhere its stages would take as long
        gone = DeviceRemoved(away.now_s, away.device, away.node, away.cause)
        for deployment in self._deployments:
            if away.device in deployment.devices and deployment.remake is not None:
                self._do_without(deployment, gone)

    def _stand_in(self, deployment: RayDeployment, lost: DeviceLost) -> None:
        """Have a stateful deployment without another route do without a device that may return."""
        if deployment.stateful and deployment.remake is not None and deployment.is_stranded:
            deployment.gone |= deployment.away - {lost.device}
            gone = DeviceRemoved(lost.now_s, lost.device, lost.node, lost.cause)
            self._do_without(deployment, gone)

    def _end(self, device: ActorDevice, cause: str) -> None:
        self._devices.forget(device.actor_id)
        self._see(partial(self._liveness.ended, time.monotonic(), device.address, cause))

    def _ask_why(self, device: ActorDevice) -> None:
        """Take in that a device's process has ended, with Ray's reason if its node can give it."""
        cause = "its process has ended"
        if self._devices.survey.answers(device.node_id):
            try:
                ray.get(device.actor.ping.remote(), timeout=_REASON_S)
            except exceptions.ActorDiedError as error:
                cause = why_lost(error)
            except exceptions.RayError:
                pass
        self._end(device, cause)

    def _look(self) -> None:
        """Look for devices that are listed again, and for stages that hang."""
        gone = {name for deployment in self._deployments for name in deployment.gone}
        if self._keeps_pool:
            gone |= self._gone
        if (gone or self._is_news) and not self._is_looking.locked():
            self._spawn(partial(self._find, gone), "keeper-look")
        for address, device in list(self._actors.items()):
            status = self._channel.status_of(address)
            overdue_s, ended = status.get("overdue_s", 0.0), status.get("leases_ended", 0.0)
            if overdue_s:
                self._see(partial(self._liveness.overdue, time.monotonic(), address, overdue_s))
            elif ended > self._leases_ended.setdefault(address, ended):
                self._leases_ended[address] = ended
                self._check_stages(device)

    @property
    def _is_news(self) -> bool:
        """Whether a pool's keeper has something new to say, or is another."""
        table = self._devices.pool_table
        if table is None:
            return False
        version = self._channel.status_of(table.address).get("version", table.version)
        return version != table.version or self._channel.is_suspected(table.address)

    def _read_table(self) -> None:
        """Read what the pool's keeper says, and see what it has started anew."""
        table = self._devices.ask_keeper("table", False)
        self._channel.watch(table.address)
        for device in self.live:
            now = table.started.get(device.descriptor.name)
            if now is not None and now.actor_id != device.actor_id:
                cause = "its pool's keeper has started it anew"
                self._orders.put(partial(self._end, device, cause))

    def _check_stages(self, device: ActorDevice) -> None:
        """See whether a device that has given up a client has given up this one."""
        name = device.descriptor.name
        mine = [deployment.key for deployment in self._deployments if name in deployment.devices]
        try:
            has_all = ray.get(device.actor.has_all.remote(mine), timeout=_REASON_S)
        except exceptions.RayError:
            self._leases_ended[device.address] -= 1  # look again
            return
        if not has_all:
            self._see(partial(self._liveness.unloaded, time.monotonic(), device.address))

    def _find(self, gone: Collection[str]) -> None:
        """Start those of the gone devices that are there again; in a thread."""
        with self._is_looking:
            try:
                if self._is_news:
                    self._read_table()
                there = self._devices.there()
            except HeteroError:
                return
            for name in sorted(there.intersection(gone) - self._coming):
                coming = (see.DeviceState.RESTARTING, see.DeviceState.SUSPECTED)
                if self._liveness.state(name) not in coming:
                    self._coming.add(name)
                    self._restart_soon(see.Restart(name, "", "its node is back"))

    def _restart_soon(self, order: see.Restart) -> None:
        self._spawn(partial(self._restart, order), f"{order.device}-start")

    def _restart(self, order: see.Restart) -> None:
        """End what is left of a device, start it again and load its stages; in a thread."""
        name = order.device
        with self._lock:
            old = self._actors.pop(order.address, None)
            self.num_changes += 1
            self._leases_ended.pop(order.address, None)
        try:
            if old is not None and not order.keep:
                self._give_up(old)
            device = self._start(name, reload=order.keep)
        except UnknownDeviceError as error:
            self._note(self._liveness.removed, name, error.message)
        except Exception as error:  # whatever it is, the device is tried again
            _log.info("device=%s is not back: %s", name, error)
            self._note(self._liveness.start_failed, name)
        else:
            self.watch(device)
        finally:
            self._coming.discard(name)
            self._loading.discard(name)

    def _give_up(self, device: ActorDevice) -> None:
        """End an actor, whatever it does; on a node that does not answer it is left."""
        self._channel.unwatch(device.address)
        self._devices.forget(device.actor_id)
        if not self._keeps:
            self._await_another(device)
        elif self._devices.survey.answers(device.node_id):
            ray.kill(device.actor)

    def _await_another(self, device: ActorDevice) -> None:
        """Wait until a pool's keeper has started a device anew."""
        until_s, name = time.monotonic() + _ANOTHER_S, device.descriptor.name
        while not (self._closed or self._session.is_left) and time.monotonic() < until_s:
            table = self._devices.pool_table
            assert table is not None
            now = table.started.get(name)
            if name not in table.rows or (now is not None and now.actor_id != device.actor_id):
                return
            time.sleep(_AGAIN_S)

    def _start(self, name: str, *, reload: bool) -> ActorDevice:
        """Start a device and load what it had; `reload`: into its process, which goes on."""
        device = self._devices.reached([name], wait=False)[name]
        self._loading.add(name)
        for deployment in self._deployments:
            used = deployment.devices.get(name)
            if used is not None and (reload or used.address != device.address):
                deployment.devices[name] = device
                stages = deployment.placement.on.get(name, ())
                try:
                    deployment.use(name, device, self._loader.load(deployment, stages))
                except BaseException:
                    deployment.devices[name] = used  # the next start is to load them
                    raise
                if deployment.is_closed:  # as this went on, and had the old actor unload them
                    device.actor.unload.remote(deployment.key)
        return device
