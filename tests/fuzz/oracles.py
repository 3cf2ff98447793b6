"""Oracles of random cases, ONNX Runtime and ONNX's reference evaluator, and the comparison."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from hetero.devices.conformance.drawn_cases import OperatorCase
from hetero.devices.model.element_type import EXTENDED_DTYPES

#: Element type -> tolerances relative to an element and to the largest element.
_TOLERANCES = {
    "float64": (1e-4, 1e-6),
    "float32": (1e-3, 1e-5),
    "float16": (2e-2, 2e-3),
    "bfloat16": (6e-2, 1e-2),
}
#: Tolerance of other float types, about the distance of their neighbouring numbers.
_COARSE_TOLERANCE = 0.3


def run_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(feeds)))


#: Name of the oracle that computes half-width floats in float32.
IN_FLOAT32 = "ONNX Runtime in float32"


#: Seconds after which a case has no result.
CASE_S = 60.0


class NoResultError(Exception):
    """The oracle does not support the operator or element type of a case."""


class _Worker:
    """ONNX Runtime in a separate process, because some models crash it."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._process_id = 0

    def run(self, case: OperatorCase) -> list[Any]:
        """Return the outputs of a case."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, get_context("spawn"))
            self._process_id = self._pool.submit(os.getpid).result()
        data, feeds = case.model().SerializeToString(), case.feeds()
        try:
            return self._pool.submit(_run_model, data, feeds).result(timeout=CASE_S)
        except (BrokenExecutor, TimeoutError) as error:
            self.close()
            raise NoResultError("the process ended") from error

    def close(self) -> None:
        """End the process, even while it runs a case: shutdown alone would wait for the case."""
        if self._pool is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process_id, signal.SIGKILL)
            self._pool.shutdown(cancel_futures=True)
        self._pool = None


def _run_model(model: bytes, feeds: Mapping[str, Any]) -> list[Any]:
    """Run a model in the worker process; its errors are converted to picklable ones."""
    try:
        return run_onnxruntime(onnx.ModelProto.FromString(model), feeds)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        unknown = "NotImplemented" in text or "converted to MLDataType" in text
        raise (NoResultError if unknown else ValueError)(text) from None


WORKER = _Worker()
_onnxruntime = WORKER.run


def _reference(case: OperatorCase) -> list[Any]:
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(case.model()).run(None, case.feeds()))


def _in_float32(case: OperatorCase) -> list[Any]:
    """Run half-width floats in float32; the comparison rounds the results."""
    narrow = {x.dtype for x in case.inputs if isinstance(x, np.ndarray) and _is_half(x)}
    if not narrow:
        raise NoResultError
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
    IN_FLOAT32: _in_float32,
}


def differences(
    actual: Sequence[Any], expected: Sequence[Any], *, rounds: bool = False, coarseness: float = 0.0
) -> str:
    """Return the first difference of two lists of outputs in words, or the empty string.

    `rounds`: round the expected outputs to the types of the actual ones.
    `coarseness`: least tolerance of floats relative to the largest element.
    """
    if len(actual) != len(expected):
        return f"{len(actual)} outputs, not {len(expected)}"
    return next(
        (
            text
            for a, b in zip(actual, expected, strict=True)
            if (text := _differs(a, b, rounds, coarseness))
        ),
        "",
    )


def _differs(actual: Any, expected: Any, rounds: bool, coarseness: float) -> str:
    if isinstance(expected, list) or isinstance(actual, list):
        return (
            differences(actual, expected, rounds=rounds, coarseness=coarseness)
            if isinstance(actual, list)
            else "no sequence"
        )
    if expected is None or actual is None:
        return "" if expected is actual else f"{actual!r}, not {expected!r}"
    actual, expected = np.asarray(actual), np.asarray(expected)
    if rounds and expected.dtype == np.float32:
        with np.errstate(all="ignore"):
            expected = expected.astype(actual.dtype)
    if expected.dtype == np.uint8 and actual.dtype.name.startswith("float8"):
        expected = expected.view(actual.dtype)  # ONNX Runtime returns float8 as bytes
    if actual.shape != expected.shape:
        return f"shape {actual.shape}, not {expected.shape}"
    if expected.dtype.kind in "OUS":
        same = [str(a) == str(b) for a, b in zip(actual.ravel(), expected.ravel(), strict=True)]
        return "" if all(same) else f"{actual.tolist()}, not {expected.tolist()}"
    if actual.dtype != expected.dtype:
        return f"type {actual.dtype}, not {expected.dtype}"
    if actual.dtype.kind in "iub":
        differs = actual != expected
        return (
            f"{np.count_nonzero(differs)} of {actual.size} elements differ" if differs.any() else ""
        )
    relative, absolute = _TOLERANCES.get(actual.dtype.name, (_COARSE_TOLERANCE, _COARSE_TOLERANCE))
    absolute = max(absolute, coarseness)
    if actual.dtype in EXTENDED_DTYPES:
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    finite = np.abs(expected[np.isfinite(expected)])
    scale = float(finite.max(initial=0)) + 1
    with np.errstate(all="ignore"):
        close = np.isclose(actual, expected, relative, absolute * scale, equal_nan=True)
    if close.all():
        return ""
    first = np.argwhere(~close)[0]
    place = tuple(int(i) for i in first)
    return f"{actual[place]!r} at {list(place)}, not {expected[place]!r}"
