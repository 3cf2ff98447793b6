"""Supervisor of devices: watches their actors, notifies deployments, and restarts lost devices.

The channel and Ray report events of devices; `hetero.scheduler.client.liveness` decides how to
react. Only the pool supervisor stops and starts the devices of a pool. Clients of a pool compare
the version in its heartbeat with that of their device table, and read a newer table.
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
from hetero.scheduler.ray.devices import DeviceHandle, RayDevices, why_lost
from hetero.scheduler.ray.loading import StageLoader
from hetero.scheduler.ray.session import RaySession
from hetero.scheduler.types.events import DeviceLost, DeviceRemoved, DeviceReturned

_log = logging.getLogger(__name__)
P = ParamSpec("P")

#: Time limit for a device to report its stages, in seconds.
_STAGES_S: Final = 1.0
#: Seconds between two checks for overdue stages and for the nodes of lost devices.
_LOOK_S: Final = 0.5
#: Seconds that a client waits for the pool supervisor to restart a device. If the supervisor has
#: not restarted the device by then, the client uses it again.
_ANOTHER_S: Final = 10.0
#: Seconds between two checks for this restart.
_AGAIN_S: Final = 0.1


class DeviceSupervisor:
    """Supervisor of the devices that an executor's deployments use.

    `spawn`: runs a function that may block in its own, named thread.
    `replan_without`: replans a deployment without a removed device.
    `of_pool`: whether the devices belong to a pool.
    `keeps`: whether this supervisor stops and starts the devices.
    """

    def __init__(
        self,
        session: RaySession,
        devices: RayDevices,
        deployments: Deployments[RayDeployment],
        loader: StageLoader,
        spawn: Callable[[Callable[[], None], str], object],
        replan_without: Callable[[RayDeployment, DeviceRemoved], None],
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
        self._replan_without = replan_without
        self._cluster_gone = cluster_gone
        self._liveness = see.Liveness(device_timeout_s, of_pool=of_pool, restarts=keeps)
        self._keeps = keeps
        self._keeps_pool = of_pool and keeps
        #: Number of changes of the set of running devices; the removed devices of a pool.
        self.num_changes = 0
        self._removed_names: set[str] = set()
        self._channel: DirectChannel  # set by `serve`
        #: Current actors of the devices in use, by address.
        self._actors: dict[str, DeviceHandle] = {}
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        #: Devices that start because their node has returned; devices that are loading stages.
        self._returning_devices: set[str] = set()
        self._loading: set[str] = set()
        #: Held during the search for removed devices that are available again.
        self._is_looking = threading.Lock()
        #: Nodes of silent devices, each polled by a thread.
        self._polled_nodes: set[str] = set()
        #: Address -> number of client leases that the device had ended at the last check.
        self._leases_ended: dict[str, float] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def serve(self, channel: DirectChannel) -> None:
        """Start supervising, with the channel that receives heartbeats."""
        self._channel = channel
        self._thread.start()

    def close(self) -> None:
        """Stop supervising; devices that end are no longer restarted."""
        self._closed = True
        self._orders.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def watch(self, device: DeviceHandle) -> None:
        """Supervise a device that has loaded its stages; idempotent."""
        with self._lock:
            if device.address in self._actors:
                return
            self._actors[device.address] = device
            self.num_changes += 1
        self._removed_names.discard(device.descriptor.name)
        name, node = device.descriptor.name, device.descriptor.node
        self._note(self._liveness.observe_start, name, node, device.address)
        self._channel.watch(device.address)

    @property
    def live_devices(self) -> list[DeviceHandle]:
        """The devices under supervision."""
        with self._lock:
            return list(self._actors.values())

    def is_lost(self, address: str) -> bool:
        """Whether a device's process is silent, or is about to be restarted."""
        return address in self._liveness.given_up or self._channel.is_suspected(address)

    # Event handlers; they run in threads of the channel and of Ray, and must not block.

    def handle_silence(self, address: str, silent_s: float) -> None:
        """Handle a peer that became silent."""
        self._note(self._liveness.observe_silence, address, silent_s)
        device = self._actors.get(address)
        if device is not None and device.node_id not in self._polled_nodes:
            self._polled_nodes.add(device.node_id)
            self._spawn(partial(self._check_node, device), f"{device.descriptor.node}-reach")

    def channel_ended(self, address: str) -> None:
        """Handle the end of a peer's channel, which most likely means the end of its process."""
        device = self._actors.get(address)
        if device is not None:
            self._orders.put(partial(self._ask_why, device))

    def live_again(self, address: str) -> None:
        """Handle a suspected peer that responds again."""
        self._note(self._liveness.observe_answer, address)

    def messages_lost(self, address: str) -> None:
        """Handle the loss of messages from or to a peer."""
        self._note(self._liveness.messages_lost, address)

    def handle_end(self, device: DeviceHandle, error: BaseException) -> None:
        """Handle Ray's report on an actor; one that Ray cannot reach may still use the channel."""
        if isinstance(error, exceptions.ActorUnavailableError):
            self._orders.put(partial(self._devices.watch, device))
        else:
            self._orders.put(partial(self._end, device, why_lost(error)))

    # Actions, in the supervisor's thread.

    def _run(self) -> None:
        while True:
            try:
                order = self._orders.get(timeout=_LOOK_S)
            except queue.Empty:
                order = self._check
            if order is None or self._session.is_left:
                return  # an actor call would make Ray start or join another cluster
            try:
                order()
                self._run_handler(partial(self._liveness.tick, time.monotonic()))
            except ClusterError as error:
                self._cluster_gone(error)
            except Exception:  # a failure for one device must not end the supervision of the others
                _log.exception("the supervisor failed to handle an event")

    def _note(
        self,
        handler: Callable[Concatenate[float, P], list[see.Order]],
        *what: P.args,
        **more: P.kwargs,
    ) -> None:
        """Queue an event, a method of `Liveness`, for the supervisor's thread."""
        self._orders.put(
            partial(self._run_handler, partial(handler, time.monotonic(), *what, **more))
        )

    def _run_handler(self, handler: Callable[[], list[see.Order]]) -> None:
        with self._lock:
            orders = handler()
        for order in orders:
            if self._closed or self._session.is_left:
                return  # leaving Ray ends its actors
            if isinstance(order, see.Restart):
                by = "here" if self._keeps else "by the pool supervisor"
                _log.warning("device=%s is restarted %s: %s", order.device, by, order.cause)
                self._restart_soon(order)
                continue
            if isinstance(order, see.Exclude):
                self._replan_during_restart(order)
                continue
            if isinstance(order, DeviceRemoved):
                self._removed_names.add(order.device)
                self.num_changes += 1
            self._deployments.notify(order)
            for deployment in self._deployments:
                used = deployment.devices.get(order.device)
                if used is None:
                    continue
                if isinstance(order, DeviceReturned):
                    # A restarted process has not loaded its stages yet.
                    if used.address in self._actors:
                        self._report_return(deployment, used, order)
                elif isinstance(order, DeviceRemoved):
                    self._replan_without(deployment, order)
                else:
                    deployment.notify(order)
                    if isinstance(order, DeviceLost) and not order.on_the_way:
                        self._replan_stateful(deployment, order)
            self._deployments.fail_lost_tensors(order)

    def _check_node(self, device: DeviceHandle) -> None:
        """Report whether a node is cut off, while its devices are silent; runs in a thread."""
        node_id = device.node_id
        try:
            while not (self._closed or self._session.is_left):
                is_reached = self._devices.is_reached(device)
                mine = [(a, d) for a, d in self._actors.copy().items() if d.node_id == node_id]
                silent = [(a, d) for a, d in mine if self._channel.is_suspected(a)]
                if not silent:
                    return
                for address, other in silent if not is_reached else ():
                    if is_reached is None:
                        why = "its node has left the cluster"
                        self._note(self._liveness.observe_removal, other.descriptor.name, why)
                    else:
                        self._note(self._liveness.cut_off, address)
                if is_reached is None:
                    return
                time.sleep(_LOOK_S)
        except (HeteroError, exceptions.RayError) as error:
            _log.info("node=%s cannot be checked: %s", device.descriptor.node, error)
        finally:
            self._polled_nodes.discard(node_id)

    def _report_return(
        self, deployment: RayDeployment, device: DeviceHandle, order: DeviceReturned
    ) -> None:
        """Report the return of a device, after sending it the peer addresses that it missed."""
        if deployment.mark_returned_if_open(order):
            return

        def retry() -> None:
            if back := self._liveness.return_event(time.monotonic(), order.device):
                self._report_return(deployment, device, back)

        def reopen() -> None:
            try:
                deployment.open_on(order.device)
            except Exception:  # after any failure the device is suspected again
                self._note(self._liveness.observe_silence, device.address, 0.0)
            else:
                self._orders.put(retry)

        self._spawn(reopen, f"{order.device}-open")

    def _replan_during_restart(self, exclusion: see.Exclude) -> None:
        """Replan deployments without a device that is restarting, if they can be replanned."""
        if exclusion.device in self._loading:
            return  # loading the stages elsewhere would take as long
        removal = DeviceRemoved(exclusion.now_s, exclusion.device, exclusion.node, exclusion.cause)
        for deployment in self._deployments:
            if exclusion.device in deployment.devices and deployment.replan is not None:
                self._replan_without(deployment, removal)

    def _replan_stateful(self, deployment: RayDeployment, loss: DeviceLost) -> None:
        """Replan a stateful deployment without another route; do not wait for the device."""
        if deployment.stateful and deployment.replan is not None and deployment.is_stranded:
            deployment.exclude(*deployment.device_states.unavailable - {loss.device})
            removal = DeviceRemoved(loss.now_s, loss.device, loss.node, loss.cause)
            self._replan_without(deployment, removal)

    def _end(self, device: DeviceHandle, cause: str) -> None:
        self._devices.forget(device.actor_id)
        self._run_handler(
            partial(self._liveness.observe_end, time.monotonic(), device.address, cause)
        )

    def _ask_why(self, device: DeviceHandle) -> None:
        """Handle the end of a device's process, with Ray's reason if its node responds."""
        cause = "its process has ended"
        if self._devices.discovery.responds(device.node_id):
            cause = self._devices.cause_of_end(device) or cause
        self._end(device, cause)

    def _check(self) -> None:
        """Check for devices that are available again, overdue stages, and ended leases."""
        removed_names = {
            name for deployment in self._deployments for name in deployment.device_states.excluded
        }
        if self._keeps_pool:
            removed_names |= self._removed_names
        if (removed_names or self._is_news) and not self._is_looking.locked():
            self._spawn(partial(self._find, removed_names), "supervisor-look")
        for address, device in list(self._actors.items()):
            status = self._channel.status_of(address)
            overdue_s, num_leases_ended = (
                status.get("overdue_s", 0.0),
                status.get("leases_ended", 0.0),
            )
            if overdue_s:
                self._run_handler(
                    partial(
                        self._liveness.observe_overdue_run, time.monotonic(), address, overdue_s
                    )
                )
            elif num_leases_ended > self._leases_ended.setdefault(address, num_leases_ended):
                self._leases_ended[address] = num_leases_ended
                self._check_stages(device)
            # A device that failed to open its stages missed no heartbeat, so none reports its
            # return; and a client of a pool does not restart it.
            is_suspected = self._liveness.state(device.descriptor.name) is see.DeviceState.SUSPECTED
            if is_suspected and not (self._keeps or self._channel.is_suspected(address)):
                self._run_handler(partial(self._liveness.observe_answer, time.monotonic(), address))

    @property
    def _is_news(self) -> bool:
        """Whether the pool supervisor has a newer table, or is silent."""
        table = self._devices.pool_table
        if table is None:
            return False
        version = self._channel.status_of(table.address).get("version", table.version)
        return version != table.version or self._channel.is_suspected(table.address)

    def _read_table(self) -> None:
        """Read the table of the pool supervisor, and handle the devices that it restarted."""
        table = self._devices.ask_supervisor("table", False)
        self._channel.watch(table.address)
        for device in self.live_devices:
            now = table.running_devices.get(device.descriptor.name)
            if now is not None and now.actor_id != device.actor_id:
                cause = "the pool supervisor has restarted it"
                self._orders.put(partial(self._end, device, cause))

    def _check_stages(self, device: DeviceHandle) -> None:
        """Check whether a device that ended a client's lease unloaded the stages of this client."""
        name = device.descriptor.name
        mine = [deployment.key for deployment in self._deployments if name in deployment.devices]
        try:
            has_all = ray.get(device.actor.has_all.remote(mine), timeout=_STAGES_S)
        except exceptions.RayError:
            self._leases_ended[device.address] -= 1  # check again
            return
        if not has_all:
            self._run_handler(
                partial(self._liveness.observe_unloading, time.monotonic(), device.address)
            )

    def _find(self, removed_names: Collection[str]) -> None:
        """Start removed devices that are available again; runs in a thread."""
        with self._is_looking:
            try:
                if self._is_news:
                    self._read_table()
                available = self._devices.present_devices()
            except HeteroError:
                return
            for name in sorted(available.intersection(removed_names) - self._returning_devices):
                starting_states = (see.DeviceState.RESTARTING, see.DeviceState.SUSPECTED)
                if self._liveness.state(name) not in starting_states:
                    self._returning_devices.add(name)
                    self._restart_soon(see.Restart(name, "", "its node is back"))

    def _restart_soon(self, order: see.Restart) -> None:
        self._spawn(partial(self._restart, order), f"{order.device}-start")

    def _restart(self, order: see.Restart) -> None:
        """Stop a device if it still runs, start it and load its stages; runs in a thread."""
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
            self._note(self._liveness.observe_removal, name, error.message)
        except Exception as error:  # any failure is retried
            _log.info("device=%s could not be restarted: %s", name, error)
            self._note(self._liveness.start_failed, name)
        else:
            self.watch(device)
        finally:
            self._returning_devices.discard(name)
            self._loading.discard(name)

    def _give_up(self, device: DeviceHandle) -> None:
        """Kill an actor; skipped if its node does not respond."""
        self._channel.unwatch(device.address)
        self._devices.forget(device.actor_id)
        if not self._keeps:
            self._await_another(device)
        elif self._devices.discovery.responds(device.node_id):
            ray.kill(device.actor)

    def _await_another(self, device: DeviceHandle) -> None:
        """Wait until the pool supervisor has restarted a device."""
        until_s, name = time.monotonic() + _ANOTHER_S, device.descriptor.name
        while not (self._closed or self._session.is_left) and time.monotonic() < until_s:
            table = self._devices.pool_table
            assert table is not None
            now = table.running_devices.get(name)
            if name not in table.rows or (now is not None and now.actor_id != device.actor_id):
                return
            time.sleep(_AGAIN_S)

    def _start(self, name: str, *, reload: bool) -> DeviceHandle:
        """Start a device and load its stages; `reload`: into its process, which still runs."""
        device = self._devices.with_addresses([name], wait=False)[name]
        self._loading.add(name)
        for deployment in self._deployments:
            used = deployment.devices.get(name)
            if used is not None and (reload or used.address != device.address):
                deployment.devices[name] = device
                stages = deployment.placement.stages_by_device.get(name, ())
                try:
                    deployment.use_actor(name, device, self._loader.load(deployment, stages))
                except BaseException:
                    deployment.devices[name] = used  # the next start loads the stages
                    raise
                if deployment.is_closed:  # closed meanwhile; the old actor received the unload
                    device.actor.unload.remote(deployment.key)
        return device
