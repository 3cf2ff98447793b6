"""Operators that change a tensor's shape, against ONNX Runtime at each semantic version."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.devices.kernels import KERNELS
from tests.support.kernel_oracle import NARROW, check, ints, refuses, run_kernel, run_reference

RNG = np.random.default_rng(11)
X = RNG.standard_normal((2, 3, 4), dtype=np.float32)


@pytest.mark.parametrize("opset", [7, 13, 14, 21])
@pytest.mark.parametrize(
    ("shape_before", "sizes"),
    [
        ((2, 3, 4), (6, 4)),
        ((2, 3, 4), (0, -1)),
        ((2, 3, 4), (0, 0, 2, 2)),
        ((2, 3, 4), (-1,)),
        ((1,), ()),
        ((0, 3), (0, 3)),
        ((3, 0), (0, 0, 2)),
    ],
)
def test_reshape(opset, shape_before, sizes):
    check("Reshape", [np.ones(shape_before, np.float32), ints(*sizes)], {}, opset)


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


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_flatten(opset, axis):
    check("Flatten", [X], {"axis": axis}, opset)


def test_flatten_edges():
    check("Flatten", [X], {"axis": -1}, 11)
    check("Flatten", [np.array(3, np.float32)], {"axis": 0}, 11)
    check("Flatten", [np.ones((0, 3), np.float32)], {}, 13)
    refuses(IndexError, "axis 4 is out of range for rank 3", "Flatten", [X], {"axis": 4})


@pytest.mark.parametrize("opset", [7, 13, 21])
@pytest.mark.parametrize("perm", [None, (0, 2, 1), (2, 0, 1), (1, 2, 0)])
def test_transpose(opset, perm):
    check("Transpose", [X], {} if perm is None else {"perm": perm}, opset)


def test_transpose_of_narrow_types():
    for name in ("bfloat16", "float8_e4m3fn", "int4"):
        x = np.arange(6).reshape(2, 3).astype(NARROW[name])
        (y,) = run_kernel("Transpose", [x], {}, 21)
        assert y.dtype == x.dtype
        assert np.array_equal(y, x.T)


@pytest.mark.parametrize("perm", [(0, 1), (0, 0, 1), (0, 1, 3)])
def test_transpose_refuses(perm):
    refuses(ValueError, "perm: expected a permutation", "Transpose", [X], {"perm": perm})


SQUEEZES = [((1, 3, 1), None), ((1, 3, 1), (0,)), ((1, 3, 1), (2, 0)), ((1, 1), None)]


@pytest.mark.parametrize(("shape_before", "axes"), SQUEEZES)
@pytest.mark.parametrize("opset", [7, 11, 13, 21])
def test_squeeze(opset, shape_before, axes):
    x = np.ones(shape_before, np.float32)
    if opset < 13:
        check("Squeeze", [x], {} if axes is None else {"axes": axes}, opset)
    else:
        check("Squeeze", [x] if axes is None else [x, ints(*axes)], {}, opset)


@pytest.mark.parametrize("opset", [7, 11, 13, 21])
@pytest.mark.parametrize("axes", [(0,), (1, 3), (3, 0)])
def test_unsqueeze(opset, axes):
    x = X[0]
    if opset < 13:
        check("Unsqueeze", [x], {"axes": axes}, opset)
    else:
        check("Unsqueeze", [x, ints(*axes)], {}, opset)


def test_negative_axes():
    check("Squeeze", [np.ones((1, 3, 1), np.float32)], {"axes": (-1,)}, 11)
    check("Unsqueeze", [X, ints(-1, 0)], {}, 13)


def test_squeeze_and_unsqueeze_refuse():
    refuses(ValueError, "expected size 1", "Squeeze", [X, ints(1)])
    refuses(IndexError, "out of range", "Squeeze", [X, ints(3)])
    refuses(ValueError, "more than once", "Unsqueeze", [X, ints(0, -5)])


@pytest.mark.parametrize("opset", [8, 13])
@pytest.mark.parametrize(
    ("shape_before", "shape"),
    [((3, 1), (2, 1, 6)), ((3,), (2, 3)), ((2, 3), (1,)), ((), (2, 2)), ((1, 3), (0, 1))],
)
def test_expand(opset, shape_before, shape):
    check("Expand", [np.ones(shape_before, np.float32), ints(*shape)], {}, opset)


def test_expand_refuses():
    refuses(ValueError, "shapes that broadcast", "Expand", [X, ints(2, 2)])


@pytest.mark.parametrize("opset", [7, 13])
@pytest.mark.parametrize("repeats", [(1, 1, 1), (2, 1, 3), (0, 1, 1)])
def test_tile(opset, repeats):
    check("Tile", [X, ints(*repeats)], {}, opset)


def test_tile_refuses():
    refuses(ValueError, "repeats: expected 3", "Tile", [X, ints(2, 2)])


@pytest.mark.parametrize("opset", [7, 13, 19])
def test_shape_and_size(opset):
    check("Shape", [X], {}, opset)
    check("Size", [X], {}, opset)
    check("Shape", [np.array(1, np.float32)], {}, opset)
    check("Size", [np.ones((0, 2), np.float32)], {}, opset)


@pytest.mark.parametrize("start", [0, 1, -1, -7, 7])
@pytest.mark.parametrize("end", [None, 2, -1, -7, 7])
def test_shape_part(start, end):
    attributes = {"start": start} | ({} if end is None else {"end": end})
    check("Shape", [X], attributes, 15)


BLOCKS = np.arange(2 * 8 * 4 * 6, dtype=np.float32).reshape(2, 8, 4, 6)


@pytest.mark.parametrize("opset", [7, 11, 13])
def test_depth_to_space(opset):
    check("DepthToSpace", [BLOCKS], {"blocksize": 2}, opset)
    if opset >= 11:
        check("DepthToSpace", [BLOCKS], {"blocksize": 2, "mode": "CRD"}, opset)


@pytest.mark.parametrize("opset", [7, 13])
def test_space_to_depth(opset):
    check("SpaceToDepth", [BLOCKS], {"blocksize": 2}, opset)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth_modes(mode):
    attributes = {"blocksize": 2, "mode": mode}
    (y,) = check("SpaceToDepth", [BLOCKS], attributes, 28, oracle=run_reference)
    (back,) = run_kernel("DepthToSpace", [y], attributes, 28)
    assert np.array_equal(back, BLOCKS)


def test_blocks_refuse():
    refuses(ValueError, "divisible by 4", "SpaceToDepth", [BLOCKS], {"blocksize": 4})
    refuses(ValueError, "multiple of 9", "DepthToSpace", [BLOCKS], {"blocksize": 3})
