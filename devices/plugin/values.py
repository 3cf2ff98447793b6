"""What is asked of values: tensors, sequences, maps and what is kept in a device's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from devices.plugin.remote import RemoteTensor


def nbytes_of(value: Any) -> int:
    """Return about how many bytes a value's contents take; strings count their characters."""
    # What is asked most often, first: to ask for an abstract class takes as long as the rest.
    if type(value) is dict:
        value = value.values()
    elif isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return sum(len(item) if isinstance(item, str | bytes) else 8 for item in value.flat)
        return value.nbytes
    elif not isinstance(value, (list, tuple)):
        if isinstance(value, Mapping):
            value = value.values()
        elif isinstance(value, RemoteTensor):
            return value.nbytes
        else:
            return 0 if value is None else 8
    total = 0
    for item in value:
        if type(item) is np.ndarray and not item.dtype.hasobject:
            total += item.nbytes
        else:
            total += nbytes_of(item)
    return total
