"""The reference's values at the boundaries of a model's parts, for generated inputs.

Parts in the middle of a model get the values that the reference computes there: their shapes fit
together, and their distributions are the model's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from hetero.devices.errors import TensorError
from hetero.devices.model.attributes import is_random
from hetero.devices.model.model import Model
from hetero.scheduler.types.isolation import RunFailure
from hetero.verify.generated_inputs import (
    KINDS,
    Draw,
    Integers,
    Kind,
    draw_inputs,
    draw_value,
    has_open_dimensions,
    size_options,
    sum_options,
)
from hetero.verify.part_check import PartDraw, Run

#: Different sizes of open dimensions that inputs should have.
_NUM_SIZES: Final = 2
#: Integers that replace those of a draw which the reference rejects, by kind and in this order.
_VALID_INTEGERS: Final[tuple[Mapping[Kind, Integers], ...]] = (
    {"wide": "ones", "extreme": "typical"},
    {"typical": "ones", "wide": "typical", "extreme": "ones"},
)
#: Inputs of further sizes.
_FURTHER_KINDS: Final[tuple[Kind, ...]] = ("wide",)


class ReferenceValues:
    """Generated inputs of a model that the reference accepts, and its values for them.

    `supported`: names of the nodes that the reference supports.
    `num_draws`: number of sets of inputs.
    `further_sizes`: sizes of open dimensions, each of one more set of inputs; a batch of one has
        another. None for no more sets.
    `is_suitable`: whether inputs of some sizes of open dimensions can have defined results in time.
    """

    def __init__(
        self,
        model: Model,
        reference: Run,
        supported: frozenset[str],
        num_draws: int,
        further_sizes: Sequence[tuple[int, ...]] | None = None,
        is_suitable: Callable[[tuple[int, ...]], bool] = lambda sizes: True,
    ) -> None:
        self._model = model
        self._reference = reference
        self._num_draws = num_draws
        self._further_sizes = further_sizes
        self._is_suitable = is_suitable
        self._computable = _computable_positions(model, supported)
        #: Draws whose values so far are computed; None before the first call.
        self._draws: list[Draw] | None = None
        #: Why there are no draws; empty if there are.
        self.problem = "no sizes of its open dimensions suit its windows within VERIFY_SECONDS"

    def compute(self, names: Iterable[str]) -> None:
        """Compute the values of `names` for all draws, where the reference can."""
        producers = self._model.producers
        computable = [name for name in names if producers.get(name, -1) in self._computable]
        if self._draws is None:
            self._draws = self._first_draws(computable)
        missing = [n for n in computable if any(n not in draw.inputs for draw in self._draws)]
        if missing and self._draws:
            self._draws = self._with_values(self._draws, missing)

    def part_draws(self, part: Model) -> list[PartDraw]:
        """Return inputs of a part: the reference's values, or generated ones where it has none."""
        self.compute([port.name for port in (*part.inputs, *part.outputs)])
        rngs = (np.random.default_rng(i) for i in itertools.count())
        return [
            self._part_draw(part, draw, rng)
            for draw, rng in zip(self._draws or (), rngs, strict=False)
        ]

    def _part_draw(self, part: Model, draw: Draw, rng: np.random.Generator) -> PartDraw:
        values = draw.inputs
        if all(port.name in values for port in (*part.inputs, *part.outputs)):
            expected = {port.name: values[port.name] for port in part.outputs}
        else:
            expected = None
        inputs = {
            port.name: values[port.name]
            if port.name in values
            else draw_value(port, draw.kind, rng, None, part.integer_ranges.get(port.name))
            for port in part.inputs
        }
        return PartDraw(draw.kind, inputs, expected, is_further=draw.is_further)

    def _first_draws(self, names: list[str]) -> list[Draw]:
        """Generate inputs that the reference accepts, in several sizes if dimensions are open."""
        model = self._model
        kinds: Sequence[Kind] = KINDS[: self._num_draws]
        num_sizes = min(_NUM_SIZES if has_open_dimensions(model) else 1, self._num_draws)
        try:
            first_sizes, *other_sizes = size_options(model)
            draws: list[Draw] = []
            if not has_open_dimensions(model) or self._is_suitable(first_sizes):
                draws = self._accepted_draws([(kind, first_sizes) for kind in kinds], names)
            for sizes, more_sizes in () if draws else sum_options(model):
                if draws := self._draws_of_doubtful_sizes(kinds, sizes, names):
                    other_sizes.insert(0, more_sizes)
                    break
            num_sizes -= bool(draws)
            for sizes in other_sizes:
                if not num_sizes:
                    break
                more_kinds = _FURTHER_KINDS if draws else kinds
                if more := self._draws_of_doubtful_sizes(more_kinds, sizes, names):
                    draws += more
                    num_sizes -= 1
            if draws and has_open_dimensions(model) and self._further_sizes is not None:
                draws += self._further_draws(draws, self._further_sizes, names)
        except TensorError as error:
            self.problem = str(error)
            return []
        if draws:
            self.problem = ""
        return draws

    def _further_draws(
        self,
        draws: Sequence[Draw],
        further_sizes: Sequence[tuple[int, ...]],
        names: list[str],
    ) -> list[Draw]:
        """Generate inputs of a batch of one and of further sizes, all in one run.

        If the draws have equal sizes, so have these; but one of size one may be repeated.
        """
        first, *others = draws[0].sizes
        if others:
            options = [(1, *others), *further_sizes]
        else:
            options = [(1, first), (1,), *(sizes[:1] for sizes in further_sizes)]
        earlier_shapes = {self._shapes(draw) for draw in draws}
        choices = [
            choice
            for choice in itertools.product(_FURTHER_KINDS, options)
            if self._shapes(draw_inputs(self._model, *choice)) not in earlier_shapes
        ]
        more_draws = self._accepted_draws(choices, names) if choices else []
        return [replace(draw, is_further=True) for draw in more_draws]

    def _shapes(self, draw: Draw) -> tuple[tuple[int, ...], ...]:
        return tuple(np.shape(draw.inputs[port.name]) for port in self._model.inputs)

    def _draws_of_doubtful_sizes(
        self, kinds: Sequence[Kind], sizes: tuple[int, ...], names: list[str]
    ) -> list[Draw]:
        """Generate inputs of kinds, the first one alone: draws of large sizes take seconds."""
        if not self._is_suitable(sizes):
            return []
        first, *others = ((kind, sizes) for kind in kinds)
        draws = self._accepted_draws([first], names)
        if draws and others:
            draws += self._accepted_draws(others, names)
        return draws

    def _accepted_draws(
        self, choices: Sequence[tuple[Kind, tuple[int, ...]]], names: list[str]
    ) -> list[Draw]:
        """Generate inputs; if the reference rejects those of a kind, with valid integers."""
        model = self._model
        accepted = self._with_values([draw_inputs(model, *choice) for choice in choices], names)
        if not any(p.dtype is not None and p.dtype.kind in "iu" for p in model.inputs):
            return accepted
        for integers in _VALID_INTEGERS:
            attempts = {(draw.kind, draw.sizes) for draw in accepted}
            draws = [
                draw_inputs(model, kind, sizes, integers=integers[kind])
                for kind, sizes in choices
                if kind in integers and (kind, sizes) not in attempts
            ]
            if draws:
                accepted += self._with_values(draws, names)
        return accepted

    def _with_values(self, draws: list[Draw], names: list[str]) -> list[Draw]:
        """Add the reference's values to draws; drop draws that it does not accept."""
        outputs = names or self._any_outputs()
        if not outputs:
            return draws
        positions = _ancestors(self._model, outputs)
        prefix = self._model.extract(positions, outputs)
        inputs = [{p.name: draw.inputs[p.name] for p in prefix.inputs} for draw in draws]
        results = self._reference(prefix, inputs)
        accepted = []
        for draw, result in zip(draws, results, strict=True):
            if isinstance(result, RunFailure):
                self.problem = f"the reference fails: {result.reason}"
            else:
                accepted.append(replace(draw, inputs={**draw.inputs, **result}))
        return accepted

    def _any_outputs(self) -> list[str]:
        """Return the computable outputs of the model, to learn whether it accepts the inputs."""
        producers = self._model.producers
        return [
            p.name for p in self._model.outputs if producers.get(p.name, -1) in self._computable
        ]


def _computable_positions(model: Model, supported: frozenset[str]) -> frozenset[int]:
    """Return the positions of nodes that the reference can compute from the model's inputs."""
    computable: set[int] = set()
    values = {port.name for port in model.inputs} | model.constants.keys()
    for position, node in enumerate(model.nodes):
        if (
            node.name in supported
            and not is_random(node.proto)
            and all(value in values for value in node.reads)
        ):
            computable.add(position)
            values.update(node.writes)
    return frozenset(computable)


def _ancestors(model: Model, values: Iterable[str]) -> list[int]:
    """Return the positions of the nodes that compute values."""
    pending = [model.producers[value] for value in values if value in model.producers]
    members: set[int] = set()
    while pending:
        position = pending.pop()
        if position not in members:
            members.add(position)
            pending += [
                model.producers[v] for v in model.nodes[position].reads if v in model.producers
            ]
    return sorted(members)
