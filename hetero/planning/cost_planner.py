"""Planning by cost: measured, searched, and verified with the devices."""

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
from hetero.planning.cost.profile_request import Subject, identify
from hetero.planning.plan_report import PlanReport
from hetero.planning.plan_task import Choice, choose
from hetero.planning.task import Constraints, Task
from hetero.properties.request import CompileRequest
from hetero.properties.table import COSTS_SUFFIX
from hetero.query.priority import (
    RefusalsByDevice,
    add_refusals,
    place_by_priority,
    without_refusals,
)
from hetero.query.query_cache import QueryCache
from hetero.scheduler.executor import Executor
from hetero.scheduler.vocabulary.names import match_name
from hetero.scheduler.vocabulary.rows import DeviceDescriptor

_log = logging.getLogger(__name__)


class CostPlanner:
    """Plans models by what their nodes cost on the devices of an executor, started when needed."""

    def __init__(self, executor: Callable[[], Executor], queries: QueryCache) -> None:
        self._executor = executor
        self._queries = queries
        #: Model and devices -> what was measured of them here.
        self._measured: dict[str, Costs] = {}

    def profile(
        self,
        model: Model,
        request: CompileRequest,
        inputs: Mapping[str, Any] | None,
        seconds: float,
        progress: Progress | None,
    ) -> Costs:
        """Measure a model on every device of a request; see `Core.profile_model`."""
        shapes = {} if inputs else _shapes(model, request)
        subject = Subject(
            executor=self._executor(),
            model=model,
            inputs=sample_inputs(model, inputs or declared_values(model, shapes), shapes),
            devices=self._rows(request),
            configs=request.configs,
            supports=self._supports(model, request, {}),
            seconds=seconds,
        )
        return profile(subject, progress)

    def read_costs(self, path: str | Path, model: Model, request: CompileRequest) -> Costs:
        """Read a cost file that is to hold for a model and devices; see `Core.read_costs`."""
        costs = read_costs(path)
        given = request.own["PLAN_SHAPES"]
        shapes = _shapes(model, request) if given else None
        identities = self._identities(request)
        check_costs(costs, model.content_hash, identities, f"cost file {path}", shapes)
        return costs

    def plan(
        self,
        model: Model,
        request: CompileRequest,
        refused: RefusalsByDevice,
        *,
        costs: Costs | None = None,
        progress: Progress | None = None,
    ) -> PlanReport:
        """Plan a model without the nodes that devices are known to refuse in a part."""
        own = request.own
        policy = request.policy
        supports = self._supports(model, request, refused)
        if policy == "PRIORITY":
            placed = place_by_priority(model, request, self._queries.querier(request), refused)
        else:
            # As far as the answers about the whole model tell: this one is only judged.
            placed = place_by_priority(model, request, lambda d, _: supports[d], {})
        if costs is None:
            costs = self._costs(model, request, progress)
        else:
            shapes = _shapes(model, request) if own["PLAN_SHAPES"] else None
            check_costs(costs, model.content_hash, {}, "costs=", shapes)
        for name, reason in costs.missing.items():
            _log.warning("model=%s: planned without %s: %s", model.name, name, reason)
        devices = tuple(d for d in request.devices if d in costs.devices)
        if not devices:
            raise DeviceError(
                f"model {model.name!r}: no device could be measured: "
                + "; ".join(f"{d}: {r}" for d, r in costs.missing.items())
            )
        if progress is not None:
            progress(0, 1, "searching plans")
        choice = Choice(
            policy=policy,
            hint="LATENCY" if own["PERFORMANCE_HINT"] == "LATENCY" else "THROUGHPUT",
            seconds=own["PLAN_SECONDS"],
            seed=own["PLAN_SEED"],
            max_variants=own["MAX_VARIANTS"],
        )
        task = Task(model, devices, supports, costs, self._constraints(model, request))
        report = choose(task, choice, placed)
        _log.info("model=%s: %s", model.name, report.sentence())
        return report

    def verified(
        self,
        model: Model,
        request: CompileRequest,
        *,
        costs: Costs | None = None,
        progress: Progress | None = None,
    ) -> PlanReport:
        """Plan a model that is not compiled now: devices are asked about the subgraphs as well.

        Without a policy and a hint it is ``AUTO``: who asks for a plan wants one by cost.
        """
        own = request.own
        if not own["MODEL_DISTRIBUTION_POLICY"] and not own["PERFORMANCE_HINT"]:
            request = request.with_own(MODEL_DISTRIBUTION_POLICY="AUTO")
        refused: RefusalsByDevice = {}
        while True:
            report = self.plan(model, request, refused, costs=costs, progress=progress)
            error = self._refusal(model, request, report)
            if error is None:
                return report
            refused = add_refusals([v.affinity for v in report.variants], error, refused)

    def _refusal(
        self, model: Model, request: CompileRequest, report: PlanReport
    ) -> UnsupportedNodesError | None:
        """Return the nodes that devices do not take in the subgraphs that they would get."""
        found: dict[str, Mapping[str, Refusal]] = {}
        for variant in report.variants:
            for s in variant.partition.subgraphs:
                about = model if len(s.node_names) == len(model.nodes) else s.model
                answer = self._queries.support(s.device, about, request.configs[s.device])
                found |= {n: answer.unsupported.get(n, {}) for n in s.node_names if n not in answer}
        if not found:
            return None
        said = "; ".join(f"{n}: {', '.join(map(str, why.values()))}" for n, why in found.items())
        return UnsupportedNodesError(
            f"model {model.name!r}: devices refuse in their subgraphs what they take in the whole: "
            f"{said}. Give these nodes to others by an affinity.",
            unsupported=found,
        )

    def _costs(self, model: Model, request: CompileRequest, progress: Progress | None) -> Costs:
        """Return the cost file's costs, those measured before, or measure now."""
        own = request.own
        if own["COST_FILE"]:
            return self.read_costs(own["COST_FILE"], model, request)
        shapes = sorted(_shapes(model, request).items())
        identities = sorted(self._identities(request).items(), key=str)
        key = hashlib.sha256(repr((model.content_hash, shapes, identities)).encode()).hexdigest()
        if key in self._measured:
            return self._measured[key]
        kept = Path(own["CACHE_DIR"]) / f"{key}{COSTS_SUFFIX}" if own["CACHE_DIR"] else None
        if kept is not None and kept.is_file():
            try:
                return self.read_costs(kept, model, request)
            except PlanError as error:
                _log.warning("model=%s: measured again: %s", model.name, error)
        costs = self.profile(model, request, None, own["PROFILE_SECONDS"], progress)
        if costs.interrupted:
            raise KeyboardInterrupt
        if not costs.missing:
            self._measured[key] = costs
            if kept is not None:
                try:
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    write_costs(costs, kept)
                except OSError as error:
                    _log.warning("model=%s: its costs are not kept: %s", model.name, error)
        return costs

    def _identities(self, request: CompileRequest) -> dict[str, DeviceIdentity]:
        return {d.name: identify(d, request.configs[d.name]) for d in self._rows(request)}

    def _rows(self, request: CompileRequest) -> tuple[DeviceDescriptor, ...]:
        """Return the devices of a request as they are now: one may be back on another node."""
        described = {d.name: d for d in self._executor().devices(wait=False)}
        return tuple(described[name] for name in request.devices)

    def _supports(
        self, model: Model, request: CompileRequest, refused: RefusalsByDevice
    ) -> dict[str, Support]:
        configs = request.configs
        return {
            n: without_refusals(self._queries.support(n, model, configs[n]), n, refused)
            for n in request.devices
        }

    def _constraints(self, model: Model, request: CompileRequest) -> Constraints:
        own, rows = request.own, self._rows(request)
        # Devices that use their node's memory get equal parts of it.
        sharing = Counter(row.node for row in rows if row.shares_memory)
        memory = {
            row.name: row.memory_nbytes // (sharing[row.node] if row.shares_memory else 1)
            for row in rows
            if row.memory_nbytes is not None
        }
        for name, nbytes in own["DEVICE_MEMORY_NBYTES"].items():
            listed = match_name(name, request.devices)
            if listed is None:
                raise PlanError(
                    f"DEVICE_MEMORY_NBYTES names {name!r}, which is not a device of the model: "
                    f"{', '.join(request.devices)}.",
                    constraint="memory",
                )
            memory[listed] = int(nbytes)
        return Constraints(
            pins=request.pins,
            colocation={
                group: tuple(
                    resolve_pins(model, dict.fromkeys(patterns, "any"), source="COLOCATION")
                )
                for group, patterns in own["COLOCATION"].items()
            },
            memory_nbytes=memory,
            max_subgraphs=own["MAX_SUBGRAPHS"] or None,
            sessions=own["PERFORMANCE_HINT_NUM_REQUESTS"] or 1,
        )


def _shapes(model: Model, request: CompileRequest) -> dict[str, tuple[int, ...]]:
    """Return the shapes that a model is measured and planned at."""
    return sample_shapes(model, request.own["PLAN_SHAPES"] or declared_shapes(model))
