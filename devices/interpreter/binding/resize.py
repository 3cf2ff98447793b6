"""Binding of Resize: where each axis is read, and how that weighs, is settled beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from devices.interpreter.binding.registry import Call, Scratch, binds
from devices.kernels.resize import along, channels_last, resized, rules_18, samples


@binds("Resize", 11, any_order=True)
@binds("Resize", 18, any_order=True)
def bind_resize(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, roi: np.ndarray | None = None,
    scales: np.ndarray | None = None, sizes: np.ndarray | None = None, **attributes: Any,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind the resampling of floats, axis by axis, where scales or sizes are constants."""
    if any(a is not None and a.flags.writeable for a in (scales, sizes)):
        return None
    if x.dtype not in (np.float32, np.float64) or not x.size or not y.size:
        return None
    axes, rules = rules_18(np, x, roi, scales, sizes, **attributes)
    if rules.coordinates == "tf_crop_and_resize":
        return None
    if x.ndim > 2 and not x.flags.c_contiguous:
        axes = channels_last(axes, x.ndim)
        x, y = np.moveaxis(x, 1, -1), np.moveaxis(y, 1, -1)
    if not x.flags.c_contiguous or not y.flags.c_contiguous:
        return None
    changed = resized(axes, rules)
    calls: list[Call] = [] if changed else [partial(np.copyto, y, x)]
    for i, a in enumerate(changed):
        index, weights = samples(np, a, rules)
        shape = (*x.shape[: a.axis], a.output, *x.shape[a.axis + 1 :])
        to = y if i == len(changed) - 1 else scratch(shape, x.dtype)
        calls.append(partial(x.take, index[0], a.axis, to, "clip"))
        if weights is not None:
            rows = [along(x, a.axis, w) for w in weights.astype(x.dtype)]
            calls.append(partial(np.multiply, to, rows[0], to))
            part = scratch(shape, x.dtype)
            for at, row in zip(index[1:], rows[1:], strict=True):
                calls.append(partial(x.take, at, a.axis, part, "clip"))
                calls.append(partial(np.multiply, part, row, part))
                calls.append(partial(np.add, to, part, to))
        x = to
    return calls
