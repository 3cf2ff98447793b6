"""Products of 8-bit integers: numba's, where it is installed and the processor has them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any, Final

#: The processor's features that the code of `devices.cpu.fast.vnni` is made of.
_FEATURES: Final = ("avx512vnni", "avx512bw", "avx512vl")


@cache
def integers_name() -> str:
    """Return what computes products of integers, and its version; the empty string if nothing."""
    try:
        name = f"numba {version('numba')}"
        from llvmlite.binding import get_host_cpu_features
    except ImportError:  # neither is there, or only a part
        return ""
    features = get_host_cpu_features()
    return name if all(map(features.get, _FEATURES)) else ""


@cache
def fast_integers() -> Any:
    """Return the module of such products, or None; the first call of a process takes a second."""
    if not integers_name():
        return None
    try:
        from devices.cpu.fast import vnni
    except ImportError:  # a numba that does not go with this numpy says so
        return None
    return vnni
