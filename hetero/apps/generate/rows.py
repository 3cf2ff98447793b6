"""How texts become rows of one run: where rows lie in a decoder's states, and how those grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hetero.apps.generate.ports import Decoder
from hetero.apps.generate.texts import Text
from hetero.devices.model.model import Model
from hetero.devices.model.variables import variables_of
from hetero.devices.request.batch_rows import RowLayout

#: Of one token it is rounded otherwise than of several, so texts would depend on each other.
_BY_COUNT: Final = frozenset({"MatMulNBits"})
#: So many positions of padding for each one of texts, from so many on, are too many.
_WASTE: Final = 2
_FREE: Final = 256


@dataclass(frozen=True, slots=True)
class Rows:
    """What rows of one run may be.

    `axes`: of each state, where rows lie, and what is longer after each step.
    `padding`: where shorter texts are filled up: where the mask leaves out beginnings; where
        lengths are told, or do not matter; or texts are as long as each other.
    `meets`: whether texts of several calls may be rows of one.
    `changes_at`: as the decoder's: texts of more tokens and of fewer are no rows of one.
    """

    axes: Mapping[str, tuple[int, int | None]]
    padding: Literal["begin", "end", "none"]
    meets: bool
    changes_at: int | None = None

    @classmethod
    def of(cls, model: Model, decoder: Decoder) -> Rows | None:
        """Return those of a model; None where it takes one row."""
        ports = {port.name: port for port in model.inputs}
        symbol = (ports[decoder.ids].shape or (1,))[0]
        axes: dict[str, tuple[int, int | None]] = {}
        for variable in variables_of(model):
            shape = variable.input.shape or ()
            opened = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
            if isinstance(symbol, int) or not opened:
                return None
            axis = shape.index(symbol) if symbol and symbol in shape else 0
            others = [a for a in opened if a != axis]
            if axis not in opened or len(others) > 1:
                return None
            is_encoders = bool(decoder.sources) and "encoder" in variable.name
            axes[variable.name] = axis, None if is_encoders else next(iter(others), None)
        operators = {node.op_type for node in model.nodes}
        grows = any(grown is not None for _, grown in axes.values())
        lengths = [ports[n] for n in (decoder.past_length, decoder.total_length) if n]
        is_flat = bool(decoder.positions) and len(ports[decoder.positions].shape or (0, 0)) == 1
        padding: Literal["begin", "end", "none"] = "none"
        # What tells lengths, besides a mask; where nothing does, they may not matter.
        tells = len(lengths) == 2 or not decoder.positions
        if not is_flat and all(len(port.shape or ()) == 1 for port in lengths):
            if decoder.pads and not lengths:
                padding = "begin"
            elif "GroupQueryAttention" in operators if decoder.mask else tells and not grows:
                padding = "end"
        meets = padding != "none" and not operators & _BY_COUNT
        return cls(axes, padding, meets, decoder.changes_at)

    def fit(self, texts: Sequence[Text]) -> bool:
        """Whether texts may be rows of one run, and it is worth it."""
        first = texts[0].options.sources
        shapes = {name: source.shape[1:] for name, source in first.items()}
        for text in texts[1:]:
            if {n: source.shape[1:] for n, source in text.options.sources.items()} != shapes:
                return False
        lengths = [len(text.said) for text in texts]
        longest = max(lengths)
        if self.changes_at is not None and min(lengths) <= self.changes_at < longest:
            return False
        if self.padding == "none":
            return min(lengths) == longest
        return longest <= _FREE or longest * len(texts) <= _WASTE * sum(lengths)

    def layouts(self, length: int) -> dict[str, RowLayout]:
        """Return how rows lie in each state, where there are so many positions."""
        at_end = self.padding == "begin"
        return {name: RowLayout(axis, g, length, at_end) for name, (axis, g) in self.axes.items()}
