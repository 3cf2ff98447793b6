"""Shapes and dimensions: relations against sets of lengths, forms, and errors."""

from __future__ import annotations

import copy
import operator
import pickle
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.devices.errors import ArgumentError, ArgumentTypeError
from hetero.devices.model.partial_shape import Dimension, PartialShape, Shape, Symbol
from tests.support.rows import for_each_row

#: Intervals (minimum, maximum); -1 for no limit.
INTERVALS = st.integers(0, 4).flatmap(
    lambda low: st.tuples(st.just(low), st.sampled_from([-1, *range(low, 7)]))
)
#: Lengths above it are as good as unlimited: sums and products of the others stay below.
LARGE = 60


def lengths(interval: tuple[int, int]) -> set[int]:
    low, high = interval
    return set(range(low, LARGE if high == -1 else high + 1))


def dimension(interval: tuple[int, int]) -> Dimension:
    return Dimension(*interval)


@given(INTERVALS, INTERVALS)
def test_relations_are_those_of_sets_of_lengths(a, b):
    one, other = dimension(a), dimension(b)
    assert one.relaxes(other) == (lengths(a) >= lengths(b))
    assert one.refines(other) == (lengths(a) <= lengths(b))
    assert one.compatible(other) == bool(lengths(a) & lengths(b))
    assert (one == other) == (lengths(a) == lengths(b))
    assert one.is_static == (len(lengths(a)) == 1) == (not one.is_dynamic)
    same = len(lengths(a)) == len(lengths(b)) == 1 and lengths(a) == lengths(b)
    assert one.same_scheme(other) == (same or (one.is_dynamic and other.is_dynamic))
    assert hash(one) == hash(other) or one != other
    shapes = PartialShape([one, 3]), PartialShape([other, 3])
    for name in ("relaxes", "refines", "compatible", "same_scheme"):
        expected = getattr(one, name)(other)
        assert getattr(shapes[0], name)(shapes[1]) == expected
        assert getattr(one, name)(b) == expected  # the pair itself


@given(INTERVALS, INTERVALS)
def test_arithmetic_covers_all_pairs_of_lengths(a, b):
    one, other = dimension(a), dimension(b)
    high_a, high_b = (inf if high == -1 else high for _, high in (a, b))

    def bounds(result: Dimension) -> tuple[float, float]:
        return result.min_length, inf if result.max_length == -1 else result.max_length

    assert bounds(one + other) == bounds(b + one) == (a[0] + b[0], high_a + high_b)
    assert bounds(one - other) == (max(0, a[0] - high_b), max(0, high_a - b[0]))
    high = inf if inf in (high_a, high_b) else high_a * high_b
    assert bounds(one * other) == bounds(b * one) == (a[0] * b[0], high)
    if common := lengths(a) & lengths(b):
        both = one & other
        assert lengths((both.min_length, both.max_length)) == common
    else:
        with pytest.raises(ArgumentError, match="expected a dimension of 0 or more"):
            one & other


@for_each_row(
    "arguments, bounds, symbol, text",
    [
        ((), (0, -1), None, "?"),
        ((None,), (0, -1), None, "?"),
        ((-1,), (0, -1), None, "?"),
        ((3,), (3, 3), None, "3"),
        ((np.int64(3),), (3, 3), None, "3"),
        ((0,), (0, 0), None, "0"),
        ((1, 5), (1, 5), None, "1..5"),
        ((0, 5), (0, 5), None, "..5"),
        ((-1, 5), (0, 5), None, "..5"),
        ((None, 5), (0, 5), None, "..5"),
        ((4, -1), (4, -1), None, "4.."),
        ((" 7 ",), (7, 7), None, "7"),
        (("?",), (0, -1), None, "?"),
        (("-1",), (0, -1), None, "?"),
        (("",), (0, -1), None, "?"),
        (("2..4",), (2, 4), None, "2..4"),
        (("2..",), (2, -1), None, "2.."),
        (("..4",), (0, 4), None, "..4"),
        (("batch",), (0, -1), "batch", "batch"),
        ((Dimension("batch"),), (0, -1), "batch", "batch"),
        ((Dimension(1, 5),), (1, 5), None, "1..5"),
    ],
)
def test_dimension_reads_each_form(arguments, bounds, symbol, text):
    one = Dimension(*arguments)
    assert (one.min_length, one.max_length) == bounds
    assert (one.get_min_length(), one.get_max_length()) == bounds
    assert (one.symbol, one.get_symbol(), one.has_symbol()) == (symbol, symbol, symbol is not None)
    assert (str(one), one.to_string(), repr(one)) == (text, text, f"<Dimension: {text}>")
    assert one.value == (bounds[0] if bounds[0] == bounds[1] else symbol)
    if bounds[0] == bounds[1]:
        assert (one.get_length(), int(one), len(one), bool(one)) == (
            *(bounds[0],) * 3,
            bounds[0] > 0,
        )
        assert (one == bounds[0], range(9)[one]) == (True, bounds[0])
    else:
        with pytest.raises(ArgumentError, match="expected a static dimension, got"):
            one.get_length()
    again: Dimension = pickle.loads(pickle.dumps(one))
    assert (again, again.symbol) == (one, symbol)


@pytest.mark.parametrize("value", [-2, (5, 4), "..", "4..2..", "1...", "a..b", (3, -2)])
def test_invalid_dimension_raises(value):
    with pytest.raises(ArgumentError, match="expected"):
        PartialShape([value])


@pytest.mark.parametrize("value", [1.5, (1, 2, 3), (1, "2"), (1,), object()])
def test_dimension_of_another_type_raises(value):
    with pytest.raises(ArgumentTypeError, match="expected a"):
        PartialShape([value])


def test_symbols_distinguish_dimensions():
    batch, other, any_length = Dimension("batch"), Dimension("other"), Dimension()
    assert batch == "batch"
    assert batch != "other"
    assert batch != other
    assert batch == any_length  # one without a symbol may have any
    assert any_length != "batch"
    assert (batch != 3, batch == 3.5, batch == object()) == (True, False, False)
    any_length.set_symbol("batch")
    assert any_length == "batch"
    assert Symbol("a") == "a"
    first, second = Symbol(), Symbol()
    assert first != second
    assert first.startswith("symbol_")
    assert Dimension.dynamic().compatible(7)


@for_each_row(
    "form, text, values",
    [
        ([1, 3], "[1,3]", (1, 3)),
        ((1, -1, None), "[1,?,?]", (1, None, None)),
        ([(1, 10), "n"], "[1..10,n]", (None, "n")),
        ("[1,3]", "[1,3]", (1, 3)),
        ("1, 3", "[1,3]", (1, 3)),
        (" [ ?, -1 ,2..3, ..4, 5.., n_1 ] ", "[?,?,2..3,..4,5..,n_1]", (None,) * 5 + ("n_1",)),
        ("[]", "[]", ()),
        ("", "[]", ()),
        ([], "[]", ()),
        (None, "[...]", None),
        ("...", "[...]", None),
        ("[...]", "[...]", None),
        (PartialShape([2, "n"]), "[2,n]", (2, "n")),
        (PartialShape(None), "[...]", None),
    ],
)
def test_shape_reads_each_form(form, text, values):
    shape = PartialShape(form)
    assert (str(shape), shape.to_string(), repr(shape)) == (text, text, f"<PartialShape: {text}>")
    assert shape.values == values
    assert shape.rank == (-1 if values is None else len(values))
    is_static = values is not None and all(isinstance(v, int) for v in values)
    assert (shape.is_static, shape.is_dynamic) == (is_static, not is_static)
    assert shape.all_non_negative
    again = copy.deepcopy(shape)
    assert again == shape
    assert again.values == values
    if is_static:
        assert shape.to_shape() == shape.get_shape() == values == shape
        assert shape == list(values)
    else:
        with pytest.raises(ArgumentError, match="expected a static shape"):
            shape.to_shape()


@pytest.mark.parametrize("text", ["[1;2]", "[1,]", "[1,,2]", "[1,a b]", "[3.5]", "[1,-2]"])
def test_invalid_text_of_a_shape_raises(text):
    with pytest.raises(ArgumentError, match="expected lengths"):
        PartialShape(text)


def test_shape_is_a_sequence_of_assignable_dimensions():
    shape = PartialShape([2, (1, 5), "n", -1])
    assert (len(shape), [str(d) for d in shape]) == (4, ["2", "1..5", "n", "?"])
    assert (shape[0], shape[-2], shape.get_dimension(1)) == (2, "n", Dimension(1, 5))
    assert str(shape[1:3]) == "[1..5,n]"
    assert shape.get_min_shape() == (2, 1, 0, 0)
    assert shape.get_max_shape() == (2, 5, 2**63 - 1, 2**63 - 1)
    original = PartialShape(shape)
    shape[-1] = (3, 4)
    shape[0] = 9
    assert (str(shape), str(original)) == ("[9,1..5,n,3..4]", "[2,1..5,n,?]")
    assert shape != original
    with pytest.raises(TypeError):
        hash(shape)
    with pytest.raises(IndexError):
        shape[4] = 1


def test_shapes_of_dynamic_rank():
    any_rank, fixed = PartialShape.dynamic(), PartialShape([2, 3])
    assert (str(PartialShape.dynamic(2)), str(any_rank)) == ("[?,?]", "[...]")
    assert str(PartialShape.dynamic(Dimension(1, 2))) == "[...]"
    assert (any_rank.relaxes(fixed), fixed.relaxes(any_rank)) == (True, False)
    assert (any_rank.refines(fixed), fixed.refines(any_rank)) == (False, True)
    assert any_rank.relaxes(any_rank)
    assert any_rank.compatible(fixed)
    assert fixed.compatible(any_rank)
    assert (any_rank.same_scheme(fixed), any_rank.same_scheme(any_rank)) == (False, True)
    for name in ("relaxes", "refines", "compatible", "same_scheme"):
        assert not getattr(fixed, name)(PartialShape([2, 3, 1]))
    assert (any_rank.get_min_shape(), any_rank.get_max_shape()) == ((), ())
    assert (any_rank == [], any_rank == fixed, any_rank == PartialShape(None)) == (
        False,
        False,
        True,
    )
    for use in (len, list, lambda s: s[0], lambda s: s.get_dimension(0)):
        with pytest.raises(ArgumentError, match="expected a shape of static rank"):
            use(any_rank)
    with pytest.raises(ArgumentTypeError, match="expected a list of dimensions"):
        PartialShape(3)  # type: ignore[arg-type]


def test_shape_of_a_tensor_equals_lists_and_partial_shapes():
    shape = Shape([1, 3])
    for equal in ((1, 3), [1, 3], PartialShape([1, 3]), Shape("[1,3]"), Shape("1,3")):
        assert shape == equal
        assert operator.ne(shape, equal) is False
    for other in ((1, 4), [1], PartialShape([1, None]), 3):
        assert shape != other
    assert (str(shape), shape.to_string()) == ("[1,3]", "[1,3]")
    assert str(Shape([1, None, "n"])) == "[1,?,n]"
    assert {shape: "found"}[(1, 3)] == "found"  # type: ignore[index]
    assert Shape() == ()
