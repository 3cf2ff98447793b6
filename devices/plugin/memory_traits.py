"""Memory traits of a device: the memory that its process uses in addition to weights and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class MemoryTraits:
    """How a device's process uses memory, for predictions before a model is loaded.

    The defaults describe an interpreter: it reads the weights in place and frees each value after
    its last use.

    Attributes
    ----------
    runtime_nbytes : int
        Resident memory of the device's process before it compiles a model.
    library_nbytes : int
        Memory of the libraries that the first compilation initializes.
    copied_operators : frozenset of str or None
        Operators whose weights the device copies to a layout of its own; None for all operators.
    weight_copies : float
        Number of these copies of weights that a model stores.
    computed_copies : float
        Number of these copies of weights that nodes compute from constants.
    fused_copies : float
        Number of further copies of the weights of a convolution before a batch normalization, into
        which the device folds the normalization.
    compile_copies : float
        Number of further copies of all stored weights that exist only during the compilation.
    keeps_values : bool
        Whether memory of values is kept for the next run instead of returned to the system.
    overwrites_inputs : bool
        Whether an elementwise operator may write its result over an input.
    compact_options : mapping of str to object
        Options with which the device copies the weights of fewer operators; empty if there are
        none.
    compact_copied_operators : frozenset of str
        Operators whose weights the device copies despite its compact options.
    """

    runtime_nbytes: int = 0
    library_nbytes: int = 0
    copied_operators: frozenset[str] | None = frozenset()
    weight_copies: float = 0.0
    computed_copies: float = 0.0
    fused_copies: float = 0.0
    compile_copies: float = 0.0
    keeps_values: bool = False
    overwrites_inputs: bool = False
    compact_options: Mapping[str, Any] = field(default_factory=dict)
    compact_copied_operators: frozenset[str] = frozenset()

    def copies(self, operator: str) -> bool:
        """Return whether the device copies the weights of an operator."""
        return self.copied_operators is None or operator in self.copied_operators

    @property
    def compact(self) -> MemoryTraits:
        """The traits with the compact options; the same traits if there are none."""
        if not self.compact_options:
            return self
        return replace(self, copied_operators=self.compact_copied_operators, compact_options={})
