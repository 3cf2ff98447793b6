"""Edges of Resize and Upsample; the table of operators has their cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.support.kernel_oracle import check, refuses, run_kernel, run_reference
from tests.support.rows import for_each_row

RNG = np.random.default_rng(6)
NONE = np.zeros(0, np.float32)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def scales(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("factors", [(1, 1, 0.6, 0.4), (1, 1, 0.5, 2.0)])
def test_antialias(mode, factors):
    inputs = [floats(1, 1, 10, 9), NONE, scales(*factors)]
    attributes = {"mode": mode, "antialias": 1}
    check("Resize", inputs, attributes, 18, 1e-3, 1e-4, oracle=run_reference)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_keep_aspect_ratio(policy, mode):
    attributes = {"keep_aspect_ratio_policy": policy, "axes": [2, 3], "mode": mode}
    x, sizes = floats(1, 2, 4, 6), np.array([7, 8], np.int64)
    ours = check("Resize", [x, None, None, sizes], attributes, 18, 1e-4, 1e-5, oracle=run_reference)
    # Axes may count from the end, in any order.
    backwards = attributes | {"axes": [-1, -2]}
    check("Resize", [x, None, None, sizes[::-1]], backwards, 18, expected=ours)


def test_half_pixel_symmetric():
    attributes = {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}
    inputs = [floats(1, 1, 1, 7), None, scales(1, 1, 1, 1.3)]
    check("Resize", inputs, attributes, 19, 1e-4, 1e-5, oracle=run_reference)


def test_resize_by_a_third_reads_whole_pixels():
    x = np.arange(27, dtype=np.float32).reshape(1, 1, 1, 27)
    attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    expected = x[..., ::3]
    check("Resize", [x, NONE, scales(1, 1, 1, 1 / 3)], attributes, 13, expected=[expected])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.float64, np.float16])
def test_nearest_of_other_types_copies(dtype):
    x = np.arange(12).reshape(1, 1, 3, 4).astype(dtype)
    expected = x.repeat(2, axis=2).repeat(2, axis=3)
    check("Resize", [x, NONE, scales(1, 1, 2, 2)], {}, 13, expected=[expected])


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([NONE, NONE], {}, "exactly one"),
        ([NONE, scales(1, 1, 2, 2), np.array([1, 1, 4, 4])], {}, "exactly one"),
        ([NONE, scales(1, 2, 2)], {}, "entries"),
        ([NONE, scales(1, 1, 0, 2)], {}, "positive"),
        ([NONE, scales(2)], {"axes": [7]}, "axis 7"),
        (
            [NONE, scales(1, 1, 2, 2)],
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            "roi",
        ),
    ],
)
def test_refuses(inputs, attributes, message):
    error = IndexError if message.startswith("axis ") else ValueError  # as numpy's own
    refuses(error, message, "Resize", [floats(1, 1, 2, 2), *inputs], attributes, 19)


def test_upsample_refuses_to_shrink():
    refuses(ValueError, "at least 1", "Upsample", [floats(1, 1, 2, 2), scales(1, 1, 0.5, 1)], {}, 9)


@for_each_row("antialias", [0, 1])
@for_each_row("mode", ["linear", "cubic"])
@for_each_row("dtype", [np.uint8, np.int8, np.int32])
def test_resize_rounds_and_clips_integers(mode, antialias, dtype):
    limits = np.iinfo(np.int8 if dtype is np.int32 else dtype)
    x = RNG.choice([limits.min, limits.max], (1, 1, 6, 7)).astype(dtype)
    inputs, attributes = [NONE, scales(1, 1, 1.5, 0.7)], {"mode": mode, "antialias": antialias}
    (exact,) = run_reference("Resize", [x.astype(np.float64), *inputs], attributes, 19)
    (actual,) = run_kernel("Resize", [x, *inputs], attributes, 19)
    if dtype is not np.int32:
        exact = np.clip(exact, limits.min, limits.max)
    assert actual.dtype == dtype
    assert np.abs(actual - exact).max() < 0.501


@pytest.mark.parametrize("nearest", ["round_prefer_ceil", "round_prefer_floor", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel"])
def test_sizes_say_the_scale_exactly(coordinates, nearest):
    attributes = {"coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
    for size, output in itertools.product((1, 2, 3, 5, 7, 8, 11, 14, 19), repeat=2):
        # 2 * (coordinate in the input), as a fraction of `output`.
        twice = [size * (2 * i + (coordinates != "asymmetric")) for i in range(output)]
        twice = [t - output * (coordinates != "asymmetric") for t in twice]
        place = {
            "floor": lambda t, n=output: t // (2 * n),
            "ceil": lambda t, n=output: -(-t // (2 * n)),
            "round_prefer_ceil": lambda t, n=output: (t + n) // (2 * n),
            "round_prefer_floor": lambda t, n=output: -(-(t - n) // (2 * n)),
        }[nearest]
        want = np.clip([place(t) for t in twice], 0, size - 1).astype(np.float32)
        x = np.arange(size, dtype=np.float32)
        (actual,) = run_kernel("Resize", [x, None, None, np.array([output])], attributes, 19)
        np.testing.assert_array_equal(actual, want, err_msg=f"{size} to {output}")
