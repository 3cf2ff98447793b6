"""Check of one subgraph: a vendor's results against the reference's, and the nodes at fault.

A difference is bisected to the first prefix that fails, and this prefix to the smallest subgraph
that fails on the reference's own values: one node, or several that the vendor fuses wrongly.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

import numpy as np

from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.program import Value
from hetero.scheduler.types.isolation import RunFailure, RunResult
from hetero.verify.bisection import Prefixes, first_failure
from hetero.verify.difference import Difference
from hetero.verify.generated_inputs import Kind
from hetero.verify.tolerance import beyond_noise, rounded_values
from hetero.verify.undefined_results import undefined_reason
from hetero.verify.verdict import Evidence

#: Compiles a model on a device and runs it once for each set of inputs.
Run = Callable[[Model, Sequence[Mapping[str, Value]]], list[RunResult]]
#: Other nodes of a failing operator that are checked too.
_MAX_SIBLINGS: Final = 64
#: A failing subgraph of at most this many nodes is reduced by single nodes.
_MAX_REDUCED: Final = 12
#: Elements of an input that the evidence shows.
_SHOWN_ELEMENTS: Final = 4
#: Runs with rounding noise of a part that rounds.
_NUM_SHAKEN: Final = 8
#: Failures of the vendor that count as wrong results; others mean that nothing was learnt.
_WRONG_KINDS: Final = frozenset({"error", "crash"})


@dataclass(frozen=True)
class PartDraw:
    """Inputs of a part, with the reference's outputs if they are known."""

    kind: Kind | Literal["request"]
    inputs: Mapping[str, Value] = field(repr=False)
    expected: Mapping[str, Value] | None = field(default=None, repr=False)
    #: Whether they are one more set, of other sizes.
    is_further: bool = False


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check: evidence of wrong results, or the reason why nothing was learnt."""

    evidence: tuple[Evidence, ...] = ()
    #: Whether a third device agrees with the vendor.
    is_disputed: bool = False
    not_verified: str = ""


@dataclass
class PartCheck:
    """A subgraph, the generated inputs, and the devices that run it.

    `witnesses`: further devices by name, each of which decides between vendor and reference.
    `unit`: unit in the last place of the computation.
    `kept`: nodes whose faults are known and that stay on the vendor.
    `known_faults`: operators of subgraphs that failed in other parts; blocks repeat in a model.
    """

    part: Model
    draws: Sequence[PartDraw]
    reference: Run
    shaken_reference: Run
    vendor: Run
    unit: float
    witnesses: Mapping[str, Run] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    known_faults: Sequence[tuple[str, ...]] = ()

    def run(self) -> CheckResult:
        """Compare the vendor's outputs for every draw, and find the nodes at fault."""
        inputs = [draw.inputs for draw in self.draws]
        expected = self._reference_results()
        valid = [i for i, result in enumerate(expected) if not isinstance(result, RunFailure)]
        if not valid:
            failure = expected[0]
            assert isinstance(failure, RunFailure)
            return CheckResult(not_verified=f"the reference fails: {failure.reason}")
        actual = self.vendor(self.part, [inputs[i] for i in valid])
        works = any(
            not (isinstance(result, RunFailure) or self.draws[i].is_further)
            for i, result in zip(itertools.cycle(valid), actual, strict=False)
        )
        undefined: dict[int, str] = {}
        for i, result in zip(itertools.cycle(valid), actual, strict=False):
            if isinstance(result, RunFailure) and result.kind not in _WRONG_KINDS:
                return CheckResult(not_verified=result.reason)
            if isinstance(result, RunFailure) and result.kind == "error" and works:
                continue  # the reference may accept invalid inputs, but not of all first sizes
            if not self.difference(self.part, expected[i], {}, result):
                continue
            if self.is_noise(inputs[i], expected[i], result):
                continue
            numbers = valid if _is_crash(result) else [i]
            outcome = self._locate([self.draws[n] for n in numbers], result)
            if isinstance(outcome, CheckResult):
                return outcome
            undefined[i] = outcome
        if len(undefined) == len(valid):
            return CheckResult(not_verified=undefined[valid[0]])
        return CheckResult()

    @cached_property
    def _rounded_values(self) -> frozenset[str]:
        return rounded_values(self.part)

    def _reference_results(self) -> list[RunResult]:
        """Return the reference's outputs."""
        outputs = [draw.expected for draw in self.draws if draw.expected is not None]
        if len(outputs) == len(self.draws):
            return [*outputs]
        return self.reference(self.part, [draw.inputs for draw in self.draws])

    def is_noise(self, inputs: Mapping[str, Value], expected: RunResult, actual: RunResult) -> bool:
        """Return whether rounding noise of the reference explains a difference.

        A value next to the boundary of two steps may change in one run with noise and not in
        another, so a part that rounds has several.
        """
        rounds = any(port.name in self._rounded_values for port in self.part.outputs)
        return any(
            not self.difference(self.part, expected, shaken, actual)
            for count in ((1, _NUM_SHAKEN) if rounds else (1,))
            for shaken in self.shaken_reference(self.part, [inputs] * count)
        )

    def difference(
        self,
        model: Model,
        expected: RunResult,
        shaken: RunResult,
        actual: RunResult,
    ) -> Difference | str | None:
        """Return the first difference beyond noise, or the failure of the vendor's run."""
        if isinstance(actual, RunFailure):
            return actual.reason if actual.kind in _WRONG_KINDS else None
        assert not isinstance(expected, RunFailure)
        for port in model.outputs:
            differences = beyond_noise(
                port.name,
                expected[port.name],
                None if isinstance(shaken, RunFailure) else shaken.get(port.name),
                actual[port.name],
                unit=self.unit,
                rounds=port.name in self._rounded_values,
            )
            if differences:
                return differences[0]
        return None

    def _locate(self, draws: Sequence[PartDraw], result: RunResult) -> CheckResult | str:
        """Find the nodes at fault; return a sentence if their result is undefined for the draw.

        `draws`: the draw with the vendor's wrong result `result`; after a crash, also the others,
            because only their sequence may crash the vendor.
        """
        search = _Search(self, draws)
        positions = search.known_failure() or search.smallest_failure()
        if _is_crash(result) and not search.fails(positions):  # only the whole part crashes
            return CheckResult((self._crash_evidence(draws[0], result),))
        if not positions and isinstance(result, RunFailure):
            return f"a failure that did not repeat: {result.reason}"
        positions = positions or list(range(len(self.part.nodes)))
        nodes = [self.part.nodes[p] for p in positions]
        names = {node.name for node in nodes}
        if names and names <= self.kept:
            return CheckResult()
        sub = search.model(positions)
        if not search.crashes(positions):
            if reason := undefined_reason(sub, search.values):
                return reason
            if search.fails_without_elements(positions):
                return "the results have no elements"
        # Nodes that fail only together with earlier ones: the evidence is that of the whole part.
        of_part = search.difference(self.part, result)
        if of_part is None and not search.fails(positions):
            return "rounding noise changes the results as much"
        witness = self._witness(search, sub)
        evidence = [search.evidence(positions, witness, of_part)]
        if "agrees with it" in witness:
            return CheckResult(tuple(evidence), is_disputed=True)
        if len(positions) == 1:
            evidence += [
                search.evidence([p], "")
                for p in self._same_operator_positions(nodes[0])
                if search.fails([p]) and not undefined_reason(search.model([p]), search.values)
            ]
        return CheckResult(tuple(evidence))

    def _crash_evidence(self, draw: PartDraw, result: RunResult) -> Evidence:
        """Return the evidence that the vendor's run of the whole part ends its process."""
        return Evidence(
            *_names_and_types(self.part.nodes),
            _describe_inputs(draw.kind, self.part, draw.inputs),
            error=result.reason if isinstance(result, RunFailure) else "",
            is_crash=True,
        )

    def _same_operator_positions(self, node: Node) -> list[int]:
        """Return the positions of other nodes with the same operator."""
        return [
            p
            for p, other in enumerate(self.part.nodes)
            if (other.op_type, other.domain) == (node.op_type, node.domain)
            and other.name != node.name
        ][:_MAX_SIBLINGS]

    def _witness(self, search: _Search, sub: Model) -> str:
        """Return the answer of a third device to the smallest failing subgraph as a clause."""
        for name, run in self.witnesses.items():
            result = search.run(run, sub)
            if isinstance(result, RunFailure):
                continue
            if search.difference(sub, result) is None:
                return f"{name} agrees with the reference"
            actual = search.run(self.vendor, sub)
            if isinstance(actual, RunFailure):
                return f"{name} gives a third result"
            rounded = rounded_values(sub)
            is_same = not any(
                beyond_noise("", result[v], None, actual[v], unit=self.unit, rounds=v in rounded)
                for v in (port.name for port in sub.outputs)
            )
            return f"{name} agrees with it" if is_same else f"{name} gives a third result"
        return ""


class _Search:
    """Search for the smallest failing subgraph of a part.

    Results are compared for the first draw of inputs; the others run in alternation with it.
    """

    def __init__(self, check: PartCheck, draws: Sequence[PartDraw]) -> None:
        self._check = check
        self._part = check.part
        self._kind = draws[0].kind
        values = [
            value
            for node in self._part.nodes
            for value in node.writes
            if self._part.spec(value).type
        ]
        full = self._part.extract(range(len(self._part.nodes)), values)
        expected = check.reference(full, [draw.inputs for draw in draws])
        (shaken,) = check.shaken_reference(full, [draws[0].inputs])
        #: The reference's values for each draw; only the inputs if it failed.
        self._draw_values: list[dict[str, Value]] = [
            {**draw.inputs, **({} if isinstance(result, RunFailure) else result)}
            for draw, result in zip(draws, expected, strict=True)
        ]
        #: The reference's values for the first draw.
        self.values = self._draw_values[0]
        #: The same with rounding noise.
        self._shaken: RunResult = shaken
        self._differences: dict[tuple[int, ...], Difference | str | None] = {}
        #: Positions of the subgraphs whose runs end the vendor's process.
        self._crashes: set[tuple[int, ...]] = set()

    def known_failure(self) -> list[int]:
        """Return the positions of consecutive nodes that fail as in another part, or nothing."""
        op_types = [node.op_type for node in self._part.nodes]
        return next(
            (
                positions
                for fault in self._check.known_faults
                for begin in range(len(op_types) - len(fault) + 1)
                if tuple(op_types[begin : begin + len(fault)]) == fault
                and self.fails(positions := list(range(begin, begin + len(fault))))
            ),
            [],
        )

    def smallest_failure(self) -> list[int]:
        """Return the positions of the nodes of the smallest failing subgraph."""
        prefixes = Prefixes(self._part)
        ends = prefixes.end_positions
        failing: dict[int, Difference | str] = {}

        def agrees(end: int) -> bool:
            difference = self._run_and_compare(prefixes.model(end))
            if difference is not None:
                failing[end] = difference
            return difference is None

        low, high = first_failure(ends, agrees)
        begin = ends[low] + 1 if low >= 0 else 0
        end = ends[high] if high < len(ends) else len(self._part.nodes) - 1
        suspects = list(range(begin, end + 1))
        if len(suspects) > 1:
            alone = [p for p in suspects if self.fails([p])]
            if alone:
                return alone[:1]
        members = self._ancestors(suspects or [len(self._part.nodes) - 1])
        sizes = _doubling_sizes(len(members))
        passed, failed = first_failure(sizes, lambda size: not self.fails(members[-size:]))
        if failed == len(sizes):
            return suspects
        between = range(sizes[passed] + 1 if passed >= 0 else 1, sizes[failed])
        _, failed_between = first_failure(between, lambda size: not self.fails(members[-size:]))
        size = [*between, sizes[failed]][failed_between]
        return self._minimize(members[-size:])

    def _minimize(self, positions: list[int]) -> list[int]:
        """Remove the nodes without which the subgraph still fails."""
        if len(positions) > _MAX_REDUCED:
            return positions
        for p in positions[:-1]:
            fewer = [other for other in positions if other != p]
            if self.fails(fewer):
                positions = fewer
        return positions

    def _ancestors(self, positions: Sequence[int]) -> list[int]:
        """Return the positions of nodes, and of those whose results they depend on."""
        members = set(positions)
        for p in range(max(positions), -1, -1):
            if p in members:
                producers = self._part.producers
                members.update(producers[v] for v in self._part.nodes[p].reads if v in producers)
        return sorted(members)

    def fails(self, positions: Sequence[int]) -> bool:
        """Whether the vendor is wrong at a subgraph whose inputs are the reference's values."""
        return self._difference_at(positions) is not None

    def fails_without_elements(self, positions: Sequence[int]) -> bool:
        """Whether the vendor's run fails, but its results would have no elements anyway."""
        if not isinstance(self._difference_at(positions), str):
            return False
        values = (self.values.get(port.name) for port in self.model(positions).outputs)
        return any(isinstance(value, np.ndarray) and not value.size for value in values)

    def _difference_at(self, positions: Sequence[int]) -> Difference | str | None:
        key = tuple(positions)
        if key not in self._differences:
            sub = self.model(positions)
            result = self.run(self._check.vendor, sub)
            self._differences[key] = self.difference(sub, result)
            if _is_crash(result):
                self._crashes.add(key)
        return self._differences[key]

    def crashes(self, positions: Sequence[int]) -> bool:
        """Whether the vendor's run of a subgraph ends its process."""
        return self.fails(positions) and tuple(positions) in self._crashes

    def model(self, positions: Sequence[int]) -> Model:
        """Return a subgraph whose outputs are the values that leave it."""
        part, members = self._part, set(positions)
        output_names = {port.name for port in part.outputs}
        outputs = [
            value
            for p in positions
            for value in part.nodes[p].writes
            if part.spec(value).type
            and (value in output_names or not members.issuperset(part.consumers.get(value, (-1,))))
        ]
        return part.extract(positions, outputs)

    def run(self, run: Run, sub: Model) -> RunResult:
        """Run a subgraph on a device, on the reference's values.

        A crash of any draw counts. If the results of the first draw differ, a wrong one counts.
        """
        names = [port.name for port in sub.inputs]
        missing = [name for name in names if name not in self.values]
        if missing or not sub.outputs:
            return RunFailure("unavailable", f"no value of {', '.join(missing) or 'an output'}")
        inputs = [
            {name: values[name] for name in names}
            for values in self._draw_values
            if values.keys() >= set(names)
        ]
        results = run(sub, inputs)
        crashes = filter(_is_crash, results)
        wrong = (r for r in results[:: len(inputs)] if self.difference(sub, r) is not None)
        return next(itertools.chain(crashes, wrong), results[0])

    def difference(self, sub: Model, actual: RunResult) -> Difference | str | None:
        """Compare a device's outputs with the reference's values."""
        if any(port.name not in self.values for port in sub.outputs):
            return None
        return self._check.difference(sub, self.values, self._shaken, actual)

    def _run_and_compare(self, sub: Model) -> Difference | str | None:
        return self.difference(sub, self.run(self._check.vendor, sub))

    def evidence(
        self,
        positions: Sequence[int],
        witness: str,
        difference_of_part: Difference | str | None = None,
    ) -> Evidence:
        """Return the evidence of a subgraph that fails, alone or as a part of the whole part."""
        difference = self._difference_at(positions) or difference_of_part
        return Evidence(
            *_names_and_types([self._part.nodes[p] for p in positions]),
            _describe_inputs(self._kind, self.model(positions), self.values),
            difference if isinstance(difference, Difference) else None,
            difference if isinstance(difference, str) else "",
            witness,
            self.crashes(positions),
        )


def _is_crash(result: RunResult) -> bool:
    return isinstance(result, RunFailure) and result.kind == "crash"


def _names_and_types(nodes: Sequence[Node]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(node.name for node in nodes), tuple(node.op_type for node in nodes)


def _describe_inputs(kind: str, model: Model, values: Mapping[str, Value]) -> tuple[str, ...]:
    ports = (_describe_value(port.name, values.get(port.name)) for port in model.inputs)
    return (f"{kind} inputs", *ports)


def _doubling_sizes(limit: int) -> list[int]:
    """Return 1, 2, 4, ... and the limit."""
    sizes = [1]
    while sizes[-1] * 2 < limit:
        sizes.append(sizes[-1] * 2)
    return sizes if limit == 1 else [*sizes, limit]


def _describe_value(name: str, value: Value) -> str:
    if not isinstance(value, np.ndarray):
        return f"{name}: {type(value).__name__}"
    elements = ", ".join(map(str, value.reshape(-1)[:_SHOWN_ELEMENTS].tolist()))
    more = ", ..." if value.size > _SHOWN_ELEMENTS else ""
    return f"{name}: {value.dtype}{list(value.shape)} = {elements}{more}"
