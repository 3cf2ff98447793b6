"""Whether a difference from ONNX Runtime comes from its products of 8 bits.

Without VNNI its kernels add two products of unsigned and signed 8 bits in 16, which saturates. With
weights of 7 bits nothing does. Recurrent layers that quantise each step carry one tie's rounding
on: so far the reference differs from itself on inputs and weights that are off in the last bits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper

#: How often the reference is run on inputs that are off in the last bits, and by how much.
_LOOKS: Final = 16
_LAST_BITS: Final = 1e-6
#: Of how far the reference differs from itself, for those looks that it did not have.
_ROOM: Final = 2.0

Feeds = Mapping[str, np.ndarray]
Run = Callable[[str, Feeds], Sequence[Any]]


def explains(path: str, feeds: Feeds, ours: Run, reference: Run) -> str:
    """Return why answers differ, where it is that; else the empty string."""
    model = onnx.load(path)
    weights = [w for w in model.graph.initializer if w.data_type == onnx.TensorProto.INT8]
    if not weights:
        return ""
    for weight in weights:
        halved = numpy_helper.to_array(weight) // 2
        weight.CopyFrom(numpy_helper.from_array(halved.astype(np.int8), weight.name))
    with tempfile.TemporaryDirectory() as folder:
        narrow = str(Path(folder) / "model.onnx")
        onnx.save(model, narrow)
        wanted, got = reference(narrow, feeds), ours(narrow, feeds)
        sway = [0.0] * len(wanted)
        floats = [w for w in model.graph.initializer if w.data_type == onnx.TensorProto.FLOAT]
        exact = {w.name: numpy_helper.to_array(w) for w in floats}
        for seed in range(_LOOKS):
            shaken = _off_in_the_last_bits(exact, seed)  # what reads integers has no others
            for weight in floats:
                weight.CopyFrom(numpy_helper.from_array(shaken[weight.name], weight.name))
            onnx.save(model, narrow)
            near = reference(narrow, _off_in_the_last_bits(feeds, seed))
            sway = [max(s, _off(n, w)) for s, n, w in zip(sway, near, wanted, strict=True)]
    off = [_off(g, w) for g, w in zip(got, wanted, strict=True)]
    if any(o > max(1e-5, _ROOM * s) for o, s in zip(off, sway, strict=True)):
        return ""
    return (
        "ONNX Runtime saturates sums of products of 8 bits; with weights of 7 bits answers are "
        f"{max(off):.1e} apart, and its own {max(sway):.1e} where floats are off in the last bits"
    )


def _off_in_the_last_bits(feeds: Feeds, seed: int) -> Feeds:
    rng = np.random.default_rng(seed)
    return {
        name: np.asarray(x * (1 + _LAST_BITS * rng.standard_normal(x.shape)), x.dtype)
        if x.dtype.kind == "f"
        else x
        for name, x in feeds.items()
    }


def _off(got: Any, want: Any) -> float:
    apart = np.nan_to_num(np.abs(got - want), nan=np.inf)
    return float(np.max(apart, initial=0) / max(np.nanmax(np.abs(want)), 1e-9))
