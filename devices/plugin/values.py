"""What is asked of values: tensors, sequences, maps and what is kept in a device's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def nbytes_of(value: Any) -> int:
    """Return about how many bytes a value's contents take; strings count their characters."""
    # What is asked most often, first: to ask for an abstract class takes as long as the rest.
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return sum(len(item) if isinstance(item, str | bytes) else 8 for item in value.flat)
    nbytes: int | None = getattr(value, "nbytes", None)  # of arrays and remote tensors
    if nbytes is not None:
        return nbytes
    if type(value) is dict:
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        if not isinstance(value, Mapping):
            return 0 if value is None else 8
        value = value.values()
    return sum(map(nbytes_of, value))
