"""Cost planner: measures a model, searches a plan, and verifies it with queries to the devices."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hetero.affinity.affinity import resolve_pins
from hetero.devices.errors import DeviceError, PlanError, UnsupportedNodesError
from hetero.devices.model.model import Model
from hetero.devices.model.variables import variables_of
from hetero.devices.plugin.support import Refusal, Support
from hetero.measure.sample_inputs import (
    declared_shapes,
    declared_values,
    sample_inputs,
    sample_shapes,
)
from hetero.planning.cost.cost_file import check_costs, read_costs, write_costs
from hetero.planning.cost.costs import Costs, DeviceIdentity
from hetero.planning.cost.profile import Progress, profile
from hetero.planning.cost.profile_request import ProfileRequest, identify_device
from hetero.planning.plan_report import PlanReport
from hetero.planning.plan_task import PlanOptions, plan_task
from hetero.planning.task import Constraints, Task
from hetero.properties.compile_request import CompileRequest
from hetero.properties.table import COSTS_SUFFIX
from hetero.query.priority import (
    RefusalsByDevice,
    add_refusals,
    place_by_priority,
    without_refusals,
)
from hetero.query.query_cache import QueryCache
from hetero.scheduler.executor import Executor
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.device_names import match_name

_log = logging.getLogger(__name__)


class CostPlanner:
    """Plans models by the costs of their nodes on the devices of an executor."""

    def __init__(self, get_executor: Callable[[], Executor], queries: QueryCache) -> None:
        self._get_executor = get_executor
        self._queries = queries
        #: Hash of model, shapes and devices -> measured costs.
        self._measured_costs: dict[str, Costs] = {}

    def profile(
        self,
        model: Model,
        request: CompileRequest,
        inputs: Mapping[str, Any] | None,
        seconds: float,
        progress: Progress | None,
    ) -> Costs:
        """Measure the costs of a model on the devices of a request; see `Core.profile_model`."""
        shapes = {} if inputs else _shapes(model, request)
        profile_request = ProfileRequest(
            executor=self._get_executor(),
            model=model,
            inputs=sample_inputs(model, inputs or declared_values(model, shapes), shapes),
            devices=self._current_descriptors(request),
            configs=request.configs,
            supports={
                n: self._queries.support(n, model, request.configs[n]) for n in request.all_devices
            },
            seconds=seconds,
        )
        return profile(profile_request, progress)

    def read_costs(self, path: str | Path, model: Model, request: CompileRequest) -> Costs:
        """Read a cost file and check it for a model and devices; see `Core.read_costs`."""
        costs = read_costs(path)
        shapes = _shapes(model, request) if request.hetero_config["PLAN_SHAPES"] else None
        identities = self._identities(request)
        check_costs(costs, model.content_hash, identities, f"cost file {path}", shapes)
        return costs

    def plan(
        self,
        model: Model,
        request: CompileRequest,
        refusals: RefusalsByDevice,
        *,
        costs: Costs | None = None,
        progress: Progress | None = None,
    ) -> PlanReport:
        """Plan a model.

        `refusals`: nodes that devices refused in their part of the model.
        """
        options = request.hetero_config
        policy = request.policy
        supports = self._supports(model, request, refusals)
        if policy == "PRIORITY":
            priority = place_by_priority(model, request, self._queries.querier(request), refusals)
        else:
            # For comparison only, so the queries about the whole model are precise enough.
            priority = place_by_priority(model, request, lambda d, _: supports[d], {})
        if costs is None:
            costs = self._costs(model, request, progress)
        else:
            shapes = _shapes(model, request) if options["PLAN_SHAPES"] else None
            check_costs(costs, model.content_hash, {}, "costs=", shapes)
        for name, reason in costs.missing.items():
            _log.warning("model=%s: planning without device %s: %s", model.name, name, reason)
        devices = tuple(d for d in request.devices if d in costs.devices)
        if not devices:
            raise DeviceError(
                f"model {model.name!r}: no device could be measured: "
                + "; ".join(f"{d}: {r}" for d, r in costs.missing.items())
            )
        if progress is not None:
            progress(0, 1, "searching plans")
        plan_options = PlanOptions(
            policy=policy,
            hint="LATENCY" if options["PERFORMANCE_HINT"] == "LATENCY" else "THROUGHPUT",
            seconds=options["PLAN_SECONDS"],
            seed=options["PLAN_SEED"],
            # A sequence of states is bound to the device that computed them.
            replicates=options["REPLICAS"] == "auto" and not variables_of(model),
        )
        replicas = {
            d: tuple(other for other in others if other in costs.devices)
            for d, others in request.replicas.items()
        }
        constraints = self._constraints(model, request)
        task = Task(model, devices, supports, costs, constraints, replicas)
        report = plan_task(task, plan_options, priority)
        _log.info("model=%s: %s", model.name, report.sentence())
        return report

    def plan_and_verify(
        self,
        model: Model,
        request: CompileRequest,
        wrong_nodes: RefusalsByDevice,
        *,
        costs: Costs | None = None,
        progress: Progress | None = None,
    ) -> PlanReport:
        """Plan a model and verify that the devices support their subgraphs, without compiling it.

        Without a policy and a hint, the policy is ``AUTO``.

        `wrong_nodes`: nodes that devices are known to run wrongly.
        """
        options = request.hetero_config
        if not options["MODEL_DISTRIBUTION_POLICY"] and not options["PERFORMANCE_HINT"]:
            request = request.with_options(MODEL_DISTRIBUTION_POLICY="AUTO")
        refusals = wrong_nodes
        while True:
            report = self.plan(model, request, refusals, costs=costs, progress=progress)
            error = self._find_refusals(model, request, report)
            if error is None:
                return report
            refusals = add_refusals([r.affinity for r in report.replicas], error, refusals)

    def _find_refusals(
        self, model: Model, request: CompileRequest, report: PlanReport
    ) -> UnsupportedNodesError | None:
        """Return an error with the nodes that devices refuse in their subgraphs, or None."""
        unsupported: dict[str, Mapping[str, Refusal]] = {}
        for replica in report.replicas:
            for s in replica.partition.subgraphs:
                submodel = model if len(s.node_names) == len(model.nodes) else s.model
                support = self._queries.support(s.device, submodel, request.configs[s.device])
                for name in s.node_names:
                    if name not in support:
                        unsupported[name] = support.unsupported.get(name, {})
        if not unsupported:
            return None
        explanation = "; ".join(
            f"{name}: {', '.join(map(str, reasons.values()))}"
            for name, reasons in unsupported.items()
        )
        return UnsupportedNodesError(
            f"model {model.name!r}: devices refuse in their subgraphs nodes that they support in "
            f"the whole model: {explanation}. Pin these nodes to other devices.",
            unsupported=unsupported,
        )

    def _costs(self, model: Model, request: CompileRequest, progress: Progress | None) -> Costs:
        """Return costs: from the cost file, from a previous measurement, or from a new one."""
        options = request.hetero_config
        if options["COST_FILE"]:
            return self.read_costs(options["COST_FILE"], model, request)
        shapes = sorted(_shapes(model, request).items())
        identities = sorted(self._identities(request).items(), key=str)
        key = hashlib.sha256(repr((model.content_hash, shapes, identities)).encode()).hexdigest()
        if key in self._measured_costs:
            return self._measured_costs[key]
        path = Path(options["CACHE_DIR"]) / f"{key}{COSTS_SUFFIX}" if options["CACHE_DIR"] else None
        if path is not None and path.is_file():
            try:
                return self.read_costs(path, model, request)
            except PlanError as error:
                _log.warning("model=%s: profiling again: %s", model.name, error)
        costs = self.profile(model, request, None, options["PROFILE_SECONDS"], progress)
        if costs.interrupted:
            raise KeyboardInterrupt
        if not costs.missing:
            self._measured_costs[key] = costs
            if path is not None:
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_costs(costs, path)
                except OSError as error:
                    _log.warning("model=%s: costs were not saved: %s", model.name, error)
        return costs

    def _identities(self, request: CompileRequest) -> dict[str, DeviceIdentity]:
        devices = self._current_descriptors(request)
        return {d.name: identify_device(d, request.configs[d.name]) for d in devices}

    def _current_descriptors(self, request: CompileRequest) -> tuple[DeviceDescriptor, ...]:
        """Return current descriptors of the devices: a device may restart on another node."""
        by_name = {d.name: d for d in self._get_executor().devices(wait=False)}
        return tuple(by_name[name] for name in request.all_devices)

    def _supports(
        self, model: Model, request: CompileRequest, refusals: RefusalsByDevice
    ) -> dict[str, Support]:
        query = self._queries.querier(request)
        return {n: without_refusals(query(n, model), n, refusals) for n in request.devices}

    def _constraints(self, model: Model, request: CompileRequest) -> Constraints:
        options, devices = request.hetero_config, self._current_descriptors(request)
        # Devices that use their cluster node's memory get equal shares of it.
        num_sharing = Counter(d.node for d in devices if d.shares_memory)
        memory_nbytes = {
            d.name: d.memory_nbytes // (num_sharing[d.node] if d.shares_memory else 1)
            for d in devices
            if d.memory_nbytes is not None
        }
        for name, nbytes in options["DEVICE_MEMORY_NBYTES"].items():
            device = match_name(name, request.all_devices)
            if device is None:
                raise PlanError(
                    f"DEVICE_MEMORY_NBYTES: expected one of the model's devices "
                    f"{', '.join(request.all_devices)}; got {name!r}.",
                    constraint="memory",
                )
            memory_nbytes[device] = int(nbytes)
        return Constraints(
            pins=request.pins,
            colocation={
                group: tuple(
                    resolve_pins(model, dict.fromkeys(patterns, "any"), source="COLOCATION")
                )
                for group, patterns in options["COLOCATION"].items()
            },
            memory_nbytes=memory_nbytes,
            max_subgraphs=options["MAX_SUBGRAPHS"] or None,
            sessions=options["PERFORMANCE_HINT_NUM_REQUESTS"] or 1,
        )


def _shapes(model: Model, request: CompileRequest) -> dict[str, tuple[int, ...]]:
    """Return the input shapes for measurements and plans."""
    return sample_shapes(model, request.hetero_config["PLAN_SHAPES"] or declared_shapes(model))
