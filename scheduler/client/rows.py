"""The rows of requests, on axis 0 of each tensor: counted, joined into a batch, split again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from hetero.devices.errors import InferenceError
from hetero.devices.plugin.program import Value


def rows_of(inputs: Mapping[str, Value]) -> tuple[Hashable, int]:
    """Return what is equal for requests whose rows can be joined, and how many rows each input has.

    None, where they differ or one has no rows.
    """
    arrays = [v for v in inputs.values() if isinstance(v, np.ndarray) and v.ndim]
    counts = {array.shape[0] for array in arrays}
    if len(counts) != 1 or len(arrays) < len(inputs):
        return None, 0
    kinds = zip(inputs, arrays, strict=True)
    return frozenset((name, a.dtype, a.shape[1:]) for name, a in kinds), counts.pop()


def join_rows(requests: Sequence[Mapping[str, Value]]) -> Mapping[str, Value]:
    """Return one request with the rows of all, in order."""
    return {name: np.concatenate([request[name] for request in requests]) for name in requests[0]}


def split_rows(outputs: Mapping[str, Value], counts: Sequence[int]) -> list[dict[str, Value]]:
    """Return each request's rows, as read-only views: whoever keeps them copies them.

    Raises InferenceError: an output has another number of rows than the requests together.
    """
    total = sum(counts)
    for name, value in outputs.items():
        if not isinstance(value, np.ndarray) or value.shape[:1] != (total,):
            raise InferenceError(
                f"output {name!r} of a batch has shape {list(np.shape(value))}; wanted {total} "
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
