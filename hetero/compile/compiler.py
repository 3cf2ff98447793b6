"""From a model and a request to a compiled model: from the cache, or placed, cut and deployed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from hetero.batching.batch_axis import with_open_batch
from hetero.batching.batchability import require_joinable
from hetero.cache.entry import KeptModel
from hetero.cache.folder import Cache
from hetero.compile.compiled_model import CompiledModel, optimal_requests
from hetero.compile.deployed_model import DeployedModel
from hetero.compile.stage_replicas import moved, stand_ins, ways, without_stand_ins
from hetero.devices.errors import DeviceError, PropertyError, UnsupportedNodesError
from hetero.devices.model.model import Model
from hetero.devices.model.variables import variables_of
from hetero.partition.partition import PlacedPartition, partition, stage_sources
from hetero.planning.cost_planner import CostPlanner
from hetero.properties.compile_request import CompileRequest
from hetero.query.priority import RefusalsByDevice, add_refusals, place_by_priority
from hetero.query.query_cache import QueryCache
from hetero.scheduler.executor import Deployment, Executor, Remade
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.vocabulary.limits import Batching, Limits
from hetero.scheduler.vocabulary.names import match_name
from hetero.scheduler.vocabulary.placement import share

_log = logging.getLogger(__name__)


class Compiler:
    """Compiles models on the devices of an executor, which is started when it is needed."""

    def __init__(
        self, get_executor: Callable[[], Executor], queries: QueryCache, planner: CostPlanner
    ) -> None:
        self._get_executor = get_executor
        self._queries = queries
        self._planner = planner

    def compile(self, model: Model, request: CompileRequest, cache: Cache | None) -> CompiledModel:
        """Compile a model, through a cache where there is one."""
        model = opened(model, request)
        deployment, hit = self._deployed(model, request, cache)
        return self.compiled(model, request, deployment, cache, hit=hit)

    def compiled(
        self,
        model: Model,
        request: CompileRequest,
        deployment: Deployment,
        cache: Cache | None = None,
        *,
        hit: bool = False,
    ) -> CompiledModel:
        """Return what was deployed for a request, which can be made again with more inputs."""

        def compile_variant(given: frozenset[str]) -> DeployedModel:
            # What has a default has no batch: such requests are not joined.
            alone = request.with_options(AUTO_BATCH_SIZE=0)
            return self.compile(model.with_inputs(given), alone, cache).target

        made = CompiledModel(deployment, request, loaded_from_cache=hit)
        made.target.compile_variant = compile_variant
        return made

    def _deployed(
        self, model: Model, request: CompileRequest, cache: Cache | None
    ) -> tuple[Deployment, bool]:
        """Return the model deployed, and whether all of it was in the cache."""
        if cache is None:
            return self._placed_and_deployed(model, request, None), False
        entry = KeptModel(cache, model, request)
        found = entry.find()
        if found is None:
            with entry.lock():
                found = entry.find()  # another may have made it meanwhile
                if found is None:
                    return self._placed_and_deployed(model, request, entry), False
        sources = entry.sources(found, _sources(found.cuts, request))
        deployment = self.deploy(found.cuts, sources, request)
        with _closed_on_error(deployment):
            return deployment, entry.keep(found, deployment, found=True)

    def _placed_and_deployed(
        self, model: Model, request: CompileRequest, entry: KeptModel | None
    ) -> Deployment:
        """Place, deploy and keep a model; placed again without what a device refuses in a part."""
        refused: RefusalsByDevice = {}
        while True:
            cuts = self.place(model, request, refused)
            sources = _sources(cuts, request)
            try:
                if entry is None:
                    return self.deploy(cuts, sources, request)
                made = entry.cut(cuts)
                deployment = self.deploy(cuts, entry.sources(made, sources), request)
            except UnsupportedNodesError as error:
                refused = add_refusals([cut.affinity for cut in cuts], error, refused)
                _log.warning("model=%s: placed again: %s", model.name, error)
                continue
            with _closed_on_error(deployment):
                entry.keep(made, deployment)
            return deployment

    def place(
        self, model: Model, request: CompileRequest, refused: RefusalsByDevice
    ) -> list[PlacedPartition]:
        """Cut a model as the policy says, without what devices are known to refuse in a part."""
        count = request.hetero_config["NUM_REPLICAS"]
        others = stand_ins(request)
        devices = without_stand_ins(request).devices
        if count > len(devices):
            raise PropertyError(
                f"model {model.name!r}: NUM_REPLICAS={count} wants a device for each; there are "
                f"{', '.join(devices)}.",
                property="NUM_REPLICAS",
            )
        try:
            copies = [request.for_devices(devices[first::count]) for first in range(count)]
        except DeviceError as error:
            raise PropertyError(
                f"model {model.name!r}: NUM_REPLICAS={count}: each copy keeps the pins on devices "
                f"of its own; {error}",
                property="NUM_REPLICAS",
            ) from error
        # All are asked where costs decide; by priority it is seen only then who is.
        by_cost = request.policy != "PRIORITY"
        self._get_executor().start(devices if by_cost else set(request.pins.values()))
        return [
            replace(way, share=way.share / count)
            for copy in copies
            for cut in self._place_once(model, copy, refused)
            for way in ways(cut, others)
        ]

    def _place_once(
        self, model: Model, request: CompileRequest, refused: RefusalsByDevice
    ) -> list[PlacedPartition]:
        if request.policy == "PRIORITY" or len(request.devices) == 1:
            placed = place_by_priority(model, request, self._queries.querier(request), refused)
            return [PlacedPartition(partition(model, placed), placed)]
        report = self._planner.plan(model, request, refused)
        return [replace(cut, report=report) for cut in report.variants]

    def deploy(
        self,
        cuts: Sequence[PlacedPartition],
        sources: Sequence[StageSource],
        request: CompileRequest,
    ) -> Deployment:
        """Deploy cuts with a source for each stage, numbered through; several share requests."""
        model = cuts[0].partition.source
        limits = request.limits
        if not limits.requests:
            enough = optimal_requests(cuts, request.configs)
            limits = replace(limits, requests=max(Limits().requests, enough))
        limits = replace(limits, batching=batching_of(cuts, request, limits))
        placement, sources, constants = _deployable(cuts, sources)
        stateful = bool(variables_of(model))

        def remake(gone: Collection[str]) -> Remade:
            listed = {row.name for row in self._get_executor().devices(wait=False)}
            missing = {*gone, *(d for d in request.devices if d not in listed)}
            left = without_devices(request, missing)
            # Quicker than to place all anew, and what else there is stays where it is.
            kept = [moved(cut, missing, left.descriptors) for cut in cuts] if stateful else []
            placed = [cut for cut in kept if cut] or self.place(model, left, {})
            return _deployable(placed, _sources(placed, request))

        return self._get_executor().deploy(
            placement, sources, constants, limits=limits, remake=remake, stateful=stateful
        )


def opened(model: Model, request: CompileRequest) -> Model:
    """Return the model as it is placed: with an open first axis where requests are joined."""
    return with_open_batch(model) if request.batch_size > 1 else model


def without_devices(request: CompileRequest, gone: Collection[str]) -> CompileRequest:
    """Return a request for the devices that are left; pins move to devices of the same plugin."""
    devices = tuple(device for device in request.devices if device not in gone)
    if not devices:
        raise DeviceError(f"no device is left; gone are {', '.join(sorted(gone))}.")
    # The stand-ins of a device that is gone are devices like others.
    replicas = {
        device: [other for other in others if match_name(other, devices)]
        for device, others in request.hetero_config["STAGE_REPLICAS"].items()
        if match_name(device, devices)
    }
    most = len(devices) - sum(map(len, replicas.values()))
    count = min(request.hetero_config["NUM_REPLICAS"], most)
    return request.for_devices(devices).with_options(NUM_REPLICAS=count, STAGE_REPLICAS=replicas)


@contextmanager
def _closed_on_error(deployment: Deployment) -> Iterator[None]:
    """Close a deployment that is not returned."""
    try:
        yield
    except BaseException:
        deployment.close()
        raise


def _sources(cuts: Sequence[PlacedPartition], request: CompileRequest) -> list[StageSource]:
    return stage_sources([cut.partition for cut in cuts], request.configs)


def _deployable(cuts: Sequence[PlacedPartition], sources: Sequence[StageSource]) -> Remade:
    placement = share([cut.plan for cut in cuts], [cut.share for cut in cuts], cuts)
    numbers = (number for route in placement.routes for number in route.stages)
    source_of = dict(zip(numbers, sources, strict=True))
    constants = {n: v for cut in cuts for n, v in cut.partition.constant_outputs.items()}
    return Remade(placement, [source_of[s.index] for s in placement.stages], constants)


def batching_of(
    cuts: Sequence[PlacedPartition], request: CompileRequest, limits: Limits
) -> Batching | None:
    """Return how requests are joined, or refuse to; None where they are not to be."""
    size = request.batch_size
    if size < 2:
        return None
    require_joinable(cuts[0].partition.source, size)
    return Batching(
        size,
        request.hetero_config["AUTO_BATCH_TIMEOUT"] / 1000,
        busy=sum(max(cut.plan.levels, default=0) + 1 for cut in cuts),
        most=limits.requests,
    )
