"""Cost planner: measures a model, searches a plan, and verifies it with queries to the devices."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hetero.affinity.affinity import resolve_pins
from hetero.devices.errors import (
    ArgumentError,
    DeviceError,
    PlanError,
    PropertyError,
    UnsupportedNodesError,
)
from hetero.devices.model.model import Model
from hetero.devices.model.variables import variables_of
from hetero.devices.plugin.support import Refusal, Support
from hetero.formatting import nbytes_text
from hetero.measure.sample_inputs import (
    declared_shapes,
    declared_values,
    sample_inputs,
    sample_shapes,
)
from hetero.partition.partition import PlacedPartition
from hetero.planning.cost.cost_file import check_costs, read_costs, write_costs
from hetero.planning.cost.costs import Costs, DeviceIdentity
from hetero.planning.cost.estimated_costs import estimate_costs
from hetero.planning.cost.estimation import with_input_shapes
from hetero.planning.cost.profile import Progress, profile
from hetero.planning.cost.profile_request import ProfileRequest, identify_device
from hetero.planning.memory.device_memory import DeviceMemory, MemoryModel
from hetero.planning.memory.open_sizes import require_sizes
from hetero.planning.memory.predict_memory import (
    block_nbytes,
    largest_request_count,
    largest_sequence_count,
    predict_memory,
)
from hetero.planning.plan_report import PlanReport
from hetero.planning.plan_task import PlanOptions, plan_task
from hetero.planning.task import Constraints, Task
from hetero.properties.compile_request import CompileRequest
from hetero.properties.replicas_property import PLAN
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
from hetero.scheduler.types.limits import Limits

_log = logging.getLogger(__name__)
#: Fraction of the memory that a device had when it ran out of it, for the next plan.
CORRECTION: Final = 0.9


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
        if not seconds > 0:
            raise ArgumentError(f"seconds={seconds!r}: expected a number greater than 0.")
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
        policy, fits = request.policy, options["FIT_MEMORY"]
        supports = self._query_devices(model, request, refusals)
        if policy == "PRIORITY" and not fits:
            priority = place_by_priority(model, request, self._queries.querier(request), refusals)
        else:
            # For comparison only, so the queries about the whole model are precise enough.
            priority = place_by_priority(model, request, lambda d, _: supports[d], {})
        if fits and options["REPLICAS"] not in (1, PLAN, {}):
            raise PropertyError(
                f"model {model.name!r}: a plan with FIT_MEMORY has one copy of the model, got "
                f"REPLICAS={options['REPLICAS']}. Remove one of them, or compile the model once "
                "for each group of devices.",
                property="REPLICAS",
            )
        if costs is None and fits and not options["COST_FILE"]:
            # A measurement would load parts of the model that need not fit.
            costs = self._estimated_costs(model, request, supports)
        elif costs is None:
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
            replicates=options["REPLICAS"] == "plan" and not variables_of(model),
        )
        replicas = {
            d: tuple(other for other in others if other in costs.devices)
            for d, others in request.replicas.items()
        }
        constraints = self._constraints(model, request)
        memory = None
        if fits:
            memory = self._memory_model(model, request, constraints)
            constraints = replace(constraints, memory_nbytes={})
        task = Task(model, devices, supports, costs, constraints, replicas)
        report = plan_task(task, plan_options, priority, memory)
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

        Without a policy and a hint, the policy is ``AUTO``, or ``PRIORITY`` for plans that fit.

        `wrong_nodes`: nodes that devices are known to run wrongly.
        """
        options = request.hetero_config
        is_open = not options["MODEL_DISTRIBUTION_POLICY"] and not options["PERFORMANCE_HINT"]
        if is_open and not options["FIT_MEMORY"]:
            request = request.with_options(MODEL_DISTRIBUTION_POLICY="AUTO")
        refusals = wrong_nodes
        while True:
            report = self.plan(model, request, refusals, costs=costs, progress=progress)
            error = self._find_refusals(model, request, report)
            if error is None:
                return report
            refusals = add_refusals([r.affinity for r in report.replicas], error, refusals)

    def predict_memory(
        self,
        model: Model,
        placements: Sequence[PlacedPartition],
        request: CompileRequest,
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        requests: int = 1,
        sequences: int | None = None,
    ) -> dict[str, DeviceMemory]:
        """Predict the memory of each device that placements use.

        `shapes`: of inputs with open dimensions; by default those of the plan.
        `requests`: the number of requests in flight.
        `sequences`: the number of sequences that keep states; by default that of the plan.
        """
        memory = self._memory_model(model, request, self._constraints(model, request))
        memory = replace(memory, requests=requests, sequences=sequences or memory.sequences)
        shaped = with_input_shapes(model, shapes or _shapes(model, request))
        subgraphs = [s for placement in placements for s in placement.partition.subgraphs]
        return predict_memory(shaped, subgraphs, memory)

    def reduce_budget(
        self,
        model: Model,
        placements: Sequence[PlacedPartition],
        request: CompileRequest,
        device: str,
    ) -> tuple[CompileRequest, str]:
        """Return a request with less memory for a device that ran out of it, and a sentence.

        The new budget is a tenth below the smallest of the memory that the device had, its old
        budget, and the peak that was predicted for it with these placements.
        """
        budgets = dict(request.hetero_config["DEVICE_MEMORY_NBYTES"])
        known = next((name for name in budgets if match_name(name, (device,))), device)
        old_nbytes = budgets.get(known) or request.descriptor(device).memory_nbytes or 0
        use = self._get_executor().memory_use(device)
        reached_nbytes = old_nbytes if use is None else min(old_nbytes, use.peak_nbytes)
        prediction = self.predict_memory(model, placements, request).get(device)
        predicted_nbytes = reached_nbytes if prediction is None else prediction.peak_nbytes
        budgets[known] = int(min(reached_nbytes, predicted_nbytes) * CORRECTION)
        sentence = (
            f"{device} ran out of memory at {nbytes_text(reached_nbytes)}, although its budget is "
            f"{nbytes_text(old_nbytes)} and its predicted peak {nbytes_text(predicted_nbytes)}; "
            f"planned again with {nbytes_text(budgets[known])}"
        )
        return request.with_options(DEVICE_MEMORY_NBYTES=budgets), sentence

    def fit_options(
        self, model: Model, placements: Sequence[PlacedPartition], request: CompileRequest
    ) -> CompileRequest:
        """Return a request whose options keep placements within the devices' memory.

        Devices get blocks of memory for the values of each stage, those whose copies of weights do
        not fit also their compact options, and the numbers of requests in flight and of sequences
        with states are limited. Without FIT_MEMORY the request remains the same.
        """
        if not request.hetero_config["FIT_MEMORY"]:
            return request
        predictions = self.predict_memory(model, placements, request)
        configs = {device: dict(config) for device, config in request.configs.items()}
        shaped = with_input_shapes(model, _shapes(model, request))
        subgraphs = [s for placement in placements for s in placement.partition.subgraphs]
        for device, prediction in predictions.items():
            traits = request.descriptor(device).memory_traits
            options = configs.setdefault(device, {})
            if traits.values_option:
                stages = [s for s in subgraphs if s.device == device]
                options[traits.values_option] = block_nbytes(shaped, stages, prediction)
            if prediction.compact:
                options.update(traits.compact_options)
        limit = request.hetero_config["MAX_REQUESTS_IN_FLIGHT"] or Limits().requests
        limits = {"MAX_REQUESTS_IN_FLIGHT": largest_request_count(predictions, limit)}
        if variables_of(model):
            two = self.predict_memory(model, placements, request, sequences=2)
            one = self.predict_memory(model, placements, request, sequences=1)
            counts = request.hetero_config["MAX_SEQUENCES"], largest_sequence_count(one, two)
            limits["MAX_SEQUENCES"] = min(filter(None, counts), default=0)
        return replace(request.with_options(**limits), configs=configs)

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

    def _query_devices(
        self, model: Model, request: CompileRequest, refusals: RefusalsByDevice
    ) -> dict[str, Support]:
        query = self._queries.querier(request)
        return {n: without_refusals(query(n, model), n, refusals) for n in request.devices}

    def _estimated_costs(
        self, model: Model, request: CompileRequest, supports: Mapping[str, Support]
    ) -> Costs:
        """Return estimated costs for the sizes of the request.

        Raises PlanError: the size of an input is open, so that its memory is unknown.
        """
        shapes = dict(request.hetero_config["PLAN_SHAPES"] or declared_shapes(model))
        require_sizes(model, shapes)
        identities = self._identities(request)
        return estimate_costs(model, supports, identities, sample_shapes(model, shapes))

    def _memory_model(
        self, model: Model, request: CompileRequest, constraints: Constraints
    ) -> MemoryModel:
        """Return traits and budgets of the devices of a request.

        Raises PlanError: with FIT_MEMORY, the memory of a device is unknown.
        """
        devices = self._current_descriptors(request)
        unknown = [d.name for d in devices if d.name not in constraints.memory_nbytes]
        if unknown and request.hetero_config["FIT_MEMORY"]:
            raise PlanError(
                f"model {model.name!r}: expected the memory of each device, but that of "
                f"{', '.join(unknown)} is unknown; set it with --memory {unknown[0]}=2GB, or with "
                f"DEVICE_MEMORY_NBYTES={{{unknown[0]!r}: 2000000000}}.",
                constraint="memory",
                unknown_devices=tuple(unknown),
            )
        traits = {
            d.name: d.memory_traits.with_options(request.configs.get(d.name, {})) for d in devices
        }
        if request.hetero_config["FIT_MEMORY"]:
            traits = {name: t.with_blocks for name, t in traits.items()}
        return MemoryModel(traits, constraints.memory_nbytes, sequences=constraints.sessions)

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
