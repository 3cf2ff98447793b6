"""Generated inputs of a model for verification: typical, wide and extreme values in some sizes.

Integers stay within the ranges that the model's graph proves. Indices are small, so that they are
valid. Sizes and numbers of iterations are small, so that runs take neither long nor much memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from hetero.devices.model.integer_ranges import Range, by_operator
from hetero.devices.model.model import Model, Node
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.program import Value
from hetero.measure.sample_inputs import declared_shapes, declared_values, sample_value
from hetero.verify.float_values import is_float
from hetero.verify.tolerance import rounded_values

#: ``typical``: normal floats, integers 0 and 1. ``wide``: floats of several magnitudes with zeros,
#: ones and halves, small integers of both signs. ``extreme``: large, tiny and zero floats, and the
#: bounds of integers.
Kind = Literal["typical", "wide", "extreme"]
KINDS: Final[tuple[Kind, ...]] = ("typical", "wide", "extreme")
Integers = Literal["drawn", "typical", "ones"]
#: Sizes of open dimensions to try, until the reference runs with two of them. A tuple gives the
#: first symbols different sizes, so that exchanged axes show; equal sizes suit related symbols.
#: Small batches of large images suit networks with many pools.
_SIZES: Final[tuple[tuple[int, ...], ...]] = (
    (3, 5, 7, 4, 6),
    (2,),
    (1,),
    (4,),
    (8,),
    (2, 32),
    (16,),
    (2, 64),
    (32,),
    (64,),
    (1, 224),
    (224,),
)
#: Elements of a tensor that surely has both bounds of its integers.
_LEAST_MIXED: Final = 8
#: Sizes of a batch of eight whose further dimensions fall. Kernels have other code for multiples of
#: 4 or 8, and for more rows than columns.
FALLING_SIZES: Final = (8, 4, 2)
#: Large sizes, in the order to try them: longer than the blocks and vectors of most kernels. One
#: open dimension has the last size.
_LARGE_SIZES: Final[tuple[tuple[int, ...], ...]] = ((65,), (33,), (17,))
#: Larger ones, to try before. If floats are rounded, some of so many are next to a tie.
_LARGEST_SIZES: Final[tuple[tuple[int, ...], ...]] = ((65, 1031), (65, 257))
#: Sums of symbols are tried for models with at most this many symbols.
_MAX_SUMMED_SYMBOLS: Final = 5
#: Limit of all inputs together: four open dimensions of size 64 fit, of size 224 take 10 GB.
_MAX_ELEMENTS: Final = 2**26
#: The same for large sizes: random numbers for a million elements take 30 ms.
_MAX_LARGE_ELEMENTS: Final = 2**20
#: Floats that expose wrong treatment of signs, halves and zeros.
_SPECIAL_FLOATS: Final = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.0, -3.0)
_EXTREME_FLOATS: Final = (0.0, -0.0, 1e-6, -1e-6, 1e-3, 1.0, -1.0, 20.0, -20.0, 100.0, -100.0)
#: Integers next to the largest ones that single and double precision hold exactly.
_INEXACT_INTEGERS: Final = (2**24 + 1, 2**53 + 1)
#: Strings of several lengths, cases and alphabets, and numbers.
_STRINGS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "wide": ("", "a", "A", "ab", "b a", "\u00e9", "\u03a9"),
    "extreme": ("0", "-1", "1.5", "7", "1e3"),
}
#: Least number of rows in a tensor with a row of zeros, as padding gives.
_LEAST_ROWS: Final = 3
#: Bound of computed indices, of sizes, and of integers whose range is only that of their type.
_SMALL: Final = 8
#: Operators -> the inputs that determine the number of iterations or the size of an output.
_SIZE_INPUTS: Final = by_operator(
    {
        "Loop ConstantOfShape BlackmanWindow HammingWindow HannWindow": {0},
        "CenterCropPad Expand OneHot Pad Reshape Split Tile TopK AffineGrid": {1},
        "Col2Im MelWeightMatrix STFT": {0, 1, 3},
        "Range": {0, 1, 2},
        "Resize": {2, 3},
        "Upsample": {1},
    }
)
#: Operators whose second input are indices into the first.
_INDEXING: Final = frozenset(
    {"Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND"}
)
_QUANTIZED_TABLE: Final = "GatherBlockQuantized"
_INDEXING_ONE_AXIS: Final = frozenset(
    {"Gather", "GatherElements", "Scatter", "ScatterElements", _QUANTIZED_TABLE}
)
#: Operators whose result has the elements of their first input.
_SAME_ELEMENTS: Final = frozenset(
    {"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
)


@dataclass(frozen=True)
class Draw:
    """One set of generated inputs."""

    kind: Kind
    #: Sizes of the open dimensions; the last repeats.
    sizes: tuple[int, ...]
    inputs: Mapping[str, Value] = field(repr=False)
    #: Whether they are one more set, of other sizes.
    is_further: bool = False


def has_open_dimensions(model: Model) -> bool:
    """Return whether an input of the model has an open dimension."""
    return any(port.is_tensor and not port.is_static for port in model.inputs)


def only_shapes(inputs: Mapping[str, Value]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tensor inputs."""
    return {name: value.shape for name, value in inputs.items() if isinstance(value, np.ndarray)}


def size_options(model: Model) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of open dimensions to try, in order; the first is always one of them."""
    if not has_open_dimensions(model):
        return _SIZES[:1]

    #: Shapes of the inputs -> the first sizes that give them.
    options: dict[tuple[tuple[int, ...], ...], tuple[int, ...]] = {}
    for sizes in _SIZES:
        shapes = tuple(_closed_shapes(model, sizes).values())
        if not options or count_elements(model, sizes) <= _MAX_ELEMENTS:
            options.setdefault(shapes, sizes)
    return tuple(options.values())


def count_elements(model: Model, sizes: Sequence[int]) -> int:
    """Return the elements of all inputs with some sizes of open dimensions."""
    return sum(map(math.prod, _closed_shapes(model, sizes).values()))


def large_size_options(model: Model) -> tuple[tuple[int, ...], ...]:
    """Return large sizes of open dimensions to try, in order."""
    has_one_symbol = len(_symbol_numbers(model)) == 1
    all_sizes = _LARGE_SIZES if rounded_values(model) else _LARGEST_SIZES + _LARGE_SIZES
    options = (sizes[-1:] if has_one_symbol else sizes for sizes in all_sizes)
    return tuple(s for s in options if count_elements(model, s) <= _MAX_LARGE_ELEMENTS)


def sum_options(model: Model) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield pairs of sizes in which one symbol is the sum of two others, or of another and 1.

    For example, the attention mask of a decoder has the length of the past and the new tokens.
    Pairs without the first symbol, usually the batch, are first, and those of an added 1 are last.
    """
    count = len(_symbol_numbers(model))
    if count > _MAX_SUMMED_SYMBOLS:
        return
    bases = (_SIZES[0][:count], (1,) * count)
    sums = [
        (total, addends)
        for total in range(count)
        for addends in itertools.combinations([n for n in (None, *range(count)) if n != total], 2)
    ]
    for total, addends in sorted(sums, key=lambda s: (None in s[1], 0 in (s[0], *s[1]))):
        first, second = (
            (*base[:total], sum(1 if n is None else base[n] for n in addends), *base[total + 1 :])
            for base in bases
        )
        yield first, second


def draw_inputs(
    model: Model, kind: Kind, sizes: Sequence[int], *, integers: Integers = "drawn"
) -> Draw:
    """Generate inputs of a kind; equal arguments give equal inputs.

    `integers`: integers of the kind, or typical ones for every kind, because others may be invalid
        indices, or ones, which are valid in masks too, except for indices that the graph does not
        compute, which are of the kind.
    Typical shapes and values in the model's metadata take precedence over other typical ones.

    Raises TensorTypeError: an input is not a tensor of a known type.
    """
    rng = np.random.default_rng(KINDS.index(kind))
    limits = _limits(model)
    shapes = _closed_shapes(model, sizes)
    declared: Mapping[str, Value] = {}
    if kind == "typical":
        if sizes == _SIZES[0]:
            shapes |= declared_shapes(model)
        declared = declared_values(model, shapes)

    def draw(port: TensorSpec) -> Value:
        is_integer = port.dtype is not None and port.dtype.kind in "iu"
        proven_range = model.integer_ranges.get(port.name)
        is_index = False
        if is_integer and port.name in limits:
            least, most = limits[port.name]
            is_index = least < 0
            info = np.iinfo(port.dtype)
            low, high = proven_range or (info.min, info.max)
            has_negatives = kind == "extreme" and integers == "drawn"
            proven_range = max(low, least if has_negatives else 0), min(high, most)
        # With equal tokens, an attention would give equal results for any weights.
        is_one = is_integer and integers == "ones" and not is_index
        # Extreme floats would make a Range of a hundred million elements.
        is_typical = is_one or integers == "typical" if is_integer else port.name in limits
        port_kind = "typical" if is_typical else kind
        value = draw_value(port, port_kind, rng, shapes.get(port.name), proven_range)
        return _clip(np.ones_like(value), proven_range) if is_one else value

    values = {
        port.name: declared[port.name] if port.name in declared else draw(port)
        for port in model.inputs
    }
    return Draw(kind, tuple(sizes), values)


def draw_value(
    port: TensorSpec,
    kind: Kind,
    rng: np.random.Generator,
    shape: tuple[int, ...] | None,
    proven_range: Range | None,
) -> Value:
    """Generate a value for a port; integers stay within their proven range."""
    value: np.ndarray = sample_value(port, rng, shape)
    dtype = value.dtype
    if kind == "typical":
        return _clip(value, proven_range)
    if dtype.hasobject:
        return np.asarray(rng.choice(np.array(_STRINGS[kind], object), value.shape), object)
    if not (is_float(value) or dtype.kind in "iu"):
        return value
    if dtype.kind in "iu":
        return _draw_integers(value, kind, rng, proven_range)
    if kind == "extreme":
        floats = _spread(_EXTREME_FLOATS, rng.choice(_EXTREME_FLOATS, value.shape), rng)
        if floats.ndim > 1 and floats.size >= _LEAST_ROWS * max(1, floats.shape[-1]):
            floats[(0,) * (floats.ndim - 1)] = 0.0
    else:
        floats = rng.standard_normal(value.shape) * np.exp(1.5 * rng.standard_normal(value.shape))
        is_special = rng.random(value.shape) < 0.2
        floats = np.where(is_special, rng.choice(_SPECIAL_FLOATS, value.shape), floats)
        floats = _spread(_SPECIAL_FLOATS, floats, rng)
    return np.asarray(floats).astype(dtype)


def _spread(
    values: Sequence[float] | np.ndarray, array: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return a copy of an array with each of some values in it, if it has room for all of them."""
    copy = np.array(array)
    if copy.size >= len(values):
        copy.reshape(-1)[rng.choice(copy.size, len(values), replace=False)] = values
    return copy


def _draw_integers(
    value: np.ndarray, kind: Kind, rng: np.random.Generator, proven_range: Range | None
) -> np.ndarray:
    info = np.iinfo(value.dtype)
    low, high = proven_range or (info.min, info.max)
    is_proven = (low, high) != (info.min, info.max)
    if kind == "extreme":
        is_mixed = value.size >= _LEAST_MIXED
        more = (-1, *_INEXACT_INTEGERS) if is_mixed or is_proven else ()
        others = (v for v in (0, 1, *more) if low <= v <= high)
        options = np.array([low, high, *others], value.dtype)
        numbers = np.asarray(options[rng.integers(0, len(options), value.shape)])
        # In a small tensor, the sum of both bounds would hide the overflow of others.
        return _spread(options, numbers, rng) if is_mixed else numbers
    if not is_proven or high - low > 2**32:
        low, high = max(low, -_SMALL), min(high, _SMALL)
    return np.asarray(rng.integers(low, high, value.shape, endpoint=True)).astype(value.dtype)


def _clip(value: np.ndarray, proven_range: Range | None) -> np.ndarray:
    if proven_range is None or value.dtype.kind not in "iu":
        return value
    return np.asarray(np.clip(value, *proven_range)).astype(value.dtype)


def _closed_shapes(model: Model, sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the inputs' shapes without open dimensions; a symbol has one size in all inputs.

    A dimension without a symbol has the first size if it is the first one, perhaps the batch, and
    else the last size.
    """
    numbers = _symbol_numbers(model)
    head_sizes = _head_sizes(model)
    last = len(sizes) - 1

    def close(axis: int, dimension: int | str | None) -> int:
        if isinstance(dimension, int):
            return dimension
        if dimension in head_sizes:
            return head_sizes[dimension]
        number = numbers[dimension] if dimension else axis
        return sizes[last if number and not dimension else min(number, last)]

    return {
        port.name: tuple(itertools.starmap(close, enumerate(port.shape)))
        for port in model.inputs
        if port.is_tensor and port.shape is not None
    }


def _symbol_numbers(model: Model) -> dict[str, int]:
    """Return the symbols of dimensions that may have any size, numbered by first occurrence."""
    shapes = (port.shape or () for port in model.inputs if port.is_tensor)
    symbols = dict.fromkeys(d for shape in shapes for d in shape if isinstance(d, str) and d)
    return {s: number for number, s in enumerate(s for s in symbols if s not in _head_sizes(model))}


def _head_sizes(model: Model) -> dict[str, int]:
    """Return the symbols that stand for the size of an attention head, with this size.

    Exports of onnxruntime-genai's builder leave it open in caches, but the weights determine it.
    """
    sizes: dict[str, int] = {}
    for node in model.nodes:
        if node.op_type != "GroupQueryAttention":
            continue
        query, key, _, past = (*node.inputs, "", "", "", "")[:4]
        query_shape, past_shape = model.spec(query).shape, model.spec(past).shape
        if not query_shape or not past_shape:
            continue
        width, symbol = query_shape[-1], past_shape[-1]
        if isinstance(width, int) and isinstance(symbol, str):
            num_heads = node.attributes["num_heads"]
            packed_heads = 0 if key else 2 * node.attributes["kv_num_heads"]
            sizes[symbol] = width // (num_heads + packed_heads)
    return sizes


def _limits(model: Model) -> dict[str, Range]:
    """Return the ranges of sizes, numbers of iterations and indices.

    All values that they are computed from have the same range, but are small. Indices that the
    graph does not compute may be any of their axis, also negative ones, which count from its end.
    """
    limits: dict[str, Range] = {}
    for node in model.nodes:
        pending: dict[str, Range] = {}
        if (node.op_type in _INDEXING and not node.domain) or node.op_type == _QUANTIZED_TABLE:
            pending[node.inputs[1]] = _index_range(node, model)
        for position in _SIZE_INPUTS.get(node.op_type, ()) if not node.domain else ():
            if position < len(node.inputs):
                pending[node.inputs[position]] = 0, _SMALL
        while pending:
            name, (low, high) = pending.popitem()
            old_low, old_high = limits.get(name, (low, high + 1))
            if not name or (low <= old_low and high >= old_high):
                continue
            low, high = limits[name] = max(low, old_low), min(high, old_high)
            producer = model.producer(name)
            if producer is None:
                continue
            if producer.op_type in _SAME_ELEMENTS:
                pending[producer.inputs[0]] = low, high
            else:
                pending |= dict.fromkeys(producer.reads, (0, min(high, _SMALL)))
    return limits


def _index_range(node: Node, model: Model) -> Range:
    """Return the indices that are valid for the first input of an operator."""
    shape = model.spec(node.inputs[0]).shape or ()
    sizes = [n for n in shape if isinstance(n, int)]
    axis = node.attributes.get("axis", node.attributes.get("gather_axis", 0))
    if node.op_type in _INDEXING_ONE_AXIS and -len(shape) <= axis < len(shape):
        size = shape[axis]
        if isinstance(size, int) and size:
            return 1 - size, size - 1
    return 0, max(0, min([_SMALL, *sizes]) - 1)
