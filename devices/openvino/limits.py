"""What requests are checked for, so that a model's 64-bit integers fit 32 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from hetero.devices.model.integer_ranges import LONGEST_OPEN_AXIS, Range, value_ranges
from hetero.devices.model.model import Model
from hetero.devices.openvino.operators import EXACT_FLOAT, INT32, NARROWED, fits, refusal

#: Lengths of open axes, the second one such that two lengths can be multiplied.
_LENGTHS: Final = (LONGEST_OPEN_AXIS, 2**15)
#: Magnitudes of inputs: what 32 bits hold, and with room for a sum; what floats hold; what a mask
#: may have: it is summed over the longest axis, and the sums are multiplied by it.
_MAGNITUDES: Final = (int(INT32.max), 2**30, EXACT_FLOAT, int(INT32.max) // LONGEST_OPEN_AXIS, 2**7)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the inputs of a request keep to."""

    #: The longest axis of those that the model leaves open; None for any.
    longest: int | None = LONGEST_OPEN_AXIS
    #: Input -> its greatest magnitude, of those that are not proven to fit.
    magnitudes: Mapping[str, int] = field(default_factory=dict)

    def ranges(self, model: Model) -> Mapping[str, Range]:
        """Return what is proven of a model's integers within these limits."""
        if self == Limits():
            return model.integer_ranges
        unsigned = {n for n in self.magnitudes if model.spec(n).element_type.startswith("u")}
        given = {n: (0 if n in unsigned else -most, most) for n, most in self.magnitudes.items()}
        return value_ranges(model, self.longest or int(INT32.max), given)

    def refused(self, model: Model) -> int:
        """Return how many nodes are refused even within these limits."""
        ranges = self.ranges(model)
        return sum(refusal(node, model, False, ranges) is not None for node in model.nodes)


def checked_limits(model: Model) -> Limits:
    """Return the widest limits within which most of a model's integers fit."""
    proven = model.integer_ranges
    unproven = [
        port.name
        for port in model.inputs
        if port.element_type in NARROWED and not fits(port.name, proven, _MAGNITUDES[0])
    ]
    best, fewest = Limits(), Limits().refused(model)
    for longest in _LENGTHS:
        if not fewest:
            break
        limits = Limits(longest, dict.fromkeys(unproven, _MAGNITUDES[0]))
        left = limits.refused(model)
        for name in unproven:
            for most in _MAGNITUDES[1:]:
                narrower = replace(limits, magnitudes={**limits.magnitudes, name: most})
                if left and (count := narrower.refused(model)) < left:
                    limits, left = narrower, count
        if left < fewest:
            best, fewest = limits, left
    return best


def kept_to(model: Model, limits: Limits) -> Limits:
    """Return those of `limits` that a model that is taken within them needs."""
    if all(type(n) is int for port in model.inputs for n in port.shape or ()):
        return replace(limits, longest=None)
    endless = replace(limits, longest=None)
    return limits if endless.refused(model) else endless
