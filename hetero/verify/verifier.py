"""Verifier: checks the parts of a placed model on vendors' devices before the first request.

A vendor's wrong nodes are refused on its device with the evidence, and the compiler places the
model again. Verdicts are stored, so each part is checked once per device, driver and options.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final

from hetero.cache.folder import Cache
from hetero.devices.errors import DeviceError, HeteroError, VerificationError
from hetero.devices.model.attributes import is_random
from hetero.devices.model.model import Model
from hetero.devices.model.variables import variables_of
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.support import Refusal
from hetero.formatting import count_text
from hetero.partition.partition import PlacedPartition, Subgraph
from hetero.planning.cost.estimation import DEFAULT_SPEED, count_work, with_input_shapes
from hetero.properties.compile_request import CompileRequest
from hetero.query.priority import remove_refusals
from hetero.scheduler.device.isolated_run import run_isolated, start_worker
from hetero.scheduler.executor import Executor
from hetero.scheduler.types.isolation import RunBounds, RunFailure, RunResult
from hetero.verify.generated_inputs import (
    FALLING_SIZES,
    KINDS,
    count_elements,
    draw_inputs,
    has_open_dimensions,
    large_size_options,
    only_shapes,
    size_options,
)
from hetero.verify.live_samples import Exclude, LiveCounts, LiveSampler
from hetero.verify.part_check import CheckResult, PartCheck, PartDraw
from hetero.verify.reference_values import ReferenceValues
from hetero.verify.tolerance import unit_of
from hetero.verify.undefined_results import has_large_window
from hetero.verify.verdict import (
    REFERENCE,
    PartVerdict,
    Status,
    Verification,
    is_vendor,
    refusals_of,
)
from hetero.verify.verdict_store import VerdictStore

_log = logging.getLogger(__name__)

#: Called with the number of parts checked, the number of parts, and a text.
Progress = Callable[[int, int, str], None]
#: Additional memory of a verification process.
_MEMORY_NBYTES: Final = 2**32
#: Larger weights are not copied to a verification process.
_MAX_WEIGHT_NBYTES: Final = 2**30
#: Processor time of one call: a constant for starts and compilation, and a multiple of the
#: estimate, because the estimate is rough.
_CALL_S: Final = 60.0
_CALL_PER_ESTIMATE: Final = 20.0
#: Share of the time limit that a run with inputs of further sizes may take.
_FURTHER_SHARE: Final = 0.05
#: Runs of a vendor's part with each set of inputs: onnxruntime-ggml 0.2.0 ends the process in one
#: of the first runs, but not always in the first.
_NUM_RUNS: Final = 12
#: The same for the runtimes that the tests cover.
_NUM_RUNS_OF_TESTED: Final = 3
_TESTED_PLUGINS: Final = frozenset({"ORT", "OV"})
#: Device options that select the precision of the computation.
_PRECISION: Final = "INFERENCE_PRECISION_HINT"


class Verifier:
    """Verifies placements on the devices of an executor; keeps the verdicts."""

    def __init__(self, get_executor: Callable[[], Executor]) -> None:
        self._get_executor = get_executor
        self.store: Final = VerdictStore()
        #: Results of the requests that were repeated on the reference.
        self.live_counts: Final = LiveCounts()

    def session(
        self,
        model: Model,
        request: CompileRequest,
        cache: Cache | None,
        progress: Progress | None = None,
    ) -> Session:
        """Return the verification of one compilation."""
        return Session(self._get_executor, self.store, model, request, cache, progress)

    def sampler(
        self,
        session: Session,
        placements: Callable[[], Sequence[PlacedPartition]],
        exclude: Exclude,
    ) -> LiveSampler | None:
        """Return the sampler of a compiled model's requests; None without VERIFY_SAMPLE.

        `placements`: returns the present placements of the model.
        `exclude`: plans the model without a device, for VERIFY_SAMPLE_ACTION=EXCLUDE.
        """
        share = session.request.hetero_config["VERIFY_SAMPLE"]
        source = placements()[0].partition.source
        if not share or variables_of(source) or any(is_random(n.proto) for n in source.nodes):
            return None  # requests with states or random numbers cannot be repeated
        return LiveSampler(
            source.name,
            share,
            lambda inputs, outputs: session.check_request(placements(), inputs, outputs),
            lambda: not self._get_executor().requests_in_flight(),
            self.live_counts,
            exclude if session.request.hetero_config["VERIFY_SAMPLE_ACTION"] == "EXCLUDE" else None,
        )

    def refusals(
        self, model: Model, request: CompileRequest, cache: Cache | None
    ) -> dict[str, dict[str, Refusal]]:
        """Return the nodes that devices are known to run wrongly; empty with VERIFY=NO."""
        if request.hetero_config["VERIFY"] == "NO":
            return {}
        refusals = {
            device.name: self.store.refusals(model, device.name, request, cache)
            for device in request.descriptors
            if is_vendor(device)
        }
        return {device: nodes for device, nodes in refusals.items() if nodes}

    def summaries(
        self, model: Model, request: CompileRequest, cache: Cache | None
    ) -> dict[str, str]:
        """Return the numbers of verified subgraphs and of wrong nodes by device, if known."""
        if request.hetero_config["VERIFY"] == "NO":
            return {}
        summaries = {}
        for device in request.devices:
            verdicts = self.store.find(model, device, request, cache).values()
            wrong = {node for verdict in verdicts for node in refusals_of(verdict)}
            agreeing = sum(verdict.status == "agrees" for verdict in verdicts)
            texts = [
                *([f"{count_text(agreeing, 'subgraph')} equal to {REFERENCE}"] if agreeing else []),
                *([f"{count_text(len(wrong), 'wrong node')}"] if wrong else []),
            ]
            if texts:
                summaries[device] = ", ".join(texts)
        return summaries


@dataclass
class Session:
    """Verification of one compilation: placements are verified until no new refusal is found."""

    get_executor: Callable[[], Executor]
    store: VerdictStore
    model: Model
    request: CompileRequest
    cache: Cache | None
    progress: Progress | None = None
    #: Device -> node -> refusal of a node that the device runs wrongly.
    refusals: dict[str, dict[str, Refusal]] = field(default_factory=dict)
    #: Nodes that the device runs wrongly, but that no other device can run.
    kept: dict[str, dict[str, Refusal]] = field(default_factory=dict)
    seconds: float = 0.0
    _verdicts: dict[tuple[str, str], PartVerdict] = field(default_factory=dict)
    _values: dict[str, ReferenceValues] = field(default_factory=dict)
    #: Sizes of open dimensions -> seconds of a run on the reference, and whether windows fit.
    _predictions: dict[tuple[int, ...], tuple[float, bool]] = field(default_factory=dict)
    #: Values at the boundaries of the parts to check, by model.
    _boundaries: Mapping[Model, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.request.hetero_config["VERIFY"] != "YES":
            return  # STRICT raises an error when a plan has wrong nodes
        for device in self._vendors:
            verdicts = self.store.find(self.model, device, self.request, self.cache)
            for part_key, verdict in verdicts.items():
                if verdict.status == "refused":
                    self._verdicts[device, part_key] = replace(verdict, device=device)
                    self._refuse(device, refusals_of(verdict))

    @property
    def is_enabled(self) -> bool:
        """Whether the request asks for verification."""
        return bool(self.request.hetero_config["VERIFY"] != "NO")

    @property
    def result(self) -> Verification:
        """The verdicts so far."""
        return Verification(tuple(self._verdicts.values()), self.seconds)

    @cached_property
    def _vendors(self) -> frozenset[str]:
        """Names of the devices to verify."""
        return frozenset(d.name for d in self.request.descriptors if is_vendor(d))

    def prepare(self) -> None:
        """Start the reference's process, while the model is placed."""
        if self.is_enabled and self._vendors and self._num_draws(self.model)[0]:
            start_worker()

    def verify(self, placements: Sequence[PlacedPartition]) -> bool:
        """Verify the parts of placements; return whether all of them can be deployed.

        If not, `refusals` has new nodes, and the model must be placed again.

        Raises VerificationError: with VERIFY=STRICT, a device is wrong.
        """
        if not self.is_enabled or not self._vendors:
            return True
        began_s = time.perf_counter()
        try:
            return self._verify(placements)
        finally:
            self.seconds += time.perf_counter() - began_s

    def _verify(self, placements: Sequence[PlacedPartition]) -> bool:
        subgraphs = self._vendor_subgraphs(placements)
        new = {key: s for key, s in subgraphs.items() if key not in self._verdicts}
        self._recall(new)
        unknown = {key: s for key, s in new.items() if key not in self._verdicts}
        self._check_all(unknown)
        for device in {device for device, _ in new}:
            self.store.save(self.model, device, self.request, self.cache)
        is_final = True
        for device, part_key in new:
            verdict = self._verdicts[device, part_key]
            wrong_nodes = refusals_of(verdict)
            if wrong_nodes and self.request.hetero_config["VERIFY"] == "STRICT":
                raise VerificationError(
                    f"model {self.model.name!r}: {verdict.reason}. VERIFY=STRICT refuses wrong "
                    f"results; exclude {device}, or set VERIFY=YES.",
                    device=device,
                    nodes=tuple(wrong_nodes),
                )
            if self._refuse(device, wrong_nodes):
                is_final = False
        return is_final

    def recall(self, placements: Sequence[PlacedPartition]) -> None:
        """Take over the known verdicts on the parts of placements, without new checks."""
        if self.is_enabled:
            self._recall(self._vendor_subgraphs(placements))

    def _recall(self, subgraphs: Mapping[tuple[str, str], Subgraph]) -> None:
        for (device, part_key), subgraph in subgraphs.items():
            verdicts = self.store.find(self.model, device, self.request, self.cache)
            if part_key in verdicts:
                self._verdicts[device, part_key] = replace(
                    verdicts[part_key], device=device, node_names=subgraph.node_names
                )

    def _vendor_subgraphs(
        self, placements: Sequence[PlacedPartition]
    ) -> dict[tuple[str, str], Subgraph]:
        """Return the subgraphs on vendors' devices, by device and content hash."""
        return {
            (s.device, s.model.content_hash): s
            for placement in placements
            for s in placement.partition.subgraphs
            if s.device in self._vendors
        }

    def _check_all(self, subgraphs: Mapping[tuple[str, str], Subgraph]) -> None:
        """Check parts, and store their verdicts."""
        needed: dict[Model, list[str]] = {}
        for subgraph in subgraphs.values():
            needed.setdefault(subgraph.source, []).extend((*subgraph.inputs, *subgraph.outputs))
        self._boundaries = needed
        for number, ((device, part_key), subgraph) in enumerate(subgraphs.items()):
            if self.progress is not None:
                self.progress(number, len(subgraphs), f"verifying {device}")
            verdict = self._verdicts[device, part_key] = self._check(subgraph)
            if verdict.status != "not verified":
                self.store.add(self.model, device, self.request, {part_key: verdict}, self.cache)

    def _refuse(self, device: str, nodes: Mapping[str, Refusal]) -> bool:
        """Add refusals of nodes on a device; return whether one of them is new."""
        kept = self.kept.setdefault(device, {})
        refused = self.refusals.setdefault(device, {})
        is_new = False
        for node, refusal in nodes.items():
            if self.request.pins.get(node) == device:
                self._require_no_crash(device, {node: refusal})
                kept[node] = refusal
            elif node not in kept and node not in refused:
                refused[node] = refusal
                is_new = True
        return is_new

    def keep(self, unsupported: Mapping[str, Any]) -> bool:
        """Leave nodes that no other device supports on their device; return whether any was.

        Raises VerificationError: a node would end the process that runs it.
        """
        removed = remove_refusals(self.refusals, unsupported)
        for device, nodes in removed.items():
            self._require_no_crash(device, nodes)
            self.kept[device] |= nodes
        return bool(removed)

    def _require_no_crash(self, device: str, nodes: Mapping[str, Refusal]) -> None:
        """Raise VerificationError if a device's run of one of the nodes ends its process."""
        crashing = {name: refusal for name, refusal in nodes.items() if refusal.code == "crash"}
        for refusal in crashing.values():
            raise VerificationError(
                f"model {self.model.name!r}: {refusal.message}. Expected a run that returns; add "
                f"{REFERENCE} to the list of devices, remove pins to {device}, or set VERIFY=NO, "
                "which risks the process.",
                device=device,
                nodes=tuple(crashing),
            )

    def report(self) -> None:
        """Log one warning about all wrong nodes; mark verdicts whose nodes stay on their device."""
        for key, verdict in self._verdicts.items():
            nodes = refusals_of(verdict).keys()
            if nodes and nodes <= self.kept.get(verdict.device, {}).keys():
                self._verdicts[key] = replace(verdict, status="kept")
        sentences = [v.reason for v in self._verdicts.values() if v.evidence]
        if not sentences:
            return
        num_refused = sum(map(len, self.refusals.values()))
        num_kept = sum(map(len, self.kept.values()))
        outcome = [
            *([f"on other devices: {count_text(num_refused, 'node')}"] if num_refused else []),
            *([f"kept for lack of another: {count_text(num_kept, 'node')}"] if num_kept else []),
        ]
        _log.warning(
            "model=%s: verification found wrong results (%s): %s",
            self.model.name,
            "; ".join(outcome) or "the reference is outvoted",
            "; ".join(sentences),
        )

    def _check(self, subgraph: Subgraph) -> PartVerdict:
        """Check a part on its device."""
        verdict = _not_verified(subgraph)
        source, part = subgraph.source, subgraph.model
        random_nodes = [node for node in part.nodes if is_random(node.proto)]
        if random_nodes:
            node = random_nodes[0]
            return replace(verdict, reason=f"{node.op_type} {node.name!r} draws random numbers")
        if not part.outputs or (not part.inputs and not part.constants):
            return replace(verdict, reason="it has no inputs or outputs")
        num_draws, problem = self._num_draws(source)
        if not num_draws:
            return replace(verdict, reason=problem)
        try:
            result = self._check_draws(source, part, subgraph.device, num_draws)
        except HeteroError as error:
            return replace(verdict, reason=str(error))
        return self._verdict(subgraph, result)

    def _verdict(self, subgraph: Subgraph, result: CheckResult) -> PartVerdict:
        """Return the verdict on a part from the result of its check."""
        verdict = _not_verified(subgraph)
        if result.not_verified:
            return replace(verdict, reason=result.not_verified)
        if not result.evidence:
            return replace(verdict, status="agrees")
        reason = "; ".join(e.sentence(subgraph.device, REFERENCE) for e in result.evidence)
        status: Status = "disputed" if result.is_disputed else "refused"
        return replace(verdict, status=status, reason=reason, evidence=result.evidence)

    def _check_draws(self, source: Model, part: Model, device: str, num_draws: int) -> CheckResult:
        values = self._reference_values(source, num_draws)
        values.compute(self._boundaries[source])
        draws = values.part_draws(part)
        if not draws:
            return CheckResult(not_verified=values.problem or "no inputs could be generated")
        return self._part_check(part, draws, device).run()

    def _part_check(self, part: Model, draws: Sequence[PartDraw], device: str) -> PartCheck:
        """Return the check of a part on a device."""
        unit = unit_of(part, self._precision(device))
        return PartCheck(
            part,
            draws,
            self._reference,
            partial(self._shaken_reference, unit),
            partial(self._run, device),
            unit,
            {name: partial(self._run, name) for name in self._witness_devices(device)},
            frozenset(self.kept.get(device, {})),
            self._known_faults(device),
        )

    def _known_faults(self, device: str) -> tuple[tuple[str, ...], ...]:
        """Return the operators of the failing subgraphs that were found so far."""
        evidence = (e for v in self._verdicts.values() if v.device == device for e in v.evidence)
        return tuple(dict.fromkeys(e.op_types for e in evidence if len(e.op_types) > 1))

    def check_request(
        self,
        placements: Sequence[PlacedPartition],
        inputs: Mapping[str, Value],
        outputs: Mapping[str, Value],
    ) -> list[PartVerdict]:
        """Compare the outputs of a request with the reference's; return verdicts on wrong parts.

        Verdicts with located faults are stored, so that later compilations refuse the nodes. If no
        part is wrong alone, one verdict without evidence names all vendors' nodes; several devices
        leave it open which of them is wrong.

        Raises DeviceError: the reference fails.
        """
        source = placements[0].partition.source
        subgraphs = self._vendor_subgraphs(placements)
        unit = max((unit_of(source, self._precision(d)) for d, _ in subgraphs), default=0.0)
        shaken = partial(self._shaken_reference, unit)
        values = self._request_values(source, subgraphs.values(), inputs)
        request = PartDraw("request", inputs)
        check = PartCheck(source, [request], self._reference, shaken, self._reference, unit)
        if not check.difference(source, values, {}, outputs) or check.is_noise(
            inputs, values, outputs
        ):
            return []
        wrong = []
        for (device, part_key), subgraph in subgraphs.items():
            part = subgraph.model
            if any(port.name not in values for port in (*part.inputs, *part.outputs)):
                continue
            draw = PartDraw(
                "request",
                {port.name: values[port.name] for port in part.inputs},
                {port.name: values[port.name] for port in part.outputs},
            )
            verdict = self._verdict(subgraph, self._part_check(part, [draw], device).run())
            if verdict.evidence:
                wrong.append(verdict)
                self.store.add(self.model, device, self.request, {part_key: verdict}, self.cache)
        if wrong:
            return wrong
        devices = list(dict.fromkeys(device for device, _ in subgraphs))
        nodes = tuple(name for s in subgraphs.values() for name in s.node_names)
        reason = "the outputs differ, but each subgraph alone is equal to the reference"
        status: Status = "refused" if len(devices) == 1 else "disputed"
        return [PartVerdict(", ".join(devices), REFERENCE, nodes, status, reason)]

    def _request_values(
        self, source: Model, subgraphs: Iterable[Subgraph], inputs: Mapping[str, Value]
    ) -> dict[str, Value]:
        """Return the reference's values of a request: outputs, and boundaries of subgraphs."""
        names = dict.fromkeys(port.name for port in source.outputs)
        names |= dict.fromkeys(v for s in subgraphs for v in (*s.inputs, *s.outputs))
        computed = [n for n in names if n in source.producers and source.spec(n).type]
        full = source.extract(range(len(source.nodes)), computed)
        (result,) = self._reference(full, [inputs])
        if isinstance(result, RunFailure):
            raise DeviceError(f"{REFERENCE} fails to repeat a request: {result.reason}.")
        return {**inputs, **result}

    def _reference_values(self, source: Model, num_draws: int) -> ReferenceValues:
        """Return the reference's values of a model; plans of one model share them."""
        key = source.content_hash
        if key not in self._values:
            plugin = _reference_class()()
            supported = frozenset(plugin.query_model(source, self._reference_config).devices)
            further_sizes = self._further_sizes if num_draws == len(KINDS) else None
            self._values[key] = ReferenceValues(
                source, self._reference, supported, num_draws, further_sizes, self._is_suitable
            )
        return self._values[key]

    def _num_draws(self, source: Model) -> tuple[int, str]:
        """Return the number of sets of inputs within the time limit, or 0 and the reason."""
        if source.weight_nbytes > _MAX_WEIGHT_NBYTES:
            return 0, f"its weights take more than {_MAX_WEIGHT_NBYTES >> 30} GiB"
        limit_s = self.request.hetero_config["VERIFY_SECONDS"]
        estimate_s = self._estimate_s
        num_draws = min(len(KINDS), int(limit_s / estimate_s)) if estimate_s else len(KINDS)
        if num_draws:
            return num_draws, ""
        return 0, f"it takes about {estimate_s:.1f} s, more than VERIFY_SECONDS={limit_s:g}"

    @cached_property
    def _estimate_s(self) -> float:
        """Estimated seconds of one run of the model on the reference."""
        return self._estimate(size_options(self.model)[0])

    @cached_property
    def _further_sizes(self) -> tuple[tuple[int, ...], ...]:
        """More sizes of open dimensions that take little time: falling, and the largest ones."""
        model = self.model
        if not has_open_dimensions(model):
            return ()
        limit_s = self.request.hetero_config["VERIFY_SECONDS"] * _FURTHER_SHARE
        num_elements = count_elements(model, size_options(model)[0])

        def is_quick(sizes: tuple[int, ...]) -> bool:
            # The time grows at least as the number of elements does; a prediction takes longer.
            least_s = self._estimate_s * count_elements(model, sizes) / max(1, num_elements)
            if least_s > limit_s:
                return False
            run_s, fits = self._prediction(sizes)
            return fits and 0 < run_s <= limit_s

        large_sizes = filter(is_quick, large_size_options(model))
        return (*filter(is_quick, [FALLING_SIZES]), *itertools.islice(large_sizes, 1))

    def _is_suitable(self, sizes: tuple[int, ...]) -> bool:
        """Return whether windows fit into inputs of some sizes, and a run keeps the time limit."""
        run_s, fits = self._prediction(sizes)
        return fits and run_s <= self.request.hetero_config["VERIFY_SECONDS"]

    def _estimate(self, sizes: tuple[int, ...]) -> float:
        """Return the estimated seconds of one run on the reference; 0 if they are not known."""
        return self._prediction(sizes)[0]

    def _prediction(self, sizes: tuple[int, ...]) -> tuple[float, bool]:
        """Return the estimated seconds of a run, and whether all windows fit into their data."""
        if sizes not in self._predictions:
            try:
                draw = draw_inputs(self.model, "typical", sizes)
                model = with_input_shapes(self.model, only_shapes(draw.inputs))
                run_s = sum(DEFAULT_SPEED(count_work(model, node)) for node in model.nodes)
                self._predictions[sizes] = run_s, not has_large_window(model)
            except HeteroError:
                self._predictions[sizes] = 0.0, True
        return self._predictions[sizes]

    @property
    def _bounds(self) -> RunBounds:
        time_s = _CALL_S + _CALL_PER_ESTIMATE * self._estimate_s
        return RunBounds(time_s, _MEMORY_NBYTES + 2 * self.model.weight_nbytes)

    def _num_runs(self, device: str) -> int:
        """Runs of a vendor's part with each set of inputs: two, or more within the time limit."""
        is_tested = self.request.descriptor(device).plugin in _TESTED_PLUGINS
        most = _NUM_RUNS_OF_TESTED if is_tested else _NUM_RUNS
        limit_s = self.request.hetero_config["VERIFY_SECONDS"]
        runs = limit_s / self._estimate_s if self._estimate_s else most
        return int(min(most, max(2, runs)))

    @cached_property
    def _reference_config(self) -> Mapping[str, Any]:
        names = [d.name for d in self.request.descriptors if d.plugin == REFERENCE]
        return self.request.configs[names[0]] if names else {}

    def _reference(self, model: Model, inputs: Sequence[Mapping[str, Value]]) -> list[RunResult]:
        """Run a model on the reference, in a process of its own."""
        return run_isolated(_reference_class(), model, self._reference_config, inputs, self._bounds)

    def _shaken_reference(
        self, unit: float, model: Model, inputs: Sequence[Mapping[str, Value]]
    ) -> list[RunResult]:
        """Run a model on the reference with rounding noise, in a process of its own."""
        from hetero.verify.shaken_reference import UNIT, ShakenReference

        config = {**self._reference_config, UNIT: unit}
        return run_isolated(ShakenReference, model, config, inputs, self._bounds)

    def _run(
        self, device: str, model: Model, inputs: Sequence[Mapping[str, Value]]
    ) -> list[RunResult]:
        """Run a model on a device, in a process of its own."""
        config = self.request.configs[device]
        bounds = replace(self._bounds, num_runs=self._num_runs(device))
        try:
            return self.get_executor().run_isolated(device, model, config, inputs, bounds)
        except HeteroError as error:
            return [RunFailure("unavailable", str(error))] * len(inputs)

    def _precision(self, device: str) -> str:
        """Return the precision that a device computes in, if it declares one."""
        if _PRECISION not in self.request.descriptor(device).properties:
            return ""
        config = self.request.configs[device]
        return str(config.get(_PRECISION) or self.get_executor().get_property(device, _PRECISION))

    def _witness_devices(self, device: str) -> list[str]:
        """Return the devices of other vendors."""
        plugins = {REFERENCE, self.request.descriptor(device).plugin}
        return [d.name for d in self.request.descriptors if d.plugin not in plugins and d.computes]


def _not_verified(subgraph: Subgraph) -> PartVerdict:
    return PartVerdict(subgraph.device, REFERENCE, subgraph.node_names, "not verified")


def _reference_class() -> type[Plugin]:
    """Return the reference's plugin; its import is needed only for verification."""
    from hetero.devices.cpu.plugin import CPUPlugin

    return CPUPlugin
