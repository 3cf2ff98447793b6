"""The part of Core that profiles models and plans them by cost."""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from devices.errors import DeviceError, PlanError
from devices.model import Model
from devices.model_reader import Source, read_model
from devices.properties import Config
from devices.support import Support
from hetero.affinity import Affinity, assign, find_device, resolve_pins
from hetero.compiled_model import CompiledModel
from hetero.config import SplitConfig
from hetero.partition import partition
from hetero.planning.choose import Choice, Policy, choose
from hetero.planning.cost import Costs, DeviceIdentity
from hetero.planning.cost.cost_file import check_costs, read_costs, write_costs
from hetero.planning.cost.profile import Progress, Subject, identify, profile
from hetero.planning.problem import Constraints, Task
from hetero.planning.report import PlannedAffinity, PlanReport
from hetero.query import require_supported
from hetero.routed_model import RoutedModel
from hetero.sample_inputs import sample_inputs
from scheduler.executor import DeviceDescriptor, Executor

_log = logging.getLogger(__name__)

#: Times that a model is planned until devices take the subgraphs that they would get.
PLANNINGS: Final = 3


class PlanRequest(Protocol):
    """What is planned for: devices in order, their configuration, pins."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Names, the most preferred first."""

    @property
    def config(self) -> SplitConfig:
        """HETERO's own properties and each device's."""

    @property
    def pins(self) -> Affinity:
        """Nodes that are placed already."""


class PlanningCore(ABC):
    """What `Core` does with costs."""

    @property
    @abstractmethod
    def executor(self) -> Executor:
        """Where models run."""

    @property
    @abstractmethod
    def device_descriptors(self) -> tuple[DeviceDescriptor, ...]:
        """Every device."""

    @abstractmethod
    def _compile(
        self, source: Model, device: str, config: Config, affinity: Any, *company: str
    ) -> CompiledModel:
        """Compile a model and deploy it beside devices that work at the same time."""

    @abstractmethod
    def _request(self, model: Model, device: str, config: Config, affinity: Any) -> PlanRequest:
        """Sort out what the user asked for."""

    @abstractmethod
    def _ask(self, model: Model, request: Any) -> Support:
        """Ask the devices in order of priority."""

    def profile_model(
        self,
        model: Source | Model,
        device_name: str = "HETERO",
        config: Config | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        seconds: float = 60.0,
        progress: Progress | None = None,
    ) -> Costs:
        """Measure what a model's nodes and subgraphs take on devices, and tensors between them.

        Parameters
        ----------
        model, device_name, config
            As for `compile_model`; every device named is measured.
        inputs : mapping, optional
            A request to measure with, input name -> value; made up to fit by default, open
            dimensions being 1.
        seconds : float
            Time to spend, about.
        progress : callable (int, int, str), optional
            Is told steps done, steps in all, and what is measured.

        Returns
        -------
        Costs
            Ctrl-C ends measuring: what was measured is returned, ``interrupted`` being set.
            Devices that failed or vanished are in ``missing`` with the reason.
        """
        source = read_model(model)
        request = self._request(source, device_name, config or {}, None)
        return self._profile(source, request, inputs, seconds, progress)

    def plan_model(
        self,
        model: Source | Model,
        device_name: str = "HETERO",
        config: Config | None = None,
        *,
        affinity: Any = None,
        costs: Costs | None = None,
    ) -> PlanReport:
        """Choose a device for each node by cost, without compiling.

        Parameters
        ----------
        model, device_name, config, affinity
            As for `compile_model`. Pins hold. With the policy ``PRIORITY`` the plan is the priority
            list's, and only judged.
        costs : Costs, optional
            What `profile_model` measured; else ``COST_FILE``'s, else measured here, briefly.

        Raises
        ------
        PlanError
            Constraints that no plan meets, with ``nodes`` and ``constraint``; costs of another
            model or of other devices, with ``differences``.
        UnsupportedNodesError
            For nodes that no device takes.
        """
        source = read_model(model)
        request = self._request(source, device_name, config or {}, affinity)
        own = dict(request.config.own)
        if not own["MODEL_DISTRIBUTION_POLICY"] and not own["PERFORMANCE_HINT"]:
            own["MODEL_DISTRIBUTION_POLICY"] = "AUTO"
        placed = self._by_priority(source, request)
        return self._plan(source, request, policy_of(own), placed, costs)

    def read_costs(
        self,
        path: str | Path,
        model: Source | Model,
        device_name: str = "HETERO",
        config: Config | None = None,
    ) -> Costs:
        """Read a cost file that is to hold for a model on devices.

        Parameters
        ----------
        path : path
            What `hetero profile` wrote.
        model, device_name, config
            As for `compile_model`.

        Raises
        ------
        PlanError
            It cannot be read, or is of another model or of other devices: with ``differences``.
        """
        source = read_model(model)
        request = self._request(source, device_name, config or {}, None)
        return self._checked_costs(path, source, request)

    def _place(self, model: Model, request: PlanRequest) -> Affinity:
        """Return the affinity that the policy asks for."""
        placed = self._by_priority(model, request)
        policy = policy_of(request.config.own)
        if policy == "PRIORITY" or len(request.devices) == 1:
            return placed
        report = self._plan(model, request, policy, placed, None)
        _log.info("model=%s: %s", model.name, report.sentence())
        return PlannedAffinity(report.affinity.devices, report.affinity.reasons, report)

    def _compile_routed(
        self, model: Model, device: str, config: Config, request: PlanRequest
    ) -> CompiledModel | None:
        """Compile several plans that share requests; None where one plan is wanted, or best."""
        own = request.config.own
        policy = policy_of(own)
        if policy != "AUTO" or own["MAX_VARIANTS"] == 1 or len(request.devices) == 1:
            return None
        report = self._plan(model, request, policy, self._by_priority(model, request), None)
        _log.info("model=%s: %s", model.name, report.sentence())
        given = {**config, "MODEL_DISTRIBUTION_POLICY": "PRIORITY"}
        company = sorted({d for v in report.variants for d in v.affinity.values()})
        made: list[CompiledModel] = []
        try:
            for variant in report.variants:
                pins = dict(variant.affinity.devices)
                made.append(self._compile(model, device, given, pins, *company))
        except BaseException:
            for compiled in made:
                compiled.close()
            raise
        return RoutedModel(made, [v.share for v in report.variants], report)

    def _by_priority(self, model: Model, request: PlanRequest) -> Affinity:
        support = self._ask(model, request)
        placed = assign(model, support, request.pins)
        require_supported(support, model, request.devices)
        return placed

    def _profile(
        self,
        model: Model,
        request: PlanRequest,
        inputs: Mapping[str, Any] | None,
        seconds: float,
        progress: Progress | None,
    ) -> Costs:
        described = {d.name: d for d in self.device_descriptors}
        configs = request.config.devices
        subject = Subject(
            executor=self.executor,
            model=model,
            inputs=sample_inputs(model, inputs),
            devices=tuple(described[name] for name in request.devices),
            configs=configs,
            supports=self._supports(model, request),
            seconds=seconds,
        )
        return profile(subject, progress)

    def _plan(
        self,
        model: Model,
        request: PlanRequest,
        policy: Policy,
        placed: Affinity,
        costs: Costs | None,
    ) -> PlanReport:
        own = request.config.own
        if costs is None:
            costs = self._costs(model, request)
        for name, reason in costs.missing.items():
            _log.warning("model=%s: planned without %s: %s", model.name, name, reason)
        devices = tuple(d for d in request.devices if d in costs.devices)
        if not devices:
            raise DeviceError(
                f"model {model.name!r}: no device could be measured: "
                + "; ".join(f"{d}: {r}" for d, r in costs.missing.items())
            )
        choice = Choice(
            policy=policy,
            hint="LATENCY" if own["PERFORMANCE_HINT"] == "LATENCY" else "THROUGHPUT",
            seconds=own["PLAN_SECONDS"],
            seed=own["PLAN_SEED"],
            max_variants=own["MAX_VARIANTS"],
        )
        listed = placed if set(placed.values()) <= set(devices) else None
        supports = self._supports(model, request)
        constraints = self._constraints(model, request)
        for _ in range(PLANNINGS):
            report = choose(Task(model, devices, supports, costs, constraints), choice, listed)
            refused = self._refused(model, request, report)
            if policy == "PRIORITY" or not refused:
                break
            # A device may refuse in a part what it takes in the whole: plan without that.
            supports = {
                d: Support({n: d for n in supports[d] if n not in refused.get(d, ())})
                for d in supports
            }
        return report

    def _refused(
        self, model: Model, request: PlanRequest, report: PlanReport
    ) -> dict[str, set[str]]:
        """Return the nodes that devices do not take in the subgraphs that they would get."""
        configs = request.config.devices
        found: dict[str, set[str]] = {}
        for variant in report.variants:
            for s in partition(model, variant.affinity).subgraphs:
                answer = self.executor.query(s.device, s.model, configs.get(s.device, {}))
                if missing := {n for n in s.node_names if n not in answer}:
                    found.setdefault(s.device, set()).update(missing)
        return found

    def _costs(self, model: Model, request: PlanRequest) -> Costs:
        """Return the cost file's costs, those kept in the cache's folder, or measure now."""
        own = request.config.own
        if own["COST_FILE"]:
            return self._checked_costs(own["COST_FILE"], model, request)
        kept = None
        if own["CACHE_DIR"]:
            key = repr((model.content_hash, sorted(self._identities(request).items(), key=str)))
            name = hashlib.sha256(key.encode()).hexdigest()
            kept = Path(own["CACHE_DIR"]) / f"{name}.costs.json"
            if kept.is_file():
                try:
                    return self._checked_costs(kept, model, request)
                except PlanError as error:
                    _log.warning("model=%s: measured anew: %s", model.name, error)
        costs = self._profile(model, request, None, own["PROFILE_SECONDS"], None)
        if costs.interrupted:
            raise KeyboardInterrupt
        if kept is not None and not costs.missing:
            try:
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_costs(costs, kept)
            except OSError as error:
                _log.warning("model=%s: its costs are not kept: %s", model.name, error)
        return costs

    def _identities(self, request: PlanRequest) -> dict[str, DeviceIdentity]:
        described = {d.name: d for d in self.device_descriptors}
        configs = request.config.devices
        return {n: identify(described[n], configs.get(n, {})) for n in request.devices}

    def _checked_costs(self, path: str | Path, model: Model, request: PlanRequest) -> Costs:
        costs = read_costs(path)
        identities = self._identities(request)
        check_costs(costs, model.content_hash, identities, f"cost file {path}")
        return costs

    def _supports(self, model: Model, request: PlanRequest) -> dict[str, Support]:
        configs = request.config.devices
        return {n: self.executor.query(n, model, configs.get(n, {})) for n in request.devices}

    def _constraints(self, model: Model, request: PlanRequest) -> Constraints:
        own = request.config.own
        described = {d.name: d for d in self.device_descriptors}
        memory = {
            n: int(nbytes)
            for n in request.devices
            if (nbytes := described[n].memory_nbytes) is not None
        }
        for name, nbytes in own["DEVICE_MEMORY_NBYTES"].items():
            listed = find_device(name, request.devices)
            if listed is None:
                raise PlanError(
                    f"DEVICE_MEMORY_NBYTES names {name!r}, which is none of the model's devices: "
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
        )


def policy_of(own: Mapping[str, Any]) -> Policy:
    """Return the policy that HETERO's properties come to."""
    given: Policy = own["MODEL_DISTRIBUTION_POLICY"] or (
        "AUTO" if own["PERFORMANCE_HINT"] else "PRIORITY"
    )
    return given


def cost_digest(own: Mapping[str, Any]) -> str:
    """Return a hash of the cost file that the properties name, or nothing."""
    path = Path(own["COST_FILE"])
    if not own["COST_FILE"] or not path.is_file():
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()
