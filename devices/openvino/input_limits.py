"""Limits on a request's inputs under which a model's 64-bit integers fit 32 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from hetero.devices.faults.openvino import refusal
from hetero.devices.faults.openvino_integers import EXACT_FLOAT, INT32, NARROWED, is_within
from hetero.devices.model.integer_ranges import LONGEST_DYNAMIC_AXIS, Range, value_ranges
from hetero.devices.model.model import Model

#: Candidates for the longest open axis; the product of two lengths of the second one fits 32 bits.
_LENGTHS: Final = (LONGEST_DYNAMIC_AXIS, 2**15)
#: Candidates for the magnitude of an input: the largest 32-bit integer; half of it, for a sum; the
#: largest exact float; an element whose sum along the longest axis fits; a mask's element, whose
#: sum is multiplied by the mask.
_MAGNITUDES: Final = (
    int(INT32.max),
    2**30,
    EXACT_FLOAT,
    int(INT32.max) // LONGEST_DYNAMIC_AXIS,
    2**7,
)


@dataclass(frozen=True, slots=True)
class InputLimits:
    """The largest lengths and values that the inputs of a request may have."""

    #: The longest axis among those that the model leaves open; None for any length.
    longest_axis: int | None = LONGEST_DYNAMIC_AXIS
    #: Input -> its largest magnitude, for inputs whose values are not proven to fit.
    magnitudes: Mapping[str, int] = field(default_factory=dict)

    def ranges(self, model: Model) -> Mapping[str, Range]:
        """Return the ranges of a model's integers for inputs within these limits."""
        if self == InputLimits():
            return model.integer_ranges
        unsigned = {n for n in self.magnitudes if model.spec(n).element_type.startswith("u")}
        inputs = {
            name: (0 if name in unsigned else -magnitude, magnitude)
            for name, magnitude in self.magnitudes.items()
        }
        return value_ranges(model, self.longest_axis or int(INT32.max), inputs)

    def count_refusals(self, model: Model) -> int:
        """Return the number of refused nodes for inputs within these limits."""
        ranges = self.ranges(model)
        return sum(refusal(node, model, False, ranges) is not None for node in model.nodes)


def find_limits(model: Model) -> InputLimits:
    """Find the widest limits that leave the fewest refused nodes."""
    ranges = model.integer_ranges
    unproven_inputs = [
        port.name
        for port in model.inputs
        if port.element_type in NARROWED and not is_within(port.name, ranges, _MAGNITUDES[0])
    ]
    best, fewest = InputLimits(), InputLimits().count_refusals(model)
    for longest_axis in _LENGTHS:
        if not fewest:
            break
        limits = InputLimits(longest_axis, dict.fromkeys(unproven_inputs, _MAGNITUDES[0]))
        refusals = limits.count_refusals(model)
        for name in unproven_inputs:
            for magnitude in _MAGNITUDES[1:]:
                narrower = replace(limits, magnitudes={**limits.magnitudes, name: magnitude})
                if refusals and (count := narrower.count_refusals(model)) < refusals:
                    limits, refusals = narrower, count
        if refusals < fewest:
            best, fewest = limits, refusals
    return best


def without_needless_length(model: Model, limits: InputLimits) -> InputLimits:
    """Return limits without the longest axis, if the model supports any length."""
    unlimited = replace(limits, longest_axis=None)
    if all(type(n) is int for port in model.inputs for n in port.shape or ()):
        return unlimited
    return limits if unlimited.count_refusals(model) else unlimited
