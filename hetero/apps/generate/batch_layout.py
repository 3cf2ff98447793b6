"""Batch layout of a decoder: the batch axis and the growing axis of each KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hetero.apps.generate.decoder_ports import Decoder
from hetero.apps.generate.sequences import TokenSequence
from hetero.devices.model.model import Model
from hetero.devices.model.variables import variables_of
from hetero.devices.request.batch_rows import RowLayout

#: Operators that round a single token differently, so that batching would change results.
_BATCH_SENSITIVE: Final = frozenset({"MatMulNBits"})
#: Sequences are not batched if the padded batch has more than this many times their tokens.
_MAX_PADDING_FACTOR: Final = 2
#: Batches up to this length may have any padding.
_FREE_LENGTH: Final = 256


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Arrangement of several sequences in one run.

    `axes`: state name -> its batch axis, and the axis that grows with each step, if any.
    `padding`: side on which shorter sequences are padded: ``begin`` if the mask excludes padding
        there; ``end`` if lengths are inputs or do not matter; ``none`` if lengths must be equal.
    `joins_calls`: whether sequences of several calls may share a run.
    `changes_at`: `Decoder.changes_at`: sequences above and below this length share no run.
    """

    axes: Mapping[str, tuple[int, int | None]]
    padding: Literal["begin", "end", "none"]
    joins_calls: bool
    changes_at: int | None = None

    @classmethod
    def of(cls, model: Model, decoder: Decoder) -> BatchLayout | None:
        """Return the layout of a model; None if the model takes a single row."""
        ports = {port.name: port for port in model.inputs}
        symbol = (ports[decoder.ids].shape or (1,))[0]
        axes: dict[str, tuple[int, int | None]] = {}
        for variable in variables_of(model):
            shape = variable.input.shape or ()
            open_axes = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
            if isinstance(symbol, int) or not open_axes:
                return None
            axis = shape.index(symbol) if symbol and symbol in shape else 0
            others = [a for a in open_axes if a != axis]
            if axis not in open_axes or len(others) > 1:
                return None
            is_encoders = bool(decoder.sources) and "encoder" in variable.name
            axes[variable.name] = axis, None if is_encoders else next(iter(others), None)
        operators = {node.op_type for node in model.nodes}
        grows = any(growing_axis is not None for _, growing_axis in axes.values())
        lengths = [ports[n] for n in (decoder.past_length, decoder.total_length) if n]
        is_flat = bool(decoder.positions) and len(ports[decoder.positions].shape or (0, 0)) == 1
        padding: Literal["begin", "end", "none"] = "none"
        # Lengths are inputs, or, without positions, may not matter.
        has_lengths = len(lengths) == 2 or not decoder.positions
        if not is_flat and all(len(port.shape or ()) == 1 for port in lengths):
            if decoder.pads and not lengths:
                padding = "begin"
            elif "GroupQueryAttention" in operators if decoder.mask else has_lengths and not grows:
                padding = "end"
        joins_calls = padding != "none" and not operators & _BATCH_SENSITIVE
        return cls(axes, padding, joins_calls, decoder.changes_at)

    def fits(self, sequences: Sequence[TokenSequence]) -> bool:
        """Whether sequences can share a run without too much padding."""
        first = sequences[0].options.sources
        shapes = {name: source.shape[1:] for name, source in first.items()}
        for sequence in sequences[1:]:
            if {n: source.shape[1:] for n, source in sequence.options.sources.items()} != shapes:
                return False
        lengths = [len(sequence.ids) for sequence in sequences]
        longest = max(lengths)
        if self.changes_at is not None and min(lengths) <= self.changes_at < longest:
            return False
        if self.padding == "none":
            return min(lengths) == longest
        return longest <= _FREE_LENGTH or longest * len(sequences) <= _MAX_PADDING_FACTOR * sum(
            lengths
        )

    def layouts(self, length: int) -> dict[str, RowLayout]:
        """Return the row layout of each state for caches of `length` positions."""
        at_end = self.padding == "begin"
        return {
            name: RowLayout(axis, growing, length, at_end)
            for name, (axis, growing) in self.axes.items()
        }
