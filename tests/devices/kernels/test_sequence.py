"""Sequences and optionals, against ONNX Runtime and ONNX's evaluator."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import check, refuses, run_kernel, run_reference

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
THREE = [X, X[:, :1], X[:, :0]]


def scalar(value):
    return np.array(value, dtype=np.int64)


def test_sequences_are_made_and_counted():
    assert run_kernel("SequenceEmpty", [], {"dtype": 7}) == [[]]
    (sequence,) = run_kernel("SequenceConstruct", [X, X[0]])
    assert [t.shape for t in sequence] == [(2, 3, 4), (3, 4)]
    check("SequenceLength", [THREE], {}, 11)
    refuses(TypeError, "one element type", "SequenceConstruct", [X, X.astype(np.int64)])


@pytest.mark.parametrize("position", [0, 2, -1, -3])
def test_sequence_at(position):
    check("SequenceAt", [THREE, scalar(position)], {}, 11)


@pytest.mark.parametrize("position", [None, 0, 1, 3, -1, -3])
def test_sequence_insert(position):
    inputs = [THREE, X[:1]] + ([] if position is None else [scalar(position)])
    check("SequenceInsert", inputs, {}, 11)


@pytest.mark.parametrize("position", [None, 0, 2, -1, -3])
def test_sequence_erase(position):
    inputs = [THREE] + ([] if position is None else [scalar(position)])
    check("SequenceErase", inputs, {}, 11)


@pytest.mark.parametrize(
    ("op_type", "inputs"),
    [
        ("SequenceAt", [THREE, scalar(3)]),
        ("SequenceAt", [THREE, scalar(-4)]),
        ("SequenceInsert", [THREE, X, scalar(4)]),
        ("SequenceErase", [[]]),
    ],
)
def test_positions_out_of_range(op_type, inputs):
    refuses(IndexError, "out of range for a sequence of", op_type, inputs)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_split_into_ones(axis, keepdims):
    check("SplitToSequence", [X], {"axis": axis, "keepdims": keepdims}, 11)


@pytest.mark.parametrize("split", [scalar(2), scalar(3), scalar(9), np.array([1, 0, 3])], ids=str)
def test_split_to_sequence(split):
    parts = check("SplitToSequence", [X, split], {"axis": 2}, 11)
    # With sizes, the attribute that drops the axis has no effect.
    attributes = {"axis": 2, "keepdims": 0}
    check("SplitToSequence", [X, split], attributes, 11, expected=parts)


def test_split_to_sequence_refuses():
    refuses(ValueError, "sum to 4", "SplitToSequence", [X, np.array([1, 1])], {"axis": 2})
    refuses(ValueError, "split: expected a positive", "SplitToSequence", [X, scalar(0)])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("new_axis", [0, 1])
def test_concat_from_sequence(axis, new_axis):
    check("ConcatFromSequence", [[X, X + 1]], {"axis": axis, "new_axis": new_axis}, 11)


def test_concat_from_nothing():
    refuses(ValueError, "an empty one", "ConcatFromSequence", [[]], {"axis": 0})


@pytest.mark.parametrize("opset", [15, 18, 28])
def test_optionals(opset):
    assert run_kernel("Optional", [], {"type": object()}, opset) == [None]
    (value,) = run_kernel("Optional", [X], {}, opset)
    check("OptionalHasElement", [value], {}, opset, expected=[np.array(True)])
    check("OptionalHasElement", [None], {}, opset, expected=[np.array(False)])
    check("OptionalGetElement", [value], {}, opset, expected=[X])
    refuses(ValueError, "optional with a value", "OptionalGetElement", [None], {}, opset)


def test_no_input_is_no_element():
    check("OptionalHasElement", [], {}, 18, oracle=run_reference)
