"""Operators that change a tensor's shape, against ONNX Runtime at each semantic version."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.devices.kernels import KERNELS
from tests.support.kernel_oracle import NARROW, check, ints, refuses, run_kernel, run_reference

RNG = np.random.default_rng(11)
X = RNG.standard_normal((2, 3, 4), dtype=np.float32)


def test_reshape_allowzero():
    empty = np.ones((0, 3), np.float32)
    check("Reshape", [empty, ints(3, 0)], {"allowzero": 1}, 14)
    check("Reshape", [empty, ints(0, 3, 7)], {"allowzero": 1}, 14)
    refuses(ValueError, "got both", "Reshape", [empty, ints(0, -1)], {"allowzero": 1}, 14)


def test_reshape_infers_a_size_with_an_empty_copied_axis():
    (y,) = run_kernel("Reshape", [np.ones((0, 12, 64), np.float32), ints(0, -1)])
    assert y.shape == (0, 768)


@pytest.mark.parametrize(
    "sizes", [(5, -1), (7,), (-1, -1), (-2, 3), (2, 3, 4, 0), (0, 0, 0, 0)], ids=str
)
def test_reshape_refuses(sizes):
    refuses(ValueError, "shape", "Reshape", [X, ints(*sizes)])


def test_reshape_is_a_view():
    kernel_input = X.copy()
    kernel = KERNELS.find("", "Reshape", 21)
    assert kernel is not None
    assert np.shares_memory(kernel.function(np, kernel_input, ints(6, 4)), kernel_input)


def test_flatten_edges():
    check("Flatten", [X], {"axis": -1}, 11)
    check("Flatten", [np.array(3, np.float32)], {"axis": 0}, 11)
    check("Flatten", [np.ones((0, 3), np.float32)], {}, 13)
    refuses(IndexError, "axis 4 is out of range for rank 3", "Flatten", [X], {"axis": 4})


def test_transpose_of_narrow_types():
    for name in ("bfloat16", "float8_e4m3fn", "int4"):
        x = np.arange(6).reshape(2, 3).astype(NARROW[name])
        (y,) = run_kernel("Transpose", [x], {}, 21)
        assert y.dtype == x.dtype
        assert np.array_equal(y, x.T)


@pytest.mark.parametrize("perm", [(0, 1), (0, 0, 1), (0, 1, 3)])
def test_transpose_refuses(perm):
    refuses(ValueError, "perm: expected a permutation", "Transpose", [X], {"perm": perm})


def test_negative_axes():
    check("Squeeze", [np.ones((1, 3, 1), np.float32)], {"axes": (-1,)}, 11)
    check("Unsqueeze", [X, ints(-1, 0)], {}, 13)


def test_squeeze_and_unsqueeze_refuse():
    refuses(ValueError, "expected size 1", "Squeeze", [X, ints(1)])
    refuses(IndexError, "out of range", "Squeeze", [X, ints(3)])
    refuses(ValueError, "more than once", "Unsqueeze", [X, ints(0, -5)])


def test_expand_refuses():
    refuses(ValueError, "shapes that broadcast", "Expand", [X, ints(2, 2)])


def test_tile_refuses():
    refuses(ValueError, "repeats: expected 3", "Tile", [X, ints(2, 2)])


BLOCKS = np.arange(2 * 8 * 4 * 6, dtype=np.float32).reshape(2, 8, 4, 6)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth_modes(mode):
    attributes = {"blocksize": 2, "mode": mode}
    (y,) = check("SpaceToDepth", [BLOCKS], attributes, 28, oracle=run_reference)
    (back,) = run_kernel("DepthToSpace", [y], attributes, 28)
    assert np.array_equal(back, BLOCKS)


def test_blocks_refuse():
    refuses(ValueError, "divisible by 4", "SpaceToDepth", [BLOCKS], {"blocksize": 4})
    refuses(ValueError, "multiple of 9", "DepthToSpace", [BLOCKS], {"blocksize": 3})
