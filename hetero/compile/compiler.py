"""Compiler: finds a model in the cache, or places and partitions it, and deploys it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

from hetero.batching.batch_axis import with_open_batch_axis
from hetero.batching.batchability import require_batchable
from hetero.cache.entry import CachedPlan, CacheEntry
from hetero.cache.folder import Cache
from hetero.compile.autoscaling import Autoscaler, ScalingPolicy
from hetero.compile.compiled_model import CompiledModel, optimal_num_requests
from hetero.compile.deployed_model import DeployedModel
from hetero.compile.memory_recovery import MemoryRecovery
from hetero.compile.replicas import (
    move_from_lost_devices,
    replica_devices,
    scaling_bounds,
    with_replicas,
)
from hetero.compile.stage_work import with_stage_work
from hetero.devices.errors import (
    DeviceError,
    DeviceMemoryError,
    HeteroError,
    PlanError,
    PropertyError,
    UnsupportedNodesError,
)
from hetero.devices.model.model import Model
from hetero.devices.model.variables import variables_of
from hetero.formatting import nbytes_text
from hetero.partition.partition import PlacedPartition, partition, stage_sources
from hetero.partition.replicas import replicate
from hetero.planning.cost_planner import CostPlanner
from hetero.planning.memory.device_memory import memory_option
from hetero.properties.compile_request import CompileRequest
from hetero.properties.replicas_property import AUTO, range_of, range_text
from hetero.query.priority import (
    RefusalsByDevice,
    add_refusals,
    merge_refusals,
    place_by_priority,
)
from hetero.query.query_cache import QueryCache
from hetero.scheduler.executor import Deployment, Executor, ReplannedModel
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.types.device_names import match_name
from hetero.scheduler.types.limits import Batching, Limits
from hetero.scheduler.types.placement import share
from hetero.verify.verifier import Progress, Session, Verifier

_log = logging.getLogger(__name__)

#: Reasons why a subgraph has no verdict.
_IMPORTED: Final = "it was imported; compile the model again to verify it"
_PLANNED_AGAIN: Final = "it was planned again after the loss of a device"


class Compiler:
    """Compiles models on the devices of an executor."""

    def __init__(
        self,
        get_executor: Callable[[], Executor],
        queries: QueryCache,
        planner: CostPlanner,
        verifier: Verifier,
    ) -> None:
        self._get_executor = get_executor
        self._queries = queries
        self._planner = planner
        self._verifier = verifier

    def compile(
        self,
        model: Model,
        request: CompileRequest,
        cache: Cache | None,
        progress: Progress | None = None,
    ) -> CompiledModel:
        """Compile a model, or load it from the cache."""
        model = with_batch_axis(model, request)
        session = self._verifier.session(model, request, cache, progress)
        began_s = time.perf_counter()
        deployment, cached, fitted = self._deploy_cached(model, request, cache, session)
        is_cached = cached is not None
        compiled = self.create_model(model, fitted, deployment, cache, is_cached=is_cached)
        compiled.set_verification(session.result, _PLANNED_AGAIN)
        if cached is not None and cached.compile_s is not None:
            load_s = time.perf_counter() - began_s
            compiled.cache_saved_s = max(0.0, cached.compile_s - load_s)
        return compiled

    def create_model(
        self,
        model: Model,
        request: CompileRequest,
        deployment: Deployment,
        cache: Cache | None = None,
        *,
        is_cached: bool = False,
    ) -> CompiledModel:
        """Return the compiled model of a deployment.

        It compiles `model` again when a request has values for optional inputs.
        """

        def compile_with_inputs(names: frozenset[str]) -> DeployedModel:
            # Optional inputs have no batch axis, so these requests cannot be batched.
            unbatched = request.with_options(AUTO_BATCH_SIZE=0)
            return self.compile(model.with_inputs(names), unbatched, cache).target

        compiled = CompiledModel(deployment, request, loaded_from_cache=is_cached)
        session = self._verifier.session(model, request, cache)
        session.recall(compiled.placements)
        compiled.set_verification(session.result, _IMPORTED)
        compiled.target.compile_with_inputs = compile_with_inputs

        def placements() -> Sequence[PlacedPartition]:
            return [route.origin for route in deployment.routes]

        bounds = scaling_bounds(request)
        scaler = self._autoscale(compiled, model, request, bounds) if bounds else None

        def exclude(device: str, cause: str) -> None:
            for other in scaler.deployments if scaler is not None else [deployment]:
                if any(device in route.plan.devices for route in other.routes):
                    other.replan_without(device, cause)

        compiled.target.sampler = self._verifier.sampler(session, placements, exclude)
        if request.hetero_config["FIT_MEMORY"]:
            compiled.target.recovery = self._memory_recovery(model, request, placements())
        return compiled

    def _memory_recovery(
        self, model: Model, request: CompileRequest, placements: Sequence[PlacedPartition]
    ) -> MemoryRecovery:
        """Return the recovery of a model whose plan has to fit the devices' memory."""
        advice: dict[str, str] = {}

        def plan_again(error: DeviceMemoryError) -> Callable[[], Deployment] | None:
            nonlocal placements, request
            device = str(error.data.get("device"))
            if device in advice or device not in request.devices:
                return None
            reduced, sentence = self._planner.reduce_budget(model, placements, request, device)
            try:
                known = self._verifier.refusals(model, reduced, None)
                new_placements = self._replan(model, reduced, known)
            except HeteroError as plan_error:
                _log.warning("model=%s: no plan avoids %s: %s", model.name, error, plan_error)
                return None
            advice[device] = sentence
            _log.warning("model=%s: %s: %s", model.name, sentence, error)
            old_placements, old_request = placements, request
            placements = _with_advice(new_placements, tuple(advice.values()))
            request = self._planner.fit_options(model, placements, reduced)

            def deploy() -> Deployment:
                try:
                    return self.deploy(placements, _stage_sources(placements, request), request)
                except HeteroError as load_error:
                    _log.warning("model=%s: the old plan stays: %s", model.name, load_error)
                    sources = _stage_sources(old_placements, old_request)
                    return self.deploy(old_placements, sources, old_request)

            return deploy

        return MemoryRecovery(plan_again)

    def _autoscale(
        self,
        compiled: CompiledModel,
        model: Model,
        request: CompileRequest,
        bounds: tuple[int, int],
    ) -> Autoscaler | None:
        """Start and stop further replicas of a compiled model by its load, if it can have any."""
        if variables_of(model):
            if request.hetero_config["REPLICAS"] == AUTO:
                return None
            raise PropertyError(
                f"REPLICAS={range_text(*bounds)}: model {model.name!r} has states, which belong to "
                "a replica. Use a fixed number of replicas.",
                property="REPLICAS",
            )
        first = replace(compiled.placements[0], share=1.0)
        further = replicate(first, replica_devices(request))[slice(*bounds)]

        def start_replica(number: int) -> Deployment:
            placements = [replace(further[number], share=1.0)]
            return self.deploy(placements, _stage_sources(placements, request), request)

        optimal = optimal_num_requests([first], request.configs)
        policy = ScalingPolicy(bounds[0], bounds[0] + len(further), optimal)
        autoscaler = Autoscaler(compiled.deployment, start_replica, policy)
        compiled.target.autoscale(autoscaler)
        return autoscaler

    def _deploy_cached(
        self, model: Model, request: CompileRequest, cache: Cache | None, session: Session
    ) -> tuple[Deployment, CachedPlan | None, CompileRequest]:
        """Deploy a model.

        Returns the deployment, the plan if the cache had all of it, and the request with the
        options that keep the plan within the devices' memory.

        A device may refuse nodes in its part of the model. The model is then placed again without
        these nodes on that device.
        """
        began_s = time.perf_counter()
        entry = CacheEntry(cache, model, request)
        cached = entry.find()
        with ExitStack() as lock:
            if cached is None:
                lock.enter_context(entry.lock())
                cached = entry.find()  # another process may have compiled it meanwhile
                if cached is not None:
                    lock.close()
            if cached is None:
                session.prepare()
            refusals: RefusalsByDevice = {}
            corrections: dict[str, str] = {}
            while True:
                plan = cached or entry.create_plan(
                    _with_advice(
                        self._place_verified(model, request, refusals, session),
                        tuple(corrections.values()),
                    )
                )
                fitted = self._planner.fit_options(model, plan.placements, request)
                sources = entry.sources(plan, _stage_sources(plan.placements, fitted))
                try:
                    deployment = self.deploy(plan.placements, sources, fitted)
                except UnsupportedNodesError as error:
                    if cached is not None:
                        raise
                    affinities = [placement.affinity for placement in plan.placements]
                    refusals = add_refusals(affinities, error, refusals)
                    _log.warning("model=%s: placing again: %s", model.name, error)
                    continue
                except DeviceMemoryError as error:
                    device = str(error.data.get("device"))
                    may_correct = request.hetero_config["FIT_MEMORY"] and cached is None
                    if not may_correct or device in corrections or device not in request.devices:
                        raise
                    request, corrections[device] = self._planner.reduce_budget(
                        model, plan.placements, request, device
                    )
                    _log.warning("model=%s: %s: %s", model.name, corrections[device], error)
                    continue
                session.recall(plan.placements if cached is not None else ())
                session.report()
                if cached is None:
                    plan = replace(plan, compile_s=time.perf_counter() - began_s)
                with _closed_on_error(deployment):
                    is_complete = entry.store(plan, deployment, is_new=cached is None)
                return deployment, cached if is_complete else None, fitted

    def _place_verified(
        self, model: Model, request: CompileRequest, refusals: RefusalsByDevice, session: Session
    ) -> list[PlacedPartition]:
        """Place a model so that no device runs nodes that verification found wrong.

        Nodes that no other device supports stay on their device.
        """
        while True:
            try:
                placements = self.place(model, request, merge_refusals(refusals, session.refusals))
            except UnsupportedNodesError as error:
                if not session.keep(error.data.get("unsupported", {})):
                    raise
                continue
            if session.verify(placements):
                return placements

    def place(
        self, model: Model, request: CompileRequest, refusals: RefusalsByDevice
    ) -> list[PlacedPartition]:
        """Partition a model by the policy; return the placement of each replica.

        `refusals`: nodes that devices refused in their part of the model.
        Raises PropertyError: the replicas do not fit the devices or pins.
        """
        request = with_replicas(request)
        # A cost plan queries all devices; by priority, the queries start devices when needed.
        fits = request.hetero_config["FIT_MEMORY"]
        by_cost = request.policy != "PRIORITY" or fits
        self._get_executor().start(request.all_devices if by_cost else set(request.pins.values()))
        if not by_cost or (len(request.devices) == 1 and not fits):
            query = self._queries.querier(request)
            affinity = place_by_priority(model, request, query, refusals)
            placement = PlacedPartition(partition(model, affinity), affinity)
            return with_stage_work(replicate(placement, request.replicas))
        report = self._planner.plan(model, request, refusals)
        return with_stage_work([replace(replica, report=report) for replica in report.replicas])

    def deploy(
        self,
        placements: Sequence[PlacedPartition],
        sources: Sequence[StageSource],
        request: CompileRequest,
    ) -> Deployment:
        """Deploy placements, which share the requests.

        `sources`: the source of each stage, in the order of all placements' stages.
        """
        model = placements[0].partition.source
        limits = request.limits
        if not limits.requests:
            optimal = optimal_num_requests(placements, request.configs)
            limits = replace(limits, requests=max(Limits().requests, optimal))
        limits = replace(limits, batching=dynamic_batching(placements, request, limits))
        placement, sources, constants = _deployment_inputs(placements, sources)
        has_states = bool(variables_of(model))

        def replan(lost_devices: Collection[str]) -> ReplannedModel:
            listed = {device.name for device in self._get_executor().devices(wait=False)}
            missing = {*lost_devices, *(d for d in request.devices if d not in listed)}
            remaining = without_devices(request, missing)
            # Moving a placement is faster than planning, and keeps the other stages' states.
            candidates = [
                move_from_lost_devices(original, missing, remaining.descriptors)
                for original in (placements if has_states else ())
            ]
            known = self._verifier.refusals(model, remaining, None)
            kept = [p for p in candidates if p and self._fits(model, p, remaining)]
            new_placements = kept or self._replan(model, remaining, known)
            fitted = self._planner.fit_options(model, new_placements, remaining)
            return _deployment_inputs(new_placements, _stage_sources(new_placements, fitted))

        # Replicas that follow the load share their nodes' cores, whether they have started or not.
        used = {device for p in placements for device in p.plan.devices}
        others = replica_devices(request) if scaling_bounds(request) else {}
        groups = [{device, *members} for device, members in others.items()]
        return self._get_executor().deploy(
            placement,
            sources,
            constants,
            limits=limits,
            other_devices={d for group in groups if used & group for d in group},
            replan=replan,
            stateful=has_states,
        )

    def fit_to_memory(
        self, model: Model, placements: Sequence[PlacedPartition], request: CompileRequest
    ) -> CompileRequest:
        """Return the request whose options keep imported placements within the devices' memory.

        Raises PlanError: with FIT_MEMORY, the placements need more memory than a device has.
        """
        if not request.hetero_config["FIT_MEMORY"]:
            return request
        for device, memory in self._planner.predict_memory(model, placements, request).items():
            if not memory.fits:
                needed = memory_option(memory.peak_nbytes)
                raise PlanError(
                    f"model {model.name!r}: expected at least {needed} on {device} for the "
                    "stages of the blob, got a budget of "
                    f"{nbytes_text(memory.budget_nbytes or 0)}. Set a larger DEVICE_MEMORY_NBYTES, "
                    "or compile the model again for these devices.",
                    constraint="memory",
                    budgets_nbytes={device: memory.peak_nbytes},
                )
        return self._planner.fit_options(model, placements, request)

    def _fits(self, model: Model, placement: PlacedPartition, request: CompileRequest) -> bool:
        """Return whether a placement is within the devices' memory, if it must be."""
        if not request.hetero_config["FIT_MEMORY"]:
            return True
        predictions = self._planner.predict_memory(model, [placement], request)
        return all(prediction.fits for prediction in predictions.values())

    def _replan(
        self, model: Model, request: CompileRequest, refusals: RefusalsByDevice
    ) -> list[PlacedPartition]:
        """Place a model after the loss of a device.

        Nodes with wrong results stay if nothing else runs them, but nodes that end the process do
        not.
        """
        try:
            return self.place(model, request, refusals)
        except UnsupportedNodesError:
            crashes = {
                device: {name: r for name, r in nodes.items() if r.code == "crash"}
                for device, nodes in refusals.items()
            }
            return self.place(model, request, crashes)


def _with_advice(
    placements: Sequence[PlacedPartition], sentences: tuple[str, ...]
) -> list[PlacedPartition]:
    """Return placements whose reports have further sentences of advice."""
    return [
        replace(p, report=p.report and replace(p.report, advice=(*p.report.advice, *sentences)))
        for p in placements
    ]


def with_batch_axis(model: Model, request: CompileRequest) -> Model:
    """Return the model to place: with dynamic batching, its batch axis is open."""
    return with_open_batch_axis(model) if request.batch_size > 1 else model


def without_devices(request: CompileRequest, lost_devices: Collection[str]) -> CompileRequest:
    """Return a request for the remaining devices; pins move to devices of the same plugin.

    Raises DeviceError: no device remains, or none for a pin.
    """
    devices = tuple(device for device in request.devices if device not in lost_devices)
    if not devices:
        raise DeviceError(f"no device remains; lost devices: {', '.join(sorted(lost_devices))}.")
    replicas = request.hetero_config["REPLICAS"]
    if bounds := range_of(replicas):
        replicas = range_text(*(min(bound, len(devices)) for bound in bounds))
    elif isinstance(replicas, int):
        replicas = min(replicas, len(devices))
    elif not isinstance(replicas, str):
        # The replicas of a lost device become devices like any other.
        replicas = {
            device: [other for other in others if match_name(other, devices)]
            for device, others in replicas.items()
            if match_name(device, devices)
        }
    memory = request.hetero_config["DEVICE_MEMORY_NBYTES"].items()
    return request.for_devices(devices).with_options(
        REPLICAS=replicas,
        DEVICE_MEMORY_NBYTES={name: n for name, n in memory if match_name(name, devices)},
    )


@contextmanager
def _closed_on_error(deployment: Deployment) -> Iterator[None]:
    """Close a deployment if the context raises."""
    try:
        yield
    except BaseException:
        deployment.close()
        raise


def _stage_sources(
    placements: Sequence[PlacedPartition], request: CompileRequest
) -> list[StageSource]:
    return stage_sources([placement.partition for placement in placements], request.configs)


def _deployment_inputs(
    placements: Sequence[PlacedPartition], sources: Sequence[StageSource]
) -> ReplannedModel:
    """Return the scheduler's placement, the sources of its stages, and the constant outputs."""
    shares = [placement.share for placement in placements]
    placement = share([p.plan for p in placements], shares, placements)
    numbers = (number for route in placement.routes for number in route.stages)
    source_of = dict(zip(numbers, sources, strict=True))
    constants = {n: v for p in placements for n, v in p.partition.constant_outputs.items()}
    return ReplannedModel(placement, [source_of[s.index] for s in placement.stages], constants)


def dynamic_batching(
    placements: Sequence[PlacedPartition], request: CompileRequest, limits: Limits
) -> Batching | None:
    """Return the parameters of dynamic batching, or None without it.

    Raises PropertyError: the model's requests cannot be batched.
    """
    size = request.batch_size
    if size < 2:
        return None
    require_batchable(placements[0].partition.source, size)
    return Batching(
        size,
        request.hetero_config["AUTO_BATCH_TIMEOUT"] / 1000,
        busy=sum(max(placement.plan.levels, default=0) + 1 for placement in placements),
        most=limits.requests,
    )
