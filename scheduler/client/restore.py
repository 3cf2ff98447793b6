"""Lost states made again: the stages that made them run again, alone, on what was kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from hetero.devices.errors import (
    DeviceLostError,
    HeteroError,
    RequestCancelledError,
    TensorError,
    TensorLostError,
)
from hetero.devices.plugin.one_shot_event import WAIT_SLICE_S
from hetero.devices.plugin.program import Value, nbytes_of
from hetero.devices.plugin.remote_memory import ResidentTensor
from hetero.devices.request.promise import Promise
from hetero.devices.request.request import REPLAY, Request
from hetero.devices.request.response import StageTiming
from hetero.scheduler.channels.channel import Channel
from hetero.scheduler.client.kept import DeviceBundle, lost_tensor
from hetero.scheduler.client.past import Origin, PastJoin, PastRun, Step, copied, steps
from hetero.scheduler.client.remote_memory import RemoteMemory
from hetero.scheduler.clock import Clock
from hetero.scheduler.vocabulary.messages import Dropped, Task, Values
from hetero.scheduler.vocabulary.placement import Placement, Route

_log = logging.getLogger(__name__)

#: How often it is tried, devices being lost meanwhile.
_TRIES: Final = 3
#: Seconds that a route is waited for where no request does it, and after which it is looked for
#: again.
_ROUTE_S: Final = 60.0
_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Way:
    """Where stages run again.

    `route`: of `placement`, with devices that are all heard.
    `is_given`: whether an input was loaded with a stage of the placement.
    """

    placement: Placement
    route: Route
    channel: Channel
    addresses: Mapping[str, str]
    is_given: Callable[[int, str], bool]


class Restorer:
    """Has stages of a deployment run again.

    `ids`: gives request ids, ascending, as its requests' own.
    `live_route`: returns a route that has all its devices, None where there is none now.
    """

    def __init__(
        self,
        key: str,
        memory: RemoteMemory,
        clock: Clock,
        ids: Iterator[int],
        *,
        way: Callable[[int], Way],
        live_route: Callable[[], int | None],
    ) -> None:
        self._way = way
        self._live_route = live_route
        #: Requests whose states are being made again.
        self._begun: set[Request] = set()
        self._closed = False
        self._key = key
        self._memory = memory
        self._clock = clock
        self._ids = ids
        #: What runs now, by request id, and the devices that give its inputs.
        self._awaited: dict[int, tuple[Promise[Mapping[str, Value]], set[str]]] = {}

    def remember(
        self,
        request: Request,
        route: Route,
        addresses: Mapping[str, str],
        inputs: Mapping[str, Value],
        made: Mapping[str, Value],
        runs: Sequence[StageTiming],
    ) -> None:
        """Have the states that an attempt made know what they were made by."""
        sent: dict[str, ResidentTensor[DeviceBundle]] = {}
        bundles: dict[int, DeviceBundle] = {}
        for number, name in route.plan.crossing:
            if number not in bundles:
                device = route.plan.stages[number].device
                task = Task(request, route.stages[number])
                bundles[number] = self._memory.sent(device, addresses[device], task)
            sent[name] = ResidentTensor(bundles[number], name)
        own = {value.bundle for value in made.values() if type(value) is ResidentTensor}
        given: dict[str, Value | Origin] = {}
        for name, value in inputs.items():
            if type(value) is not ResidentTensor:
                given[name] = copied(value)
            elif value.name in value.bundle.copies:
                given[name] = value.bundle.copies[value.name]
            elif value.bundle.past is not None:
                given[name] = Origin(value.bundle.past, value.name)
            else:  # it was still to be made as this run began, and has no past now
                for bundle in own:
                    bundle.past_nbytes = None
                return
        nbytes = sum(run.output_nbytes for run in runs) - sum(map(_size, made.values()))
        restore = partial(self.restore_idle, request.restore_s)
        past = PastRun(given, sent, max(0, nbytes), route, runs, restore)
        for bundle in own:
            bundle.past = past

    def begin(
        self,
        lost: Sequence[DeviceBundle],
        request: Request,
        *,
        is_wanted: Callable[[], bool],
        then: Callable[[], object],
        failed: Callable[[BaseException], object],
    ) -> None:
        """Have an attempt's states made again, in a thread, while somebody waits for it.

        `then`, `failed`: one of them is called at the end, if it is still wanted.
        """
        if request in self._begun:
            return  # that looks itself at what is lost

        def work() -> None:
            try:
                try:
                    self._restore(lost, self._way(request.route), request.restore_s, is_wanted)
                finally:
                    self._begun.discard(request)
                if is_wanted():
                    then()
            except RequestCancelledError:
                return
            except Exception as error:  # whatever it is, the caller must hear of it
                failed(error.with_traceback(None))

        self._begun.add(request)
        self._clock.spawn(work, f"{self._key}-restore")

    def restore_idle(self, most_s: float, lost: Sequence[DeviceBundle]) -> None:
        """Have states made again that no request reads now, once a route has its devices.

        Raises TensorLostError: that cannot be.
        """
        until_s, pause = self._clock.now_s() + _ROUTE_S, self._clock.event()
        while (route := self._live_route()) is None:
            if self._closed or self._clock.now_s() > until_s:
                raise lost_tensor("", lost[0])
            pause.wait(_LOOK_S)
        self._restore(lost, self._way(route), most_s, lambda: not self._closed)

    def close(self) -> None:
        """Wait for nothing any more."""
        self._closed = True

    def _restore(
        self, lost: Sequence[DeviceBundle], way: Way, most_s: float, is_wanted: Callable[[], bool]
    ) -> None:
        """Have states that are lost made again, in no more than `most_s` of stages' runs.

        Raises TensorLostError: that cannot be; RequestCancelledError: nobody waits any more.
        """
        plan, route = way.route.plan, way.route
        for left in reversed(range(_TRIES)):
            todo, uses = steps(
                lost,
                plan,
                lambda i, n: way.is_given(route.stages[i], n),
                self._memory.is_lost,
                most_s,
            )
            num_runs = sum(len(step.stages) for step in todo)
            _log.info(
                "model=%s: states that device %s had are made again by %d runs",
                plan.name,
                lost[0].device,
                num_runs,
            )
            try:
                made = self._made(todo, uses, way, is_wanted)
                new = [_moved(bundle, made) for bundle in lost]
            except RequestCancelledError:
                raise
            except HeteroError as error:
                error.with_traceback(None)  # it leads to the tensors
                if not left:
                    raise TensorLostError(
                        f"states of device {lost[0].device} are lost with it, and could not be "
                        f"made again: {error}",
                        port="",
                        device=lost[0].device,
                    ) from error
            else:
                for bundle, other in zip(lost, new, strict=True):
                    bundle.move_to(other)
                return

    def received(
        self, request: Request, made: Mapping[str, Value], error: BaseException | None
    ) -> None:
        """Take in what came of a run; what comes too late is freed."""
        promise, _ = self._awaited.pop(request.id, (None, ()))
        if promise is None:
            return
        if error is None:
            promise.set_result(made)
        else:
            promise.set_exception(error)

    def interrupt(self, device: str) -> None:
        """Have what waits for a device's tensors tried again: what it sends may be lost."""
        for number, (promise, holders) in list(self._awaited.items()):
            if device in holders and number in self._awaited:
                del self._awaited[number]
                promise.set_exception(_lost(device))

    def _made(
        self, todo: Sequence[Step], uses: dict[Origin, int], way: Way, is_wanted: Callable[[], bool]
    ) -> dict[Origin, Value]:
        """Do what is to be done; return what nothing of it has used."""
        made: dict[Origin, Value] = {}

        def take(origin: Origin) -> Value:
            uses[origin] -= 1
            return made[origin] if uses[origin] else made.pop(origin)

        for step in todo:
            past = step.past
            if isinstance(past, PastJoin):
                values = self._joined(past, step, take)
            else:
                assert isinstance(past, PastRun)
                values = self._run(past, step, take, way, is_wanted)
            made.update((Origin(past, name), values[name]) for name in step.names)
        return made

    def _joined(
        self, past: PastJoin, step: Step, take: Callable[[Origin], Value]
    ) -> Mapping[str, Value]:
        parts = {}
        for name in step.names:
            rows, layout = past.parts[name]
            tensors = [(take(origin).tensor, which) for origin, which in rows]
            parts[name] = tensors, layout
        return self._memory.join(parts)

    def _run(
        self,
        past: PastRun,
        step: Step,
        take: Callable[[Origin], Value],
        way: Way,
        is_wanted: Callable[[], bool],
    ) -> Mapping[str, Value]:
        """Run stages again; return what they made, and have their devices keep what they did."""
        plan, route = way.route.plan, way.route
        values: dict[str, Value] = {}
        wires = {wire.tensor for wire in plan.wires}
        crossing = {name for _, name in plan.crossing}
        for number in step.stages:
            stage, place = plan.stages[number], route.stages[number]
            inputs: dict[str, Value] = {}
            for name in stage.inputs:
                if way.is_given(place, name):
                    continue
                if name not in values:
                    value = past.inputs[name] if name in past.inputs else past.sent[name]
                    values[name] = take(value) if isinstance(value, Origin) else value
                inputs[name] = values[name]
            keep = tuple(name for name in stage.outputs if name in step.names)
            try:
                made, sent = self._run_stage(place, inputs, keep, way, is_wanted)
            except TensorError as error:  # it had to give way there
                past.sent.pop(error.data.get("port", ""), None)
                raise
            again = {name: ResidentTensor(sent, name) for name in stage.outputs if name in wires}
            past.sent.update((name, kept) for name, kept in again.items() if name in crossing)
            values |= again
            values |= made
        return values

    def _run_stage(
        self,
        number: int,
        inputs: Mapping[str, Value],
        keep: tuple[str, ...],
        way: Way,
        is_wanted: Callable[[], bool],
    ) -> tuple[Mapping[str, Value], DeviceBundle]:
        """Run a stage again; return what is kept of its outputs, and what it would have sent."""
        stage = way.placement.stages[number]
        address = way.addresses[stage.device]
        request = Request(
            deployment=self._key,
            id=next(self._ids),
            attempt=1,
            route=REPLAY,
            restore_s=1.0,
            resident_outputs=keep,
        )
        task = Task(request, number)
        bundles = [value.bundle for value in inputs.values() if type(value) is ResidentTensor]
        holders = {bundle.device: bundle.address for bundle in bundles}
        promise: Promise[Mapping[str, Value]] = Promise()
        answered = self._clock.event()
        promise.add_done_callback(lambda _: answered.set())
        self._awaited[request.id] = promise, {stage.device, *holders}
        self._memory.again.add(request.id)
        try:
            self._memory.expect()
            others = self._memory.give(way.channel, task, address, inputs)
            if others is not None:
                way.channel.send(address, Values(task, others))
            while not promise.done():
                if not is_wanted():
                    raise RequestCancelledError("nobody waits for these states any more.")
                if any(map(self._memory.is_lost, {address, *holders.values()})):
                    raise _lost(stage.device)
                answered.wait(WAIT_SLICE_S)
            error = promise.exception()
            if error is None:
                return promise.result(), self._memory.sent(stage.device, address, task)
            try:
                raise error
            finally:  # else it would hold itself, and with it the tensors
                del promise, error
        except BaseException:
            self._awaited.pop(request.id, None)
            way.channel.send(address, Dropped(request))
            raise
        finally:
            self._memory.again.discard(request.id)


def _size(value: Value) -> int:
    """Return the bytes of an output, wherever it is."""
    return value.tensor.nbytes if type(value) is ResidentTensor else nbytes_of(value)


def _moved(old: DeviceBundle, made: Mapping[Origin, Value]) -> DeviceBundle:
    """Return where a bundle's tensors are that were made again.

    Raises TensorLostError: they are not together.
    """
    assert old.past is not None
    values = [made[Origin(old.past, name)] for name in old.specs]
    bundles: set[DeviceBundle | None] = {
        value.bundle if type(value) is ResidentTensor else None for value in values
    }
    found = bundles.pop() if len(bundles) == 1 else None
    if found is None:
        raise TensorLostError(
            f"states that device {old.device} kept are made by several now; make them anew.",
            port="",
            device=old.device,
        )
    return found


def _lost(device: str) -> DeviceLostError:
    return DeviceLostError(
        f"device {device} is gone as states were made again.", device=device, node="", attempt=0
    )
