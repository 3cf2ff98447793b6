"""Memory traits of a device: the memory that its process uses in addition to weights and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Copies:
    """Number of copies of weights that a model stores, or that nodes compute from constants."""

    stored: float = 0.0
    computed: float = 0.0

    def of(self, *, stored: bool) -> float:
        """Return the number of copies of one kind of weights."""
        return self.stored if stored else self.computed


@dataclass(frozen=True, slots=True)
class MemoryTraits:
    """Memory use of a device's process, for predictions before a model is loaded.

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
    weight_copies : Copies
        Number of these copies.
    fused_copies : float
        Number of further copies of the weights of a convolution before a batch normalization, into
        which the device folds the normalization.
    compile_copies : Copies
        Number of further copies of weights that exist only during the compilation.
    convolution_compile_copies : Copies
        The same for the weights of convolutions, which the device lays out anew.
    reused_copies : float or None
        Largest number of the compile copies that are no convolutions', relative to the largest
        weight: the memory of a copy is reused for the next one. None if there is no limit.
    node_nbytes : int
        Memory of each node, such as the code that the device generates for it.
    session_nbytes : int
        Memory of each compiled model that depends neither on its weights nor on its values, such as
        buffers of the threads.
    values_factor : float
        Memory of the device per byte of live values; more than one if blocks of earlier runs and
        fragments stay allocated.
    convolution_values_factor : float
        The same for stages with convolutions, whose values the device lays out anew, if larger.
    keeps_values : bool
        Whether memory of values is kept for the next run instead of returned to the system.
    overwrites_inputs : bool
        Whether an elementwise operator may write its result over an input.
    values_option : str
        Name of the option that takes the size of a block of memory for the values of each compiled
        model; a device with a memory budget gets it. Empty if there is none.
    block_values_factor : float
        The factor of values with that option.
    block_convolution_values_factor : float
        The same for stages with convolutions.
    has_equal_blocks : bool
        Whether each compiled model has a block for the values of the largest one.
    compact_options : mapping of str to object
        Options with which the device copies the weights of fewer operators; empty if there are
        none.
    compact_copied_operators : frozenset of str
        Operators whose weights the device copies despite its compact options.
    """

    runtime_nbytes: int = 0
    library_nbytes: int = 0
    copied_operators: frozenset[str] | None = frozenset()
    weight_copies: Copies = Copies()
    fused_copies: float = 0.0
    compile_copies: Copies = Copies()
    convolution_compile_copies: Copies = Copies()
    reused_copies: float | None = None
    node_nbytes: int = 0
    session_nbytes: int = 0
    values_factor: float = 1.0
    convolution_values_factor: float = 1.0
    keeps_values: bool = False
    overwrites_inputs: bool = False
    values_option: str = ""
    block_values_factor: float = 1.0
    block_convolution_values_factor: float = 1.0
    has_equal_blocks: bool = False
    compact_options: Mapping[str, Any] = field(default_factory=dict)
    compact_copied_operators: frozenset[str] = frozenset()

    @property
    def idle_nbytes(self) -> int:
        """Memory of the device's process and its libraries, without a model."""
        return self.runtime_nbytes + self.library_nbytes

    def copies(self, operator: str) -> bool:
        """Return whether the device copies the weights of an operator."""
        return self.copied_operators is None or operator in self.copied_operators

    def values_factor_of(self, *, has_convolutions: bool) -> float:
        """Return the memory of a stage per byte of its live values."""
        factor = self.convolution_values_factor if has_convolutions else 0.0
        return max(self.values_factor, factor)

    def with_options(self, options: Mapping[str, Any]) -> MemoryTraits:
        """Return the traits of a device with some options, which may be its compact ones."""
        traits = self.with_blocks if options.get(self.values_option) else self
        compact = self.compact_options.items()
        if compact and all(options.get(name) == value for name, value in compact):
            return traits.compact
        return traits

    @property
    def with_blocks(self) -> MemoryTraits:
        """The traits with blocks for values; the same traits if there is no such option."""
        if not self.values_option:
            return self
        return replace(
            self,
            values_factor=self.block_values_factor,
            convolution_values_factor=self.block_convolution_values_factor,
            has_equal_blocks=True,
        )

    @property
    def compact(self) -> MemoryTraits:
        """The traits with the compact options; the same traits if there are none."""
        if not self.compact_options:
            return self
        return replace(
            self,
            copied_operators=self.compact_copied_operators,
            compile_copies=Copies(),
            compact_options={},
        )
