"""Recomputes lost states by rerunning the stages recorded in their lineage."""

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
from hetero.scheduler.client.device_tensors import DeviceBundle, lost_tensor
from hetero.scheduler.client.lineage import JoinNode, Origin, RunNode, Step, copy_value, steps
from hetero.scheduler.client.remote_tensors import RemoteMemory
from hetero.scheduler.clock import Clock
from hetero.scheduler.types.messages import Dropped, Task, Values
from hetero.scheduler.types.placement import Placement, Route

_log = logging.getLogger(__name__)

#: Maximum attempts while devices keep failing.
_TRIES: Final = 3
#: Seconds to wait for a live route if no request waits for one, and seconds between two checks.
_ROUTE_S: Final = 60.0
_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class RecomputationTarget:
    """Target of a recomputation: the route whose stages run again.

    `route`: a route of `placement` whose devices are all reachable.
    `is_given`: whether an input of a stage is a constant that was loaded with the stage.
    """

    placement: Placement
    route: Route
    channel: Channel
    addresses: Mapping[str, str]
    is_given: Callable[[int, str], bool]


class StateRecomputer:
    """Recomputation of a deployment's lost states.

    `ids`: yields ascending request ids, shared with the deployment's requests.
    `target`: returns the target for a route's number.
    `live_route`: returns the number of a route whose devices are all live, or None.
    """

    def __init__(
        self,
        key: str,
        memory: RemoteMemory,
        clock: Clock,
        ids: Iterator[int],
        *,
        target: Callable[[int], RecomputationTarget],
        live_route: Callable[[], int | None],
    ) -> None:
        self._target = target
        self._live_route = live_route
        #: Requests whose states are being recomputed.
        self._active_requests: set[Request] = set()
        self._closed = False
        self._key = key
        self._memory = memory
        self._clock = clock
        self._ids = ids
        #: By request id: the promise of a stage that runs now, and the devices it depends on.
        self._awaited: dict[int, tuple[Promise[Mapping[str, Value]], set[str]]] = {}

    def remember(
        self,
        request: Request,
        route: Route,
        addresses: Mapping[str, str],
        inputs: Mapping[str, Value],
        outputs: Mapping[str, Value],
        runs: Sequence[StageTiming],
    ) -> None:
        """Record the lineage of the states that an attempt produced."""
        transfers: dict[str, ResidentTensor[DeviceBundle]] = {}
        bundles: dict[int, DeviceBundle] = {}
        for number, name in route.plan.cut_edges:
            if number not in bundles:
                device = route.plan.stages[number].device
                task = Task(request, route.stages[number])
                bundles[number] = self._memory.sent_bundle(device, addresses[device], task)
            transfers[name] = ResidentTensor(bundles[number], name)
        bundles_of_states = {
            value.bundle for value in outputs.values() if type(value) is ResidentTensor
        }
        run_inputs: dict[str, Value | Origin] = {}
        for name, value in inputs.items():
            if type(value) is not ResidentTensor:
                run_inputs[name] = copy_value(value)
            elif value.name in value.bundle.copies:
                run_inputs[name] = value.bundle.copies[value.name]
            elif value.bundle.lineage is not None:
                run_inputs[name] = Origin(value.bundle.lineage, value.name)
            else:  # the run that was to produce this input ended without a lineage
                for bundle in bundles_of_states:
                    bundle.lineage_nbytes = None
                return
        nbytes = sum(run.output_nbytes for run in runs) - sum(map(_size, outputs.values()))
        restore = partial(self.restore_idle, request.restore_s)
        node = RunNode(run_inputs, transfers, max(0, nbytes), route, runs, restore)
        for bundle in bundles_of_states:
            bundle.lineage = node

    def begin(
        self,
        lost_bundles: Sequence[DeviceBundle],
        request: Request,
        *,
        is_wanted: Callable[[], bool],
        then: Callable[[], object],
        failed: Callable[[BaseException], object],
    ) -> None:
        """Recompute the states that an attempt reads, in a thread, while its request waits.

        `is_wanted`: whether the request still waits for the states.
        `then`, `failed`: called on success or failure, if the request still waits.
        """
        if request in self._active_requests:
            return  # the recomputation in progress checks for lost states itself

        def work() -> None:
            try:
                try:
                    self._restore(
                        lost_bundles, self._target(request.route), request.restore_s, is_wanted
                    )
                finally:
                    self._active_requests.discard(request)
                if is_wanted():
                    then()
            except RequestCancelledError:
                return
            except Exception as error:  # whatever it is, the caller must receive it
                failed(error.with_traceback(None))

        self._active_requests.add(request)
        self._clock.spawn(work, f"{self._key}-restore")

    def restore_idle(self, most_s: float, lost_bundles: Sequence[DeviceBundle]) -> None:
        """Recompute states that no request reads now, once a route is live.

        Raises TensorLostError: recomputation is impossible.
        """
        until_s, pause = self._clock.now_s() + _ROUTE_S, self._clock.event()
        while (route := self._live_route()) is None:
            if self._closed or self._clock.now_s() > until_s:
                raise lost_tensor("", lost_bundles[0])
            pause.wait(_LOOK_S)
        self._restore(lost_bundles, self._target(route), most_s, lambda: not self._closed)

    def close(self) -> None:
        """Stop the recomputations of idle states."""
        self._closed = True

    def _restore(
        self,
        lost_bundles: Sequence[DeviceBundle],
        target: RecomputationTarget,
        most_s: float,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Recompute lost states in at most `most_s` seconds of stage runs.

        Raises TensorLostError: recomputation is impossible; RequestCancelledError: the caller no
            longer waits.
        """
        plan, route = target.route.plan, target.route
        for retries in reversed(range(_TRIES)):
            replay_steps, uses = steps(
                lost_bundles,
                plan,
                lambda i, n: target.is_given(route.stages[i], n),
                self._memory.is_lost,
                most_s,
            )
            num_runs = sum(len(step.stages) for step in replay_steps)
            _log.info(
                "model=%s: recomputing the states of lost device %s in %d stage runs",
                plan.name,
                lost_bundles[0].device,
                num_runs,
            )
            try:
                results = self._execute_steps(replay_steps, uses, target, is_wanted)
                replacements = [_replacement(bundle, results) for bundle in lost_bundles]
            except RequestCancelledError:
                raise
            except HeteroError as error:
                error.with_traceback(None)  # its frames refer to the tensors
                if not retries:
                    raise TensorLostError(
                        f"states were lost with device {lost_bundles[0].device} and could not be "
                        f"recomputed: {error}",
                        port="",
                        device=lost_bundles[0].device,
                    ) from error
            else:
                for bundle, other in zip(lost_bundles, replacements, strict=True):
                    bundle.move_to(other)
                return

    def received(
        self, request: Request, outputs: Mapping[str, Value], error: BaseException | None
    ) -> None:
        """Complete a stage run with its outputs or its error; ignore late results."""
        promise, _ = self._awaited.pop(request.id, (None, ()))
        if promise is None:
            return
        if error is None:
            promise.set_result(outputs)
        else:
            promise.set_exception(error)

    def interrupt(self, device: str) -> None:
        """Fail the stage runs that wait for tensors of a device, so that they are retried."""
        for number, (promise, holders) in list(self._awaited.items()):
            if device in holders and number in self._awaited:
                del self._awaited[number]
                promise.set_exception(_device_lost(device))

    def _execute_steps(
        self,
        replay_steps: Sequence[Step],
        uses: dict[Origin, int],
        target: RecomputationTarget,
        is_wanted: Callable[[], bool],
    ) -> dict[Origin, Value]:
        """Execute the steps; return the values that no later step has consumed."""
        results: dict[Origin, Value] = {}

        def take(origin: Origin) -> Value:
            uses[origin] -= 1
            return results[origin] if uses[origin] else results.pop(origin)

        for step in replay_steps:
            node = step.lineage
            if isinstance(node, JoinNode):
                values = self._join_rows(node, step, take)
            else:
                assert isinstance(node, RunNode)
                values = self._run(node, step, take, target, is_wanted)
            results.update((Origin(node, name), values[name]) for name in step.names)
        return results

    def _join_rows(
        self, node: JoinNode, step: Step, take: Callable[[Origin], Value]
    ) -> Mapping[str, Value]:
        parts = {}
        for name in step.names:
            rows, layout = node.parts[name]
            tensors = [(take(origin).tensor, indices) for origin, indices in rows]
            parts[name] = tensors, layout
        return self._memory.join(parts)

    def _run(
        self,
        node: RunNode,
        step: Step,
        take: Callable[[Origin], Value],
        target: RecomputationTarget,
        is_wanted: Callable[[], bool],
    ) -> Mapping[str, Value]:
        """Rerun the stages of a step; return their outputs, which stay on their devices."""
        plan, route = target.route.plan, target.route
        values: dict[str, Value] = {}
        wires = {wire.tensor for wire in plan.wires}
        cut_names = {name for _, name in plan.cut_edges}
        for number in step.stages:
            stage, place = plan.stages[number], route.stages[number]
            inputs: dict[str, Value] = {}
            for name in stage.inputs:
                if target.is_given(place, name):
                    continue
                if name not in values:
                    value = node.inputs[name] if name in node.inputs else node.transfers[name]
                    values[name] = take(value) if isinstance(value, Origin) else value
                inputs[name] = values[name]
            keep = tuple(name for name in stage.outputs if name in step.names)
            try:
                outputs, bundle = self._run_stage(place, inputs, keep, target, is_wanted)
            except TensorError as error:  # the device has evicted the tensor
                node.transfers.pop(error.data.get("port", ""), None)
                raise
            resident = {
                name: ResidentTensor(bundle, name) for name in stage.outputs if name in wires
            }
            node.transfers.update(
                (name, tensor) for name, tensor in resident.items() if name in cut_names
            )
            values |= resident
            values |= outputs
        return values

    def _run_stage(
        self,
        number: int,
        inputs: Mapping[str, Value],
        keep: tuple[str, ...],
        target: RecomputationTarget,
        is_wanted: Callable[[], bool],
    ) -> tuple[Mapping[str, Value], DeviceBundle]:
        """Rerun a stage; return its resident outputs, and the bundle of its transferred ones."""
        stage = target.placement.stages[number]
        address = target.addresses[stage.device]
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
        completion = self._clock.event()
        promise.add_done_callback(lambda _: completion.set())
        self._awaited[request.id] = promise, {stage.device, *holders}
        self._memory.recomputations.add(request.id)
        try:
            self._memory.expect()
            others = self._memory.send_resident_inputs(target.channel, task, address, inputs)
            if others is not None:
                target.channel.send(address, Values(task, others))
            while not promise.done():
                if not is_wanted():
                    raise RequestCancelledError("no request waits for these states any more.")
                if any(map(self._memory.is_lost, {address, *holders.values()})):
                    raise _device_lost(stage.device)
                completion.wait(WAIT_SLICE_S)
            error = promise.exception()
            if error is None:
                return promise.result(), self._memory.sent_bundle(stage.device, address, task)
            try:
                raise error
            finally:  # otherwise the error refers to itself, and keeps the tensors alive
                del promise, error
        except BaseException:
            self._awaited.pop(request.id, None)
            target.channel.send(address, Dropped(request))
            raise
        finally:
            self._memory.recomputations.discard(request.id)


def _size(value: Value) -> int:
    """Return the size of an output in bytes, on the host or on a device."""
    return value.tensor.nbytes if type(value) is ResidentTensor else nbytes_of(value)


def _replacement(lost_bundle: DeviceBundle, results: Mapping[Origin, Value]) -> DeviceBundle:
    """Return the bundle that holds the recomputed tensors of a lost bundle.

    Raises TensorLostError: several bundles hold them.
    """
    assert lost_bundle.lineage is not None
    values = [results[Origin(lost_bundle.lineage, name)] for name in lost_bundle.specs]
    bundles: set[DeviceBundle | None] = {
        value.bundle if type(value) is ResidentTensor else None for value in values
    }
    bundle = bundles.pop() if len(bundles) == 1 else None
    if bundle is None:
        raise TensorLostError(
            f"states of lost device {lost_bundle.device} were recomputed on several devices; call "
            "reset_state() and start again.",
            port="",
            device=lost_bundle.device,
        )
    return bundle


def _device_lost(device: str) -> DeviceLostError:
    return DeviceLostError(
        f"device {device} was lost while it recomputed states.", device=device, node="", attempt=0
    )
