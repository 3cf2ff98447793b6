"""Rows of batches, on axis 0 of each tensor: counting, joining and splitting."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from hetero.devices.errors import InferenceError
from hetero.devices.plugin.program import Value


def rows_of(inputs: Mapping[str, Value]) -> tuple[Hashable, int]:
    """Return the batching group of inputs, and the number of rows that each input has.

    Requests of equal groups can be joined. The group is None if the inputs differ in their number
    of rows, or one has no rows.
    """
    arrays = [v for v in inputs.values() if isinstance(v, np.ndarray) and v.ndim]
    counts = {array.shape[0] for array in arrays}
    if len(counts) != 1 or len(arrays) < len(inputs):
        return None, 0
    kinds = zip(inputs, arrays, strict=True)
    return frozenset((name, a.dtype, a.shape[1:]) for name, a in kinds), counts.pop()


def join_rows(requests: Sequence[Mapping[str, Value]]) -> Mapping[str, Value]:
    """Return the inputs of one request with the rows of all requests, in order."""
    return {name: np.concatenate([request[name] for request in requests]) for name in requests[0]}


def split_rows(outputs: Mapping[str, Value], counts: Sequence[int]) -> list[dict[str, Value]]:
    """Return the rows of each request as read-only views; copy them to retain them.

    Raises InferenceError: the rows of an output differ in number from those of the requests.
    """
    total = sum(counts)
    for name, value in outputs.items():
        if not isinstance(value, np.ndarray) or value.shape[:1] != (total,):
            raise InferenceError(
                f"output {name!r} of a batch has shape {list(np.shape(value))}; expected {total} "
                "rows on axis 0, as many as its requests have. Set AUTO_BATCH_SIZE to 0 for this "
                "model."
            )
    parts = []
    for start, end in pairwise(accumulate(counts, initial=0)):
        views = {name: value[start:end] for name, value in outputs.items()}
        for view in views.values():
            view.flags.writeable = False
        parts.append(views)
    return parts
