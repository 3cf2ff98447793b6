"""Object detection: NonMaxSuppression."""

from __future__ import annotations

from hetero.devices.kernels.element_types import Array, Xp
from hetero.devices.kernels.registry import ALL, op


def _to_corners(xp: Xp, boxes: Array, center_point_box: int) -> tuple[Array, Array]:
    """Return each box's least and greatest corner, (N, 2) each."""
    if center_point_box:
        centre, half = boxes[:, :2], boxes[:, 2:] / 2
        return centre - half, centre + half
    a, b = boxes[:, :2], boxes[:, 2:]
    return xp.minimum(a, b), xp.maximum(a, b)


def _suppress(
    xp: Xp, low: Array, high: Array, scores: Array, limit: int, iou: float, floor: float | None
) -> list[int]:
    """Return the selected boxes, best first; each overlaps no better one by more than `iou`."""
    order = xp.argsort(-scores, kind="stable")
    if floor is not None:
        order = order[scores[order] > floor]
    # Boxes are sorted once, with one coordinate per row: the worse boxes are the end of each row.
    low, high = xp.ascontiguousarray(low[order].T), xp.ascontiguousarray(high[order].T)
    area = (high[0] - low[0]) * (high[1] - low[1])
    alive = xp.ones(order.shape, dtype=bool)
    selection: list[int] = []
    for best in range(order.size):
        if len(selection) >= limit:
            break
        if not alive[best]:
            continue
        selection.append(int(order[best]))
        rest = slice(best + 1, None)
        side = xp.minimum(high[:, rest], high[:, best, None])
        side -= xp.maximum(low[:, rest], low[:, best, None])
        xp.maximum(side, 0, out=side)
        overlap = side[0] * side[1]
        union = area[rest] + area[best] - overlap
        # A box with NaN overlaps no other.
        alive[rest] &= ~((overlap > iou * union) & (overlap > 0))
    return selection


@op("NonMaxSuppression", since=10, host=(ALL,))
def non_max_suppression_10(
    xp: Xp,
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    *,
    center_point_box: int = 0,
) -> Array:
    """Return the selected boxes as rows (batch, class, box), best first within a class."""
    if boxes.ndim != 3 or boxes.shape[2] != 4 or scores.ndim != 3:
        raise ValueError(
            "expected boxes of shape (B, N, 4) and scores of shape (B, classes, N), got "
            f"{boxes.shape} and {scores.shape}"
        )
    if boxes.shape[0] != scores.shape[0] or boxes.shape[1] != scores.shape[2]:
        raise ValueError(f"boxes {boxes.shape} and scores {scores.shape} differ in batch or number")
    limit = _scalar(max_output_boxes_per_class)
    iou, floor = _scalar(iou_threshold) or 0.0, _scalar(score_threshold)
    if not 0 <= iou <= 1:
        raise ValueError(f"iou_threshold: expected a number from 0 to 1, got {iou}")
    rows = []
    for batch in range(boxes.shape[0]):
        low, high = _to_corners(xp, boxes[batch], center_point_box)
        for category in range(scores.shape[1]):
            boxes_of_class = _suppress(
                xp, low, high, scores[batch, category], int(limit or 0), iou, floor
            )
            rows += [(batch, category, box) for box in boxes_of_class]
    return xp.asarray(rows, dtype=xp.int64).reshape(-1, 3)


def _scalar(value: Array | None) -> float | None:
    """Return an optional scalar, which some exporters write as an array of one element."""
    return None if value is None else float(value.reshape(()))
