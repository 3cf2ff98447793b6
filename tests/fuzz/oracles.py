"""Oracles for drawn cases: ONNX Runtime without optimisation, and ONNX's reference; agreement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from hetero.devices.model.element_type import EXTENDED_DTYPES
from tests.fuzz.operators import OperatorCase

#: Element type -> what a result may be off by: of its size, and of the largest number around.
_TOLERANCES = {
    "float64": (1e-4, 1e-6),
    "float32": (1e-3, 1e-5),
    "float16": (2e-2, 2e-3),
    "bfloat16": (6e-2, 1e-2),
}
#: Types whose neighbours count as agreement.
_COARSE = 0.3


def run_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(feeds)))


#: The oracle whose results have a wider type than the case asks for.
WIDENED = "ONNX Runtime in float32"


class NoAnswerError(Exception):
    """The oracle does not know the operator or the element type; that says nothing of the case."""


class _Worker:
    """ONNX Runtime in a process of its own, for some models end the process that runs them."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def run(self, case: OperatorCase) -> list[Any]:
        """Return the outputs, or raise."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, get_context("spawn"))
        data, feeds = case.model().SerializeToString(), case.feeds()
        try:
            return self._pool.submit(_answer, data, feeds).result(timeout=60)
        except (BrokenExecutor, TimeoutError) as error:
            self.close()
            raise NoAnswerError("the process ended") from error

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool = None


def _answer(model: bytes, feeds: Mapping[str, Any]) -> list[Any]:
    """Run in the worker; errors become ones that travel."""
    try:
        return run_onnxruntime(onnx.ModelProto.FromString(model), feeds)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        unknown = "NotImplemented" in text or "converted to MLDataType" in text
        raise (NoAnswerError if unknown else ValueError)(text) from None


WORKER = _Worker()
_onnxruntime = WORKER.run


def _reference(case: OperatorCase) -> list[Any]:
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(case.model()).run(None, case.feeds()))


def _widened(case: OperatorCase) -> list[Any]:
    """Run half-width floats in float32; what comes out is rounded when it is compared."""
    narrow = {x.dtype for x in case.inputs if isinstance(x, np.ndarray) and _is_half(x)}
    if not narrow:
        raise NoAnswerError
    inputs = tuple(
        x.astype(np.float32) if isinstance(x, np.ndarray) and _is_half(x) else x
        for x in case.inputs
    )
    return _onnxruntime(replace(case, inputs=inputs))


def _is_half(x: np.ndarray) -> bool:
    return x.dtype.name in ("float16", "bfloat16")


ORACLES = {
    "ONNX Runtime": _onnxruntime,
    "onnx's reference": _reference,
    WIDENED: _widened,
}


def differences(got: Sequence[Any], wanted: Sequence[Any], *, rounds: bool = False) -> str:
    """Return how two lists of outputs differ, or the empty string.

    With `rounds` those wanted are first rounded to the type of the others.
    """
    if len(got) != len(wanted):
        return f"{len(got)} outputs, not {len(wanted)}"
    return next(
        (text for a, b in zip(got, wanted, strict=True) if (text := _differs(a, b, rounds))), ""
    )


def _differs(got: Any, wanted: Any, rounds: bool) -> str:
    if isinstance(wanted, list) or isinstance(got, list):
        return differences(got, wanted, rounds=rounds) if isinstance(got, list) else "no sequence"
    if wanted is None or got is None:
        return "" if wanted is got else f"{got!r}, not {wanted!r}"
    got, wanted = np.asarray(got), np.asarray(wanted)
    if rounds and wanted.dtype == np.float32:
        with np.errstate(all="ignore"):
            wanted = wanted.astype(got.dtype)
    if wanted.dtype == np.uint8 and got.dtype.name.startswith("float8"):
        wanted = wanted.view(got.dtype)  # ONNX Runtime has no arrays of these
    if got.shape != wanted.shape:
        return f"shape {got.shape}, not {wanted.shape}"
    if wanted.dtype.kind in "OUS":
        same = [str(a) == str(b) for a, b in zip(got.ravel(), wanted.ravel(), strict=True)]
        return "" if all(same) else f"{got.tolist()}, not {wanted.tolist()}"
    if got.dtype != wanted.dtype:
        return f"type {got.dtype}, not {wanted.dtype}"
    if got.dtype.kind in "iub":
        differs = got != wanted
        return f"{np.count_nonzero(differs)} of {got.size} elements differ" if differs.any() else ""
    relative, absolute = _TOLERANCES.get(got.dtype.name, (_COARSE, _COARSE))
    if got.dtype in EXTENDED_DTYPES:
        got, wanted = got.astype(np.float32), wanted.astype(np.float32)
    finite = np.abs(wanted[np.isfinite(wanted)])
    scale = float(finite.max(initial=0)) + 1
    with np.errstate(all="ignore"):
        close = np.isclose(got, wanted, relative, absolute * scale, equal_nan=True)
    if close.all():
        return ""
    first = np.argwhere(~close)[0]
    place = tuple(int(i) for i in first)
    return f"{got[place]!r} at {list(place)}, not {wanted[place]!r}"
