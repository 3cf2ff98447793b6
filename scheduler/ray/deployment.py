"""Deployment on device actors; requests use the channel, all other calls use Ray."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from hetero.devices.errors import ClusterError
from hetero.devices.plugin.program import ExecutedNode, Payload, Value
from hetero.devices.request.request import Request
from hetero.scheduler.channels.channel import Channel, Receiver
from hetero.scheduler.client.deployment import Deployment
from hetero.scheduler.client.deployments import Deployments
from hetero.scheduler.client.device_states import DeploymentDevices
from hetero.scheduler.executor import Replan, ReplannedModel
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.ray.devices import DeviceHandle
from hetero.scheduler.ray.receiver import MessageReceiver
from hetero.scheduler.ray.session import RaySession
from hetero.scheduler.types import events
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.placement import Placement, Route
from hetero.scheduler.types.plan import Stage

#: Time limit for devices to unload stages, in seconds.
_UNLOAD_S: Final = 15.0
#: Time limit for devices to receive the new address of another device, in seconds.
_OPEN_S: Final = 30.0


class RayDeployment(Deployment):
    """Placement whose stages run on Ray actors.

    `devices`: the placement's devices, by the names in the placement.
    `sources`, `num_threads`: the inputs for loading stages, also after a device returns.
    `ask`: calls an actor's method and returns its result; takes device, method name, arguments.
    `replan`, `stateful`: see `hetero.scheduler.executor.Executor.deploy`.
    `exclude`: excludes a removed device, and replans the deployment if no route remains.
    """

    def __init__(
        self,
        key: str,
        placement: Placement,
        constants: Mapping[str, np.ndarray],
        limits: Limits,
        deployments: Deployments[RayDeployment],
        *,
        devices: Mapping[str, DeviceHandle],
        sources: Sequence[StageSource],
        num_threads: Mapping[str, int],
        connect: Callable[[Receiver], Channel],
        clock_offset_s: Callable[[str], float | None] | None,
        receiver: MessageReceiver,
        session: RaySession,
        ask: Callable[..., Any],
        replan: Replan | None = None,
        exclude: Callable[[RayDeployment, events.DeviceRemoved], None],
        stateful: bool = False,
    ) -> None:
        self.devices = dict(devices)
        self.sources = tuple(sources)
        self.num_threads = dict(num_threads)
        self.replan = replan
        self._exclude = exclude
        self.stateful = stateful
        #: Which devices are loaded, absent or excluded.
        self.device_states = DeploymentDevices()
        #: Serializes the changes of `device_states` and their events for requests, so that the last
        #: event determines the state of a device.
        self._events_lock = threading.RLock()
        self._num_streams: dict[int, int] = {}
        self._receiver = receiver
        self._session = session
        self._ask = ask
        super().__init__(
            key,
            placement,
            constants,
            limits,
            deployments,
            connect=connect,
            addresses={name: device.address for name, device in devices.items()},
            clock_offset_s=clock_offset_s,
            # Rerun stages would draw other random numbers than those in earlier results.
            restores=not any(route.plan.draws for route in placement.routes),
        )

    @property
    def excluded_devices(self) -> frozenset[str]:
        """The devices that the deployment is planned without."""
        return self.device_states.excluded

    @property
    def is_stranded(self) -> bool:
        """Whether every route contains a device that is lost now."""
        return not any(
            self.device_states.unavailable.isdisjoint(r.plan.devices) for r in self.placement.routes
        )

    def is_loaded_on(self, device: DeviceHandle) -> bool:
        """Whether the process of a device has loaded its stages of this deployment, if any."""
        name = device.descriptor.name  # a restarted device is in `devices` before it has stages
        return name not in self.devices or self._addresses[name] == device.address

    def add(
        self,
        replanned: ReplannedModel,
        devices: Mapping[str, DeviceHandle],
        num_threads: Mapping[str, int],
    ) -> tuple[tuple[Stage, ...], tuple[Route, ...]]:
        """Add a placement; return its new stages and its routes."""
        addresses = {name: device.address for name, device in devices.items()}
        stages, routes = len(self.placement.stages), len(self.placement.routes)
        present_stages = {replace(stage, index=0) for stage in self.placement.stages}
        sources = zip(replanned.placement.stages, replanned.sources, strict=True)
        whole = self.extend(replanned.placement, replanned.constants, addresses)
        self.sources += tuple(
            s for stage, s in sources if replace(stage, index=0) not in present_stages
        )
        self.num_threads |= num_threads
        self.devices = {**self.devices, **devices}
        return whole.stages[stages:], whole.routes[routes:]

    def take_back(self, placement: Placement, sources: Sequence[StageSource]) -> None:
        """Restore an earlier placement after the stages of an added one failed to load."""
        self.switch_to(placement)
        self.sources = tuple(sources)
        # No supervisor watches devices of the added placement only; if one is lost, opening fails.
        self.devices = {n: d for n, d in self.devices.items() if n in placement.devices}

    def start(self, request: Request, inputs: Mapping[str, Value]) -> None:
        """Send the inputs to the stages that read them, and start receiving the result."""
        super().start(request, inputs)
        if request.inline and self._may_help(request):
            self._receiver.receive_until(partial(self._runner.has_ended, request))
        else:
            self._receiver.expect()

    def drop(self, request: Request) -> None:
        """Cancel the attempt on every device."""
        super().drop(request)
        self._receiver.check_end()

    def open(self, num_streams: Mapping[int, int], devices: Iterable[str]) -> None:
        """Make devices accept tasks for loaded stages; `num_streams`: stage -> parallel runs."""
        self._num_streams.update(num_streams)
        for name in devices:
            self.open_on(name)

    def use_actor(self, name: str, device: DeviceHandle, num_streams: Mapping[int, int]) -> None:
        """Use the new actor of a device, which has loaded its stages, from now on."""
        self._num_streams.update(num_streams)
        self.devices[name] = device
        self.set_address(name, device.address)
        self.open_on(name)
        with self._events_lock:
            reachable = self.device_states.mark_moved(name, self.devices)
        refs = [
            self.devices[other].actor.open_stages.remote(self._opened_on(other))
            for other in reachable
        ]
        if refs:
            self._session.wait(refs, _OPEN_S)
        with self._events_lock:  # last: if opening fails, the supervisor retries
            self.device_states.mark_loaded(name)

    def open_on(self, name: str) -> None:
        """Send a device the addresses of the devices that its stages send to."""
        with (
            self._events_lock
        ):  # first: a device that moves meanwhile makes this one unopened again
            self.device_states.mark_opening(name)
        try:
            self._ask(self.devices[name], "open_stages", self._opened_on(name))
        except BaseException:
            with self._events_lock:
                self.device_states.mark_open_failed(name)
            raise

    def _opened_on(self, name: str) -> list[events.StageOpened]:
        """Return the messages that open the stages of a device."""
        stages = [stage.index for stage in self.placement.stages_by_device.get(name, ())]
        return [
            self.stage_description(i, self._num_streams[i])
            for i in stages
            if i in self._num_streams
        ]

    def notify(self, event: events.ClientEvent) -> None:
        """Apply an event of a device."""
        with self._events_lock:
            if isinstance(event, events.DeviceLost | events.DeviceRemoved):
                self.device_states.mark_lost(event.device)
            self._runner.handle(event)

    def mark_returned_if_open(self, event: events.DeviceReturned) -> bool:
        """Apply the return of a device, unless it still has outdated peer addresses."""
        with self._events_lock:
            is_opened = self.device_states.mark_returned(event.device)
            if is_opened:
                self.notify(event)
            return is_opened

    def give_up(self, removal: events.DeviceRemoved) -> None:
        """Apply the removal of a device, unless it has returned."""
        with self._events_lock:
            if removal.device in self.device_states.excluded:
                self.notify(removal)

    def replan_without(self, device: str, cause: str) -> None:
        """Exclude a live device, and replan in the background; see `Deployment.replan_without`.

        If the device's process ends, its successor is used again.
        """
        if self.replan is None:
            super().replan_without(device, cause)
            return
        if not self._has_route_without(device):
            self.replan({*self.excluded_devices, device})  # raises before anything changes
        node = self.devices[device].descriptor.node
        self._exclude(self, events.DeviceRemoved(self._runner.now_s(), device, node, cause))

    def exclude(self, *devices: str) -> None:
        """Plan without some devices from now on."""
        with self._events_lock:
            self.device_states.exclude(devices)

    def cluster_lost(self, error: ClusterError) -> None:
        """Fail all present and future requests."""
        self._runner.handle(events.ClusterLost(self._runner.now_s(), error))

    def executed_nodes(self, stage: int) -> tuple[ExecutedNode, ...]:
        """Return the runtime model of a stage."""
        device = self.device_of(stage)
        nodes: tuple[ExecutedNode, ...] = self._ask(device, "executed_nodes", self.key, stage)
        return nodes

    def export(self, stage: int) -> Payload:
        """Return a compiled stage as a payload of its device."""
        payload: Payload = self._ask(self.device_of(stage), "export", self.key, stage)
        return payload

    def make(self, stage: int) -> dict[str, Value]:
        """Run a constant stage and return its outputs."""
        outputs: dict[str, Value] = self._ask(self.device_of(stage), "make", self.key, stage)
        return outputs

    def device_of(self, stage: int) -> DeviceHandle:
        """Return the device of a stage."""
        return self.devices[self.placement.stages[stage].device]

    def _unload(self) -> None:
        if self._session.is_ours:
            refs = [device.actor.unload.remote(self.key) for device in self.devices.values()]
            with contextlib.suppress(ClusterError):  # a lost device has nothing to unload
                self._session.wait(refs, _UNLOAD_S)
