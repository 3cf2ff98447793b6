"""Crops, columns, affine grids and regions of interest, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.reader import read_model
from tests.support.kernel_oracle import (
    check,
    ints,
    one_node_model,
    refuses,
    run_kernel,
    run_reference,
)
from tests.support.rows import for_each_row

RNG = np.random.default_rng(15)
X = RNG.standard_normal((2, 3, 7, 9), dtype=np.float32)


def refused(op_type, inputs, **attributes):
    """Return the code of the CPU device's refusal, or None."""
    model = read_model(one_node_model(op_type, inputs, attributes, 22))
    (*codes,) = (
        r.code for by in CPUPlugin().query_model(model).unsupported.values() for r in by.values()
    )
    return codes[0] if codes else None


@pytest.mark.parametrize("shape", [(2, 3, 7, 9), (1, 2, 3, 4), (3, 5, 10, 12), (2, 4, 4, 14)])
def test_center_crop_pad(shape):
    check("CenterCropPad", [X, ints(*shape)], {}, 18)


def test_center_crop_pad_axes():
    check("CenterCropPad", [X, ints(10, 4)], {"axes": (-2, 3)}, 18)
    check("CenterCropPad", [X, ints(4)], {"axes": (1,)}, 18)
    refuses(ValueError, "shape: expected 1 sizes", "CenterCropPad", [X, ints(4, 4)], {"axes": (1,)})


COLUMNS = [
    ((5, 5), (2, 3), {}),
    ((6, 7), (2, 2), {"strides": (2, 1)}),
    ((5, 5), (3, 2), {"pads": (1, 0, 2, 1)}),
    ((7, 7), (2, 3), {"dilations": (2, 2), "pads": (0, 1, 0, 1), "strides": (2, 2)}),
    ((9,), (3,), {"strides": (2,)}),
    ((3, 4, 5), (2, 2, 2), {}),
]


@pytest.mark.parametrize(("image", "block", "attributes"), COLUMNS, ids=str)
def test_col2im(image, block, attributes):
    rank = len(image)
    pads = attributes.get("pads", (0,) * 2 * rank)
    places = [
        (
            image[i]
            + pads[i]
            + pads[i + rank]
            - attributes.get("dilations", (1,) * rank)[i] * (block[i] - 1)
            - 1
        )
        // attributes.get("strides", (1,) * rank)[i]
        + 1
        for i in range(rank)
    ]
    shape = (2, 3 * int(np.prod(block)), int(np.prod(places)))
    x = RNG.standard_normal(shape, dtype=np.float32)
    check("Col2Im", [x, ints(*image), ints(*block)], attributes, 18)


def test_col2im_refuses():
    with pytest.raises(ValueError, match="columns: expected shape"):
        run_kernel("Col2Im", [np.ones((1, 4, 5), np.float32), ints(3, 3), ints(2, 2)])
    with pytest.raises(ValueError, match="columns: expected shape"):
        run_kernel("Col2Im", [np.ones((1, 5, 4), np.float32), ints(3, 3), ints(2, 2)])


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("dims", [(4, 5), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_affine_grid(dims, align_corners, dtype):
    rank = len(dims)
    theta = RNG.standard_normal((2, rank, rank + 1)).astype(dtype)
    attributes = {"align_corners": align_corners}
    check("AffineGrid", [theta, ints(2, 3, *dims)], attributes, 20, atol=1e-5)


def test_affine_grid_refuses():
    with pytest.raises(ValueError, match="theta: expected shape"):
        run_kernel("AffineGrid", [np.ones((2, 2, 3), np.float32), ints(1, 1, 4, 4)])


# x1, y1, x2, y2: inside, over the edge, outside, smaller than a pixel, reversed.
ROIS = np.array(
    [
        [1.3, 0.6, 6.1, 5.2],
        [-3, -2, 5, 4],
        [6, 5, 30, 20],
        [50, 50, 60, 60],
        [2.2, 2.2, 2.5, 2.4],
        [5, 4, 2, 1],
    ],
    np.float32,
)
ENTRIES = ints(0, 1, 1, 0, 1, 0)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("sampling_ratio", [0, 2])
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize(
    ("opset", "coordinates"), [(10, None), (16, "half_pixel"), (16, "output_half_pixel")]
)
def test_roi_align(opset, coordinates, mode, sampling_ratio, scale):
    attributes = {
        "mode": mode,
        "sampling_ratio": sampling_ratio,
        "spatial_scale": scale,
        "output_height": 3,
        "output_width": 2,
    }
    if coordinates:
        attributes["coordinate_transformation_mode"] = coordinates
    check("RoiAlign", [X, ROIS, ENTRIES], attributes, opset, atol=1e-5)


def test_roi_align_edges():
    check("RoiAlign", [X, ROIS[:0], ENTRIES[:0]], {}, 16)
    refuses(IndexError, "batch indices from 0 to 1", "RoiAlign", [X, ROIS[:1], ints(2)])
    refuses(ValueError, "rois of shape", "RoiAlign", [X, ROIS, ENTRIES[:2]])


@pytest.mark.parametrize("scale", [1.0, 0.4])
@pytest.mark.parametrize("pooled", [(1, 1), (3, 2), (5, 5)])
def test_max_roi_pool(pooled, scale):
    rois = np.concatenate([ENTRIES[:, None].astype(np.float32), ROIS], axis=1)
    attributes = {"pooled_shape": pooled, "spatial_scale": scale}
    check("MaxRoiPool", [X, rois], attributes, 7)


def test_max_roi_pool_refuses():
    with pytest.raises(IndexError, match="batch indices from 0 to 1"):
        run_kernel("MaxRoiPool", [X, np.full((1, 5), 2, np.float32)], {"pooled_shape": (1, 1)})


GRID = (3 * RNG.random((2, 4, 5, 2), dtype=np.float32) - 1.5).astype(np.float32)
GRID[0, 0, 0] = [1, 1]
GRID[0, 0, 1] = [-1, -1]
GRID[0, 0, 2] = [9.5, -12]
PADDINGS = ["zeros", "border", "reflection"]


@pytest.mark.parametrize("padding_mode", PADDINGS)
@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode, padding_mode, align_corners):
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    check("GridSample", [X, GRID], attributes, 16, 1e-4, 1e-5)
    attributes["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    check("GridSample", [X, GRID], attributes, 20, 1e-4, 1e-5)


@for_each_row("padding_mode", PADDINGS)
@for_each_row("align_corners", [0, 1])
@for_each_row("mode", ["linear", "nearest"])
def test_grid_sample_volumes(mode, padding_mode, align_corners):
    x = RNG.standard_normal((2, 2, 3, 4, 5), dtype=np.float32)
    grid = (3 * RNG.random((2, 2, 3, 2, 3), dtype=np.float32) - 1.5).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    check("GridSample", [x, grid], attributes, 20, 1e-4, 1e-5)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample_lines(mode):
    x, grid = X[:, :, 0], GRID[:, :, 0, :1]
    check("GridSample", [x, grid], {"mode": mode}, 22, 1e-4, 1e-5, oracle=run_reference)


def test_grid_sample_refuses():
    refuses(ValueError, "grid: expected shape", "GridSample", [X, GRID[:1]])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64])
@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_grid_sample_of_integers_rounds_and_stays_in_range(dtype, mode):
    limits = np.iinfo(np.int8 if dtype is np.int64 else dtype)
    x = RNG.integers(limits.min, limits.max, (2, 3, 7, 9), endpoint=True).astype(dtype)
    (exact,) = run_reference("GridSample", [x.astype(np.float64), GRID], {"mode": mode}, 22)
    if dtype is not np.int64:
        exact = np.clip(exact, limits.min, limits.max)
    (actual,) = run_kernel("GridSample", [x, GRID], {"mode": mode}, 22)
    assert actual.dtype == dtype
    assert np.abs(actual - exact).max() < 0.501


@pytest.mark.parametrize("dtype", [object, bool])
def test_grid_sample_of_types_without_interpolation(dtype):
    x = np.array(["a", "", "b", "c", "d", "e"]).reshape(1, 1, 2, 3).astype(dtype)
    grid = np.array([[-1, -1], [1, 1], [0, 1], [5, 5]], np.float32).reshape(1, 1, 4, 2)
    attributes = {"mode": "nearest", "align_corners": 1}
    expected = np.array(["a", "e", "d", ""]).reshape(1, 1, 1, 4).astype(dtype)
    check("GridSample", [x, grid], attributes, 22, expected=[expected])
    assert not refused("GridSample", [x, grid], **attributes)
    assert refused("GridSample", [x, grid], mode="linear") == "dtype"
    refuses(TypeError, "between two pixels", "GridSample", [x, grid], {"mode": "linear"}, 22)


def test_center_crop_pad_and_col2im_of_strings():
    x = np.array([["a", "b"]], object)
    check("CenterCropPad", [x, ints(2, 2)], {}, 18, expected=[np.array([["a", "b"], ["", ""]])])
    assert refused("Col2Im", [x[None], ints(1, 2), ints(1, 1)]) == "dtype"
    refuses(TypeError, "no sum", "Col2Im", [x[None], ints(1, 2), ints(1, 1)])
