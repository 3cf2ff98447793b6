"""A plan on device actors: requests go by the channel, the rest through Ray."""

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
from hetero.scheduler.executor import Remade, Remake
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.ray.devices import ActorDevice
from hetero.scheduler.ray.reception import Reception
from hetero.scheduler.ray.start import RaySession
from hetero.scheduler.vocabulary import events
from hetero.scheduler.vocabulary.limits import Limits
from hetero.scheduler.vocabulary.placement import Placement, Route
from hetero.scheduler.vocabulary.plan import Stage

#: Seconds that devices may take to let go of stages.
_UNLOAD_S: Final = 15.0
#: Seconds that devices may take to hear where another one is now.
_OPEN_S: Final = 30.0


class RayDeployment(Deployment):
    """A placement on actors.

    `devices`: the placement's devices by the names that it uses.
    `sources`, `num_threads`: what the stages are loaded from, also when a device is back.
    `ask`: returns what an actor's method answers: device, method's name, arguments.
    `remake`, `stateful`: see `hetero.scheduler.executor.Executor.deploy`.
    """

    def __init__(
        self,
        key: str,
        placement: Placement,
        constants: Mapping[str, np.ndarray],
        limits: Limits,
        deployments: Deployments[RayDeployment],
        *,
        devices: Mapping[str, ActorDevice],
        sources: Sequence[StageSource],
        num_threads: Mapping[str, int],
        connect: Callable[[Receiver], Channel],
        clock_offset_s: Callable[[str], float | None] | None,
        reception: Reception,
        session: RaySession,
        ask: Callable[..., Any],
        remake: Remake | None = None,
        stateful: bool = False,
    ) -> None:
        self.devices = dict(devices)
        self.sources = tuple(sources)
        self.num_threads = dict(num_threads)
        self.remake = remake
        self.stateful = stateful
        #: Devices that are gone for good.
        self.gone: set[str] = set()
        #: Devices that are lost now, those included; and that have not heard where others are.
        self.away: set[str] = set()
        self.stale: set[str] = set()
        #: Held as a device's fate is told: what is told last is what it is.
        self._telling = threading.RLock()
        self._num_streams: dict[int, int] = {}
        self._reception = reception
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
            # Other numbers would be drawn than those that were answered.
            restores=not any(route.plan.draws for route in placement.routes),
        )

    @property
    def routes(self) -> tuple[Route, ...]:
        """Those without devices that are gone for good; all where there is none."""
        return self._whole_routes or self.placement.routes

    @property
    def has_route(self) -> bool:
        """Whether there is one without devices that are gone for good."""
        return bool(self._whole_routes)

    @property
    def is_stranded(self) -> bool:
        """Whether each route has a device that is lost now."""
        return not any(self.away.isdisjoint(r.plan.devices) for r in self.placement.routes)

    @property
    def _whole_routes(self) -> tuple[Route, ...]:
        routes = self.placement.routes
        return tuple(r for r in routes if self.gone.isdisjoint(r.plan.devices))

    def is_loaded_on(self, device: ActorDevice) -> bool:
        """Whether what a device is to have of this deployment, if anything, is in its process."""
        name = device.descriptor.name  # it is among the devices before it has its stages again
        return name not in self.devices or self._addresses[name] == device.address

    def add(
        self, made: Remade, devices: Mapping[str, ActorDevice], num_threads: Mapping[str, int]
    ) -> tuple[tuple[Stage, ...], tuple[Route, ...]]:
        """Add a placement; return what is new of its stages, and its routes."""
        addresses = {name: device.address for name, device in devices.items()}
        stages, routes = len(self.placement.stages), len(self.placement.routes)
        known = {replace(stage, index=0) for stage in self.placement.stages}
        sources = zip(made.placement.stages, made.sources, strict=True)
        whole = self.extend(made.placement, made.constants, addresses)
        self.sources += tuple(s for stage, s in sources if replace(stage, index=0) not in known)
        self.num_threads |= num_threads
        self.devices = {**self.devices, **devices}
        return whole.stages[stages:], whole.routes[routes:]

    def take_back(self, placement: Placement, sources: Sequence[StageSource]) -> None:
        """Forget what was added to a placement, as it could not be loaded."""
        self.take(placement)
        self.sources = tuple(sources)
        # Nobody keeps a device that only it used: if that is lost, no stage could be opened.
        self.devices = {n: d for n, d in self.devices.items() if n in placement.devices}

    def start(self, request: Request, inputs: Mapping[str, Value]) -> None:
        """Send the inputs to the stages that take them, and have the answer received."""
        super().start(request, inputs)
        if self._may_help(request):
            self._reception.receive_until(partial(self._runner.has_ended, request))
        else:
            self._reception.expect()

    def drop(self, request: Request) -> None:
        """Tell every device that nobody waits for the attempt."""
        super().drop(request)
        self._reception.look()

    def open(self, num_streams: Mapping[int, int], devices: Iterable[str]) -> None:
        """Have devices take tasks of their stages, `num_streams` of those that were loaded."""
        self._num_streams.update(num_streams)
        for name in devices:
            self.open_on(name)

    def use(self, name: str, device: ActorDevice, num_streams: Mapping[int, int]) -> None:
        """Send to a device's new actor from now on; it has its stages."""
        self._num_streams.update(num_streams)
        self.devices[name] = device
        self.move(name, device.address)
        self.open_on(name)
        others = {o: d for o, d in self.devices.items() if o != name}
        with self._telling:
            unheard = others.keys() & (self.away | self.gone)
            self.stale |= unheard
        told = [
            device.actor.open_stages.remote(self._opened_on(other))
            for other, device in others.items()
            if other not in unheard
        ]
        if told:
            self._session.wait(told, _OPEN_S)
        self.gone.discard(name)  # last: one that could not be opened is looked for again

    def open_on(self, name: str) -> None:
        """Tell a device where those are that its stages send to."""
        self.stale.discard(name)  # first: others that move meanwhile say so again
        try:
            self._ask(self.devices[name], "open_stages", self._opened_on(name))
        except BaseException:
            self.stale.add(name)
            raise

    def _opened_on(self, name: str) -> list[events.StageOpened]:
        """Return what a device is to know of its stages."""
        stages = [stage.index for stage in self.placement.on.get(name, ())]
        return [self.opened(i, self._num_streams[i]) for i in stages if i in self._num_streams]

    def tell(self, event: events.ClientEvent) -> None:
        """Hand in what became of a device."""
        with self._telling:
            if isinstance(event, events.DeviceLost | events.DeviceRemoved):
                self.away.add(event.device)
            elif isinstance(event, events.DeviceReturned):
                self.away.discard(event.device)
                self.gone.discard(event.device)
            self._runner.handle(event)

    def welcome(self, back: events.DeviceReturned) -> bool:
        """Hand in that a device is back, unless it has yet to hear where others are."""
        with self._telling:
            if back.device in self.stale:
                return False
            self.tell(back)
            return True

    def give_up(self, gone: events.DeviceRemoved) -> None:
        """Hand in that a device is gone for good, unless it came back meanwhile."""
        with self._telling:
            if gone.device in self.gone:
                self.tell(gone)

    def cluster_lost(self, error: ClusterError) -> None:
        """Fail every request, those to come included: nothing is left."""
        self._runner.handle(events.ClusterLost(self._runner.now_s(), error))

    def executed_nodes(self, stage: int) -> tuple[ExecutedNode, ...]:
        """Return a stage's runtime model."""
        device = self.device_of(stage)
        nodes: tuple[ExecutedNode, ...] = self._ask(device, "executed_nodes", self.key, stage)
        return nodes

    def export(self, stage: int) -> Payload:
        """Return a stage's device's own form of it."""
        payload: Payload = self._ask(self.device_of(stage), "export", self.key, stage)
        return payload

    def make(self, stage: int) -> dict[str, Value]:
        """Return what a loaded stage makes of what was given with it."""
        made: dict[str, Value] = self._ask(self.device_of(stage), "make", self.key, stage)
        return made

    def device_of(self, stage: int) -> ActorDevice:
        """Return the device that a stage is on."""
        return self.devices[self.placement.stages[stage].device]

    def _unload(self) -> None:
        if self._session.is_ours:
            refs = [device.actor.unload.remote(self.key) for device in self.devices.values()]
            with contextlib.suppress(ClusterError):  # what is gone has let go
                self._session.wait(refs, _UNLOAD_S)
