"""From a model and a request to a compiled model: from the cache, or placed, cut and deployed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from devices.errors import DeviceError, PropertyError, UnsupportedNodesError
from devices.model.model import Model
from hetero.affinity.affinity import Affinity
from hetero.batching.open_axis import with_open_batch
from hetero.batching.rows import require_joinable
from hetero.cache.blob import Compilation, Cut
from hetero.cache.cached_compile import Cached, CachedCompiler
from hetero.cache.folder import Cache
from hetero.compile.admission import optimal_requests
from hetero.compile.compiled_model import CompiledModel
from hetero.compile.deployed_model import DeployedModel
from hetero.compile.stage_replicas import stand_ins, ways, without_stand_ins
from hetero.partition.lowering import constant_outputs, stage_sources
from hetero.partition.partition import partition
from hetero.planning import PlannedAffinity
from hetero.planning.cost_planner import CostPlanner, policy_of
from hetero.properties.table import SplitConfig, batch_size
from hetero.query.answers import Answers
from hetero.query.placement import (
    PlacementRequest,
    Refused,
    only,
    place_by_priority,
    refusals,
)
from scheduler.client.batched_deployment import BatchedDeployment
from scheduler.client.batching import Batching
from scheduler.executor import Deployment, Executor, Remade
from scheduler.formats.stage_source import StageSource
from scheduler.vocabulary.limits import Limits
from scheduler.vocabulary.names import match_name, split_name
from scheduler.vocabulary.placement import share

_log = logging.getLogger(__name__)

#: Gives cuts what each of their stages is made from, numbered through.
Sources = Callable[[Sequence[Cut]], list[StageSource]]


@dataclass(frozen=True, slots=True)
class CompileRequest(PlacementRequest):
    """A request for a compiled model."""

    #: The same as a blob records it.
    compilation: Compilation


class Compiler:
    """Compiles models on the devices of an executor.

    `executor`: where the devices are; called when one is needed.
    `planner`: places models where the policy is not ``PRIORITY``.
    """

    def __init__(
        self, executor: Callable[[], Executor], answers: Answers, planner: CostPlanner
    ) -> None:
        self._executor = executor
        self._answers = answers
        self._planner = planner

    def compile(
        self,
        model: Model,
        request: CompileRequest,
        cache: Cache | None,
    ) -> CompiledModel:
        """Compile a model, through a cache where there is one.

        `cache`: where compiled models are kept.
        """
        compilation = request.compilation
        if batch_size(request.config.own) > 1:
            model = with_open_batch(model)

        def deploy(cuts: Sequence[Cut], sources: Sequence[StageSource]) -> Deployment:
            return self.deploy(model, cuts, sources, request)

        def make(sources: Sources) -> tuple[Sequence[Cut], Deployment]:
            return self._make(model, request, sources, deploy)

        if cache is None:
            _, deployment = make(lambda cuts: _compiled_sources(cuts, request))
            found = Cached(deployment, hit=False)
        else:
            through = CachedCompiler(cache, model, compilation, request.pins, deploy)
            found = through.run(make)
        return self.compiled(model, request, found, cache)

    def compiled(
        self, model: Model, request: CompileRequest, found: Cached, cache: Cache | None = None
    ) -> CompiledModel:
        """Return what was deployed for a request, which can be made again with more inputs."""

        def compile_variant(given: frozenset[str]) -> DeployedModel:
            # What has a default has no batch: such requests are not joined.
            own = {**request.config.own, "AUTO_BATCH_SIZE": 0}
            alone = replace(request, config=replace(request.config, own=own))
            return self.compile(model.with_inputs(given), alone, cache).target

        made = CompiledModel(found.deployment, request.compilation, loaded_from_cache=found.hit)
        made.target.compile_variant = compile_variant
        return made

    def place(self, model: Model, request: CompileRequest, refused: Refused) -> list[Cut]:
        """Cut a model as the policy says, without what devices are known to refuse in a part.

        Raises PropertyError: there are fewer devices than NUM_REPLICAS, or STAGE_REPLICAS does not
            fit them.
        """
        own = request.config.own
        count = own["NUM_REPLICAS"]
        others = stand_ins(request)
        devices = without_stand_ins(request).devices
        if count > len(devices):
            raise PropertyError(
                f"model {model.name!r}: NUM_REPLICAS={count} wants a device for each; there are "
                f"{', '.join(devices)}.",
                property="NUM_REPLICAS",
            )
        # All are asked where costs decide; by priority it is seen only then who is.
        by_cost = policy_of(own) != "PRIORITY"
        self._executor().start(devices if by_cost else set(request.pins.values()))
        return [
            replace(way, share=way.share / count)
            for first in range(count)
            for cut in self._place_once(model, only(request, devices[first::count]), refused)
            for way in ways(cut, others)
        ]

    def _place_once(self, model: Model, request: CompileRequest, refused: Refused) -> list[Cut]:
        configs = request.config.devices
        if policy_of(request.config.own) == "PRIORITY" or len(request.devices) == 1:
            placed: Affinity = place_by_priority(
                model, request, lambda d, part: self._answers.support(d, part, configs[d]), refused
            )
            return [Cut(partition(model, placed), placed)]
        report = self._planner.plan(model, request, refused)
        cuts = []
        for variant in report.variants:
            affinity = variant.affinity
            planned = PlannedAffinity(affinity.devices, affinity.reasons, report)
            cuts.append(Cut(variant.partition, planned, variant.share))
        return cuts

    def deploy(
        self,
        model: Model,
        cuts: Sequence[Cut],
        sources: Sequence[StageSource],
        request: CompileRequest,
    ) -> Deployment:
        """Deploy cuts with a source for each stage, numbered through; several share requests."""
        config, limits = request.config, request.config.limits
        if not limits.requests:
            enough = optimal_requests(cuts, request.compilation.configs)
            limits = replace(limits, requests=max(Limits().requests, enough))
        batching = batching_of(cuts, config, limits)
        placement, sources, constants = _deployable(cuts, sources)

        def remake(gone: Collection[str]) -> Remade:
            listed = {row.name for row in self._executor().devices(wait=False)}
            left = without_devices(
                request, {*gone, *(d for d in request.devices if d not in listed)}
            )
            cuts = self.place(model, left, {})
            return _deployable(cuts, _compiled_sources(cuts, request))

        deployment = self._executor().deploy(
            placement, sources, constants, limits=limits, remake=remake
        )
        return BatchedDeployment(deployment, batching, limits) if batching else deployment

    def _make(
        self,
        model: Model,
        request: CompileRequest,
        sources: Sources,
        deploy: Callable[[Sequence[Cut], Sequence[StageSource]], Deployment],
    ) -> tuple[Sequence[Cut], Deployment]:
        """Cut and deploy a model; again without what a device refuses in a part."""
        refused: Refused = {}
        while True:
            cuts = self.place(model, request, refused)
            try:
                return cuts, deploy(cuts, sources(cuts))
            except UnsupportedNodesError as error:
                refused = refusals([cut.affinity for cut in cuts], error, refused)
                _log.warning("model=%s: placed again: %s", model.name, error)


def without_devices(request: CompileRequest, gone: Collection[str]) -> CompileRequest:
    """Return a request for the devices that are left; pins move to devices of the same plugin.

    Raises DeviceError: none is left, or none for a pin.
    """
    devices = tuple(device for device in request.devices if device not in gone)
    if not devices:
        raise DeviceError(f"no device is left; gone are {', '.join(sorted(gone))}.")
    pins = dict(request.pins.devices)
    for place, device in enumerate(request.devices):
        if device in devices or device not in pins.values():
            continue
        plugin, _ = split_name(device)
        alike = [other for other in devices if split_name(other)[0] == plugin]
        if not alike:
            raise DeviceError(f"nodes are pinned to {device}, and no other {plugin} is left.")
        stand_in = alike[place % len(alike)]
        pins = {node: stand_in if on == device else on for node, on in pins.items()}
    request = replace(request, pins=Affinity(pins, request.pins.reasons))
    own = request.config.own
    # The stand-ins of a device that is gone are devices like others.
    replicas = {
        device: [other for other in others if match_name(other, devices)]
        for device, others in own["STAGE_REPLICAS"].items()
        if match_name(device, devices)
    }
    most = len(devices) - sum(map(len, replicas.values()))
    own = {**own, "NUM_REPLICAS": min(own["NUM_REPLICAS"], most), "STAGE_REPLICAS": replicas}
    return only(replace(request, config=replace(request.config, own=own)), devices)


def _compiled_sources(cuts: Sequence[Cut], request: CompileRequest) -> list[StageSource]:
    """Return what each stage is compiled from, numbered through."""
    configs = request.compilation.configs
    return [source for cut in cuts for source in stage_sources(cut.partition, configs)]


def _deployable(cuts: Sequence[Cut], sources: Sequence[StageSource]) -> Remade:
    placement = share([cut.plan for cut in cuts], [cut.share for cut in cuts], cuts)
    numbers = (number for route in placement.routes for number in route.stages)
    source_of = dict(zip(numbers, sources, strict=True))
    constants = {n: v for cut in cuts for n, v in constant_outputs(cut.partition).items()}
    return Remade(placement, [source_of[s.index] for s in placement.stages], constants)


def batching_of(cuts: Sequence[Cut], config: SplitConfig, limits: Limits) -> Batching | None:
    """Return how requests are joined; None where they are not to be.

    Raises PropertyError where they cannot be, with the reason.
    """
    size = batch_size(config.own)
    if size < 2:
        return None
    require_joinable(cuts[0].partition.source, size)
    return Batching(
        size,
        config.own["AUTO_BATCH_TIMEOUT"] / 1000,
        busy=sum(max(cut.plan.levels, default=0) + 1 for cut in cuts),
        most=limits.requests,
    )
