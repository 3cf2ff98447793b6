"""NonMaxSuppression against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import check, refuses, run_kernel
from tests.support.rows import for_each_row

RNG = np.random.default_rng(10)


def boxes(batches, count):
    corner = RNG.random((batches, count, 2)).astype(np.float32)
    size = RNG.random((batches, count, 2)).astype(np.float32) * 0.5
    return np.concatenate((corner, corner + size), axis=2)


def arguments(limit=20, iou=0.4, score=0.2):
    return [np.array([limit]), np.array([iou], np.float32), np.array([score], np.float32)]


@for_each_row("iou", [0.0, 0.3, 0.7, 1.0])
@for_each_row("limit", [0, 3, 100])
@for_each_row("opset", [10, 11])
def test_non_max_suppression(iou, limit, opset):
    scores = RNG.random((2, 3, 30)).astype(np.float32)
    check("NonMaxSuppression", [boxes(2, 30), scores, *arguments(limit, iou)], {}, opset)


def test_corners_in_any_order():
    x = boxes(1, 20)[:, :, [2, 1, 0, 3]]
    scores = RNG.random((1, 1, 20)).astype(np.float32)
    check("NonMaxSuppression", [x, scores, *arguments()], {}, 11)


def test_centre_format():
    scores = RNG.random((1, 2, 20)).astype(np.float32)
    check("NonMaxSuppression", [boxes(1, 20), scores, *arguments()], {"center_point_box": 1}, 11)


def test_defaults_choose_nothing():
    scores = RNG.random((1, 1, 4)).astype(np.float32)
    check("NonMaxSuppression", [boxes(1, 4), scores], {}, 11)


def test_non_max_suppression_of_equal_scores_keeps_the_order():
    scores = np.full((1, 1, 6), 0.5, np.float32)
    check("NonMaxSuppression", [boxes(1, 6), scores, *arguments(iou=1.0)], {}, 11)


def test_no_score_threshold_and_no_boxes():
    check(
        "NonMaxSuppression", [boxes(1, 5), -np.ones((1, 1, 5), np.float32), np.array([9])], {}, 11
    )
    empty = np.zeros((1, 0, 4), np.float32)
    check(
        "NonMaxSuppression",
        [empty, np.zeros((1, 2, 0), np.float32), *arguments()],
        {},
        11,
        expected=[np.zeros((0, 3), np.int64)],
    )


def test_refuses():
    with pytest.raises(ValueError, match="differ"):
        run_kernel("NonMaxSuppression", [boxes(1, 5), np.zeros((1, 1, 4), np.float32)], {}, 11)
    inputs = [boxes(1, 5), np.zeros((1, 1, 5), np.float32), *arguments(iou=1.5)]
    refuses(ValueError, "iou_threshold", "NonMaxSuppression", inputs, {}, 11)


def test_non_max_suppression_of_boxes_with_nan():
    boxes = np.array([[0, 0, 1, 1], [0, np.nan, 1, 1], [0, 0, 1, 0.9]], np.float32)[None]
    inputs = [
        boxes,
        np.array([[[3, 2, 1]]], np.float32),
        np.array([3]),
        np.array([0.5], np.float32),
    ]
    check("NonMaxSuppression", inputs, {}, 11)
