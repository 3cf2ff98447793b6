"""Search of an assignment that keeps each device's process within its memory budget.

A greedy pass fills the devices in their order along a topological order of the model, whole layers
at a time. If it fails, other orders of the devices, packings of the solver and, for small models,
all assignments follow. Each result is verified by the prediction of its actual partition.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hetero.devices.errors import PlanError
from hetero.devices.model.model import Model
from hetero.devices.plugin.memory_traits import MemoryTraits
from hetero.formatting import nbytes_text
from hetero.partition.partition import Partition
from hetero.planning.memory.device_memory import DeviceMemory, MemoryModel, memory_option
from hetero.planning.memory.live_values import live_nbytes
from hetero.planning.memory.predict_memory import (
    has_convolutions,
    predict_memory,
    weight_nbytes,
)
from hetero.planning.solver.contraction import collapse_groups, fuse_cycles
from hetero.planning.solver.graph import topological_order
from hetero.planning.solver.heuristics import pack_memory
from hetero.planning.solver.problem import Assignment, Floats, Problem, allowed_devices
from hetero.planning.task import TaskProblem

#: Maximum number of orders of the devices that the greedy pass tries.
MAX_ORDERS: Final = 24
#: Number of times that a budget is reduced by the amount that a plan exceeds it.
MAX_CORRECTIONS: Final = 4
#: Maximum number of assignments that are enumerated.
MAX_ENUMERATED: Final = 4096
#: Maximum number of additional devices that an infeasible problem suggests.
MAX_ADDED_DEVICES: Final = 8
#: A suggested budget is exact to this fraction.
BUDGET_PRECISION: Final = 0.01


@dataclass(frozen=True, slots=True)
class Fit:
    """An assignment, and the predicted memory of each device that it uses."""

    assignment: Assignment
    predictions: Mapping[str, DeviceMemory]

    @property
    def is_within_budgets(self) -> bool:
        """Whether each device has the memory that it needs."""
        return all(prediction.fits for prediction in self.predictions.values())


@dataclass(frozen=True, slots=True)
class _Slot:
    """A device during the greedy pass: its index, traits and budget; several may share an index."""

    device: int
    traits: MemoryTraits
    budget_nbytes: float


class FitSearch:
    """Search of assignments for one planning problem.

    `partition_of`: returns the partition of an assignment.
    """

    def __init__(
        self,
        task_problem: TaskProblem,
        memory: MemoryModel,
        partition_of: Callable[[Assignment], Partition],
    ) -> None:
        self._task_problem = task_problem
        self._memory = memory
        self._partition_of = partition_of
        problem = task_problem.problem
        groups = collapse_groups(problem)
        self._units = groups.compose(fuse_cycles(groups.problem))
        unit_problem = self._units.problem
        order = topological_order(unit_problem.node_count, unit_problem.edges())
        rank = {unit: i for i, unit in enumerate(order)}
        #: Nodes in topological order, the nodes of a unit one after the other.
        self._nodes = sorted(
            range(problem.node_count), key=lambda v: (rank[self._units.supernode[v]], v)
        )
        #: Number of nodes before the end of each unit, in order.
        sizes = np.bincount(self._units.supernode, minlength=unit_problem.node_count)[order]
        self._unit_ends = np.cumsum(sizes)
        self._unit_order = order
        self._allowed = allowed_devices(unit_problem)
        #: Different traits of devices, and their profiles.
        self._profiles: list[tuple[MemoryTraits, _Profile]] = []
        #: `MemoryTraits.overwrites_inputs` -> bytes of live values at each of `_nodes`.
        self._live: dict[bool, Floats] = {}
        self._verified: dict[Assignment, Fit] = {}

    @property
    def slots(self) -> list[_Slot]:
        """The devices in their order, with their budgets."""
        memory = self._memory
        return [
            _Slot(i, memory.traits[d], memory.budgets_nbytes.get(d, math.inf))
            for i, d in enumerate(self._task_problem.task.devices)
        ]

    def verify(self, assignment: Assignment) -> Fit:
        """Return an assignment with the memory that its actual partition needs."""
        if assignment not in self._verified:
            subgraphs = self._partition_of(assignment).subgraphs
            model = self._task_problem.task.model
            predictions = predict_memory(model, subgraphs, self._memory)
            self._verified[assignment] = Fit(assignment, predictions)
        return self._verified[assignment]

    def search(self, preferred: Iterable[Assignment] = ()) -> Fit:
        """Return an assignment that fits: the first of the preferred ones, or another.

        Raises PlanError: none was found; the message and its data contain the smallest changes of
            the memory or of the devices that would suffice.
        """
        for assignment in itertools.chain(preferred, self._candidates()):
            fit = self.verify(assignment)
            if fit.is_within_budgets:
                return fit
        raise self._infeasible()

    def _candidates(self) -> Iterator[Assignment]:
        """Yield assignments, those that keep the order of the devices first."""
        orders = itertools.islice(itertools.permutations(self.slots), MAX_ORDERS)
        for slots in orders:
            yield from self._corrected_assignments(slots)
        if (packing := self._packing()) is not None:
            yield packing
        options = [np.flatnonzero(row).tolist() for row in self._allowed]
        if math.prod(map(len, options)) <= MAX_ENUMERATED:
            yield from map(self._units.expand, itertools.product(*options))

    def _corrected_assignments(self, slots: Sequence[_Slot]) -> Iterator[Assignment]:
        """Yield greedy assignments; each reduces the budgets that the one before exceeded."""
        names = self._task_problem.task.devices
        for _ in range(MAX_CORRECTIONS):
            assignment = self._greedy(slots)
            if assignment is None:
                return
            yield assignment
            predictions = self.verify(assignment).predictions
            excess = {d: max(0, -(p.free_nbytes or 0)) for d, p in predictions.items()}
            slots = [
                replace(slot, budget_nbytes=slot.budget_nbytes - excess.get(names[slot.device], 0))
                for slot in slots
            ]

    def _greedy(self, slots: Sequence[_Slot]) -> Assignment | None:
        """Fill the devices in order, each with as many units as fit; None if nodes are left.

        A unit that a device does not support goes to the next device that does, out of order.
        """
        device_of = [-1] * len(self._nodes)
        begin = 0
        for number, slot in enumerate(slots):
            later = [s.device for s in slots[number:]]
            end_unit = self._longest_run(begin, slot)
            for unit_number in range(begin, end_unit):
                unit = self._unit_order[unit_number]
                options = [d for d in later if self._allowed[unit, d]] or [
                    s.device for s in slots if self._allowed[unit, s.device]
                ]
                first = self._unit_ends[unit_number - 1] if unit_number else 0
                for v in self._nodes[first : self._unit_ends[unit_number]]:
                    device_of[v] = options[0]
            begin = end_unit
        return tuple(device_of) if begin == len(self._unit_order) else None

    def _longest_run(self, begin: int, slot: _Slot) -> int:
        """Return the end of the longest run of units from `begin` on that fits a device."""
        first = int(self._unit_ends[begin - 1]) if begin else 0
        if begin == len(self._unit_order):
            return begin
        memory_needs = self._profile(slot, compact=False).memory_needs(first, len(self._nodes))
        ends = self._unit_ends[begin:] - first - 1
        count = int(np.searchsorted(memory_needs[ends], slot.budget_nbytes, side="right"))
        if slot.traits.compact_options and begin + count < len(self._unit_order):
            memory_needs = self._profile(slot, compact=True).memory_needs(first, len(self._nodes))
            count = int(np.searchsorted(memory_needs[ends], slot.budget_nbytes, side="right"))
        return begin + count

    def _profile(self, slot: _Slot, *, compact: bool) -> _Profile:
        traits = slot.traits.compact if compact else slot.traits
        for other, profile in self._profiles:
            if other == traits:
                return profile
        model = self._task_problem.task.model
        positions = [self._task_problem.positions[v] for v in self._nodes]
        if traits.overwrites_inputs not in self._live:
            outputs = {port.name for port in model.outputs}
            live = live_nbytes(model, positions, outputs, traits)
            self._live[traits.overwrites_inputs] = live
        live = self._live[traits.overwrites_inputs]
        profile = _Profile.measure(model, positions, traits, live)
        self._profiles.append((traits, profile))
        return profile

    def constrained_problem(self) -> Problem:
        """Return the problem with the memory that each device has for weights.

        The solver counts weights only, so its plans must still be verified.
        """
        factors = [
            1.0 if s.traits.compact_options else 1 + s.traits.weight_copies.stored
            for s in self.slots
        ]
        fixed = [s.traits.idle_nbytes for s in self.slots]
        memory = [
            max(0.0, (s.budget_nbytes - f) / factor)
            for s, f, factor in zip(self.slots, fixed, factors, strict=True)
        ]
        return replace(self._task_problem.problem, memory=np.array(memory))

    def _packing(self) -> Assignment | None:
        """Return a packing of the weights, regardless of cuts."""
        memory = self.constrained_problem().memory
        assignment = pack_memory(replace(self._units.problem, memory=memory))
        return None if assignment is None else self._units.expand(assignment)

    def _infeasible(self) -> PlanError:
        """Return the error of a problem without an assignment that fits."""
        task = self._task_problem.task
        names, slots = task.devices, self.slots
        changes: list[str] = []
        budgets: dict[str, int] = {}
        for i, slot in enumerate(slots):
            if math.isfinite(slot.budget_nbytes) and (nbytes := self._smallest_budget(i)):
                budgets[names[slot.device]] = nbytes
        for device, nbytes in sorted(budgets.items(), key=lambda item: item[1])[:2]:
            changes.append(f"{device}={memory_option(nbytes)}")
        added = self._added_devices()
        if added is not None:
            count, original = added
            changes.append(f"{count} more device{'s' * (count > 1)} like {names[original]}")
        limits = ", ".join(
            f"{names[s.device]} ({nbytes_text(s.budget_nbytes)})"
            for s in slots
            if math.isfinite(s.budget_nbytes)
        )
        smallest = self._largest_unit_nbytes()
        fix = f"the smallest change that suffices: {' or '.join(changes)}"
        if not changes:
            fix = f"the largest stage alone needs {nbytes_text(smallest)} on a device"
        idle = [
            f"{names[s.device]} takes {nbytes_text(s.traits.idle_nbytes)}"
            for s in slots
            if s.budget_nbytes < s.traits.idle_nbytes
        ]
        without_model = f" Without a model, {' and '.join(idle)}." if idle else ""
        return PlanError(
            f"memory: model {task.model.name!r} does not fit {limits}; {fix}.{without_model}",
            nodes=(),
            constraint="memory",
            budgets_nbytes=budgets,
            added_devices=None if added is None else {names[added[1]]: added[0]},
            smallest_stage_nbytes=smallest,
        )

    def _smallest_budget(self, number: int) -> int | None:
        """Return the smallest budget of one device that makes the greedy pass succeed."""
        slots = self.slots

        def is_enough(nbytes: float) -> bool:
            changed = [*slots]
            changed[number] = replace(slots[number], budget_nbytes=nbytes)
            return any(
                self._greedy(order) is not None
                for order in itertools.islice(itertools.permutations(changed), MAX_ORDERS)
            )

        low = slots[number].budget_nbytes
        high = float(
            self._profile(slots[number], compact=False).memory_needs(0, len(self._nodes))[-1]
        )
        if not is_enough(high):
            return None
        while high - low > BUDGET_PRECISION * high:
            middle = (low + high) / 2
            low, high = (low, middle) if is_enough(middle) else (middle, high)
        return math.ceil(high)

    def _added_devices(self) -> tuple[int, int] | None:
        """Return the sufficient number of devices like an existing one, and the index of that."""
        slots = self.slots
        largest = max(slots, key=lambda slot: slot.budget_nbytes)
        for count in range(1, MAX_ADDED_DEVICES + 1):
            if self._greedy([*slots, *[largest] * count]) is not None:
                return count, largest.device
        return None

    def _largest_unit_nbytes(self) -> int:
        """Return the smallest budget of a device that can hold each unit alone."""
        memory_needs = []
        for slot in self.slots:
            profile = self._profile(slot, compact=True)
            starts = [0, *self._unit_ends[:-1].tolist()]
            memory_needs.append(
                max(
                    float(profile.memory_needs(s, e)[-1])
                    for s, e in zip(starts, self._unit_ends.tolist(), strict=True)
                )
            )
        return math.ceil(min(memory_needs, default=0.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Profile:
    """Memory of a device for runs of consecutive nodes of an order."""

    fixed_nbytes: float
    reused_copies: float | None
    #: Bytes of the weights that a node reads first, of their copies, of those that exist only
    #: during the compilation (of convolutions, and of other nodes), and of the largest of these;
    #: bytes of live values at a node.
    weights: Floats
    copies: Floats
    convolution_copies: Floats
    compile_copies: Floats
    largest: Floats
    live: Floats

    @classmethod
    def measure(
        cls, model: Model, positions: Sequence[int], traits: MemoryTraits, live: Floats
    ) -> _Profile:
        """Compute the profile of nodes in a given order; `live`: bytes of live values at each."""
        counted: set[str] = set()
        rows = [weight_nbytes(model, [p], traits, counted) for p in positions]
        weights: NDArray[np.float64] = np.array(rows, dtype=np.float64).reshape(-1, 5)
        factor = traits.values_factor_of(has_convolutions=has_convolutions(model, positions))
        fixed_nbytes = traits.idle_nbytes + traits.session_nbytes
        own, copies, convolution_copies, compile_copies, largest = weights.T
        return cls(
            fixed_nbytes=fixed_nbytes,
            reused_copies=traits.reused_copies,
            weights=own,
            copies=copies,
            convolution_copies=convolution_copies,
            compile_copies=compile_copies,
            largest=largest,
            live=live * factor,
        )

    def memory_needs(self, begin: int, end: int) -> Floats:
        """Return the memory of the nodes from `begin` to each node before `end`; ascending."""
        weights = np.cumsum(self.weights[begin:end])
        copies = np.cumsum(self.copies[begin:end])
        largest = np.maximum.accumulate(self.largest[begin:end])
        others = np.cumsum(self.compile_copies[begin:end])
        if self.reused_copies is not None:
            others = np.minimum(others, self.reused_copies * largest)
        convolution_copies = np.cumsum(self.convolution_copies[begin:end])
        compile_copies = np.maximum(convolution_copies + others, largest)
        peaks = np.maximum.accumulate(self.live[begin:end])
        memory_needs: Floats = (
            self.fixed_nbytes + weights + copies + np.maximum(peaks, compile_copies)
        )
        return memory_needs
