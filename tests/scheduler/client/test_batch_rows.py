"""Rows of batches: groups, joining and splitting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import InferenceError
from hetero.scheduler.client.batch_rows import join_rows, rows_of, split_rows


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    "other",
    [
        {"a": array(2, 4), "b": array(2)},  # another shape
        {"a": array(2, 3), "b": array(2, dtype=np.int64)},  # another type
        {"a": array(2, 3), "c": array(2)},  # another name
        {"a": array(2, 3)},
    ],
)
def test_group_depends_on_each_property_except_rows(other):
    group, rows = rows_of({"a": array(2, 3), "b": array(2)})
    assert rows == 2
    assert rows_of({"b": array(5), "a": array(5, 3)}) == (group, 5)
    assert rows_of(other)[0] not in (group, None)


@pytest.mark.parametrize(
    "inputs",
    [
        {"a": array(2, 3), "b": array(3)},
        {"a": array(2), "b": array()},
        {"a": array(2), "b": [array(2)]},
        {"a": array()},
        {},
    ],
)
def test_inputs_without_common_rows_have_no_group(inputs):
    assert rows_of(inputs) == (None, 0)


def test_joined_rows_are_split_in_order():
    counts = (1, 3, 2)
    parts = [{"a": np.arange(n)[:, None] + 10 * n, "b": np.full(n, n)} for n in counts]
    joined = join_rows(parts)
    assert {name: value.tolist() for name, value in joined.items()} == {
        "a": [[10], [30], [31], [32], [20], [21]],
        "b": [1, 3, 3, 3, 2, 2],
    }
    split = split_rows(joined, counts)
    for own, part in zip(split, parts, strict=True):
        assert {n: v.tolist() for n, v in own.items()} == {n: v.tolist() for n, v in part.items()}
        assert not any(value.flags.writeable for value in own.values())
        assert np.shares_memory(own["a"], joined["a"])


@pytest.mark.parametrize("wrong", [array(5), array(7), array(), array(1, 6), [array(6)]])
def test_output_with_other_rows_raises(wrong):
    with pytest.raises(InferenceError, match=r"output 'b' of a batch has shape .*expected 6 rows"):
        split_rows({"a": array(6), "b": wrong}, (1, 3, 2))
