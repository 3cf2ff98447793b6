"""Trials of plug-in providers in the worker process: of a library, and of single nodes.

A vendor's library may end the process that loads or runs it, so the worker tries it first.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx

from hetero.devices.ort.errors import ERRORS
from hetero.devices.ort.provider import Provider, quiet_options
from hetero.devices.ort.provider_library import ProviderLibrary
from hetero.devices.ort.runtime import onnxruntime

#: A trial of a node generates inputs of up to this many elements; larger nodes are reduced.
_MOST_ELEMENTS: Final = 2**24
#: Sizes of open dimensions, tried in this order until the inputs are small enough.
_OPEN_SIZES: Final = (2, 1)
#: Operators with random results, which cannot be compared.
_RANDOM: Final = re.compile(r"Random.*|Bernoulli|Multinomial|Dropout")
#: Largest difference between two results, relative to the largest value. Accelerators compute
#: float32 with the 11 significant bits of float16, and errors of sums add up.
_TOLERANCE: Final = 0.05
_NUMPY_TYPES: Final = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.FLOAT16: np.float16,
    onnx.TensorProto.DOUBLE: np.float64,
    onnx.TensorProto.BOOL: np.bool_,
    onnx.TensorProto.INT8: np.int8,
    onnx.TensorProto.UINT8: np.uint8,
    onnx.TensorProto.INT16: np.int16,
    onnx.TensorProto.UINT16: np.uint16,
    onnx.TensorProto.INT32: np.int32,
    onnx.TensorProto.UINT32: np.uint32,
    onnx.TensorProto.INT64: np.int64,
    onnx.TensorProto.UINT64: np.uint64,
}


@dataclass(frozen=True, slots=True)
class ProviderDevice:
    """A device of a plug-in provider."""

    #: ONNX Runtime's name of the provider, and its version.
    provider: str
    version: str
    #: Index among the provider's devices.
    index: int
    #: ``CPU``, ``GPU`` or ``NPU``, its vendor, and its name if the system knows it.
    kind: str
    vendor: str
    hardware: str
    #: Whether it has its own memory.
    is_discrete: bool
    #: Why it does not work; empty if it does.
    error: str


def try_library(fields: Sequence[Any], options: Sequence[Any]) -> list[ProviderDevice] | str:
    """Load a library; return its devices, or the reason of a failure. Runs in the worker."""
    library = ProviderLibrary(*fields)
    try:
        library.unregister_namesakes()
        ep_devices = library.ep_devices()
    except Exception as error:  # imports of packages and ONNX Runtime raise many types
        return ERRORS.reason(error)
    devices: list[ProviderDevice] = []
    for row in ep_devices:
        index = sum(device.provider == row.ep_name for device in devices)
        provider = Provider(
            row.ep_name, tuple((name, value) for name, value in options), (), library, index
        )
        hardware = dict(row.device.metadata)
        devices.append(
            ProviderDevice(
                row.ep_name,
                row.ep_metadata.get("version", ""),
                index,
                row.device.type.name,
                row.device.vendor,
                hardware.get("Description", ""),
                hardware.get("Discrete") == "1",
                check_provider(provider),
            )
        )
    return devices


def check_provider(provider: Provider | Sequence[Any]) -> str:
    """Return why a provider does not run a small model, or an empty text. Runs in the worker."""
    if not isinstance(provider, Provider):
        provider = Provider.from_fields(provider)
    logged: list[str] = []
    try:
        with _stderr_lines(logged):
            if provider.plugin_library is not None:
                provider.plugin_library.unregister_namesakes()
            provider.check(log_severity=3)
    except Exception as error:  # providers raise many types
        lines = (re.sub(r"\x1b\[[\d;]*m|^.*\[E:onnxruntime.*?\] ", "", line) for line in logged)
        return "; ".join(dict.fromkeys((ERRORS.reason(error), *(x for x in lines if x))))[:500]
    return ""


@dataclass(frozen=True, slots=True)
class NodeTrial:
    """Outcome of a trial run of a node, compared with ONNX Runtime's CPU provider."""

    #: How the node fails, or differs for finite inputs; empty if it does not.
    failure: str = ""
    #: How the node differs for inputs with NaN; empty if it does not.
    note: str = ""


def try_node(data: bytes, op_type: str, provider: Provider) -> NodeTrial:
    """Run a model of one node on a provider, for finite inputs and for inputs with NaN.

    A node without a comparable result passes.
    """
    proto = onnx.ModelProto.FromString(data)
    graph = proto.graph
    if _reduce_sizes(graph):
        data = proto.SerializeToString()
    tries = (_random_inputs(graph, size) for size in _OPEN_SIZES)
    feeds = next((inputs for inputs in tries if inputs is not None), None)
    if feeds is None or _RANDOM.fullmatch(op_type):
        return NodeTrial()
    try:
        reference = onnxruntime.InferenceSession(
            data, quiet_options(), providers=["CPUExecutionProvider"]
        )
        expected = reference.run(None, feeds)
    except Exception:  # the inputs do not fit the operator, or the CPU's provider lacks it
        return NodeTrial()
    try:
        session = provider.open_assignment_session(data)
        results = session.run(None, feeds)
    except Exception as error:
        return NodeTrial(f"a trial run fails: {ERRORS.reason(error)}")
    for port, result, value in zip(graph.output, results, expected, strict=True):
        if difference := _difference(result, value):
            return NodeTrial(f"a trial run returns a wrong {port.name!r}: {difference}")
    return NodeTrial(note=_nan_note(session, reference, feeds))


def _nan_note(session: Any, reference: Any, feeds: Mapping[str, np.ndarray]) -> str:
    """Return a note if NaN in the first element of a float input has another effect.

    Only one input has NaN at a time, because an operator may select from its inputs.
    """
    for name, array in feeds.items():
        if array.dtype.kind != "f" or not array.size:
            continue
        inputs = {**feeds, name: array.copy()}
        inputs[name].flat[0] = np.nan
        try:
            expected = reference.run(None, inputs)
        except Exception:  # NaN does not fit the operator
            continue
        try:
            results = session.run(None, inputs)
        except Exception as error:  # providers raise many types
            return f"fails for NaN: {ERRORS.reason(error)}"
        if not all(map(_have_equal_nan, results, expected)):
            return "NaN propagates otherwise than on ONNX Runtime's CPU provider"
    return ""


def _have_equal_nan(result: Any, expected: Any) -> bool:
    """Return whether two float arrays have NaN at the same positions; true for other values."""
    if not isinstance(expected, np.ndarray) or expected.dtype.kind != "f":
        return True
    return np.array_equal(np.isnan(result), np.isnan(expected))


def _reduce_sizes(graph: onnx.GraphProto) -> bool:
    """Halve the largest sizes of a graph until no input is too large; return whether any was.

    Equal sizes stay equal, because the operator may require it.
    """
    shapes = [port.type.tensor_type.shape.dim for port in graph.input]
    dimensions = [dimension for shape in shapes for dimension in shape]
    has_changed = False
    while large := [s for s in shapes if math.prod(d.dim_value or 1 for d in s) > _MOST_ELEMENTS]:
        has_changed = True
        size = max(d.dim_value for d in large[0])
        for dimension in dimensions:
            if dimension.dim_value == size:
                dimension.dim_value = size // 2
    if has_changed:
        for port in graph.output:
            for dimension in port.type.tensor_type.shape.dim:
                dimension.Clear()
    return has_changed


def _random_inputs(graph: onnx.GraphProto, open_size: int) -> dict[str, np.ndarray] | None:
    """Return inputs for a graph, or None if a type, a shape or the size does not allow it.

    `open_size`: the size of open dimensions.
    """
    random = np.random.default_rng(0)
    feeds: dict[str, np.ndarray] = {}
    for port in graph.input:
        tensor = port.type.tensor_type
        dtype = _NUMPY_TYPES.get(tensor.elem_type)
        if dtype is None or not tensor.HasField("shape"):
            return None
        shape = [d.dim_value if d.HasField("dim_value") else open_size for d in tensor.shape.dim]
        if np.prod(shape, dtype=float) > _MOST_ELEMENTS:
            return None
        if np.issubdtype(dtype, np.floating):
            feeds[port.name] = random.uniform(-1, 1, shape).astype(dtype)
        else:  # 0 and 1 are valid as indices, sizes and flags of most operators
            feeds[port.name] = random.integers(0, 2, shape).astype(dtype)
    return feeds


def _difference(result: Any, expected: Any) -> str:
    """Describe the difference of two results; empty if it is within rounding."""
    if not isinstance(expected, np.ndarray) or not isinstance(result, np.ndarray):
        return ""
    if (result.shape, result.dtype) != (expected.shape, expected.dtype):
        return f"{result.dtype}{list(result.shape)}, not {expected.dtype}{list(expected.shape)}"
    if expected.dtype.kind != "f":
        wrong = int(np.sum(result != expected))
        return f"{wrong} of {expected.size} elements differ" if wrong else ""
    is_finite = np.isfinite(expected)
    if not is_finite.any():
        return ""
    result, expected = result[is_finite].astype(np.float64), expected[is_finite].astype(np.float64)
    largest = float(np.abs(expected).max())
    difference = float(np.abs(result - expected).max())
    if difference <= _TOLERANCE * largest:  # False for NaN
        return ""
    return f"it differs by up to {difference:.3g}; the largest value is {largest:.3g}"


@contextmanager
def _stderr_lines(lines: list[str]) -> Iterator[None]:
    """Collect the lines that native code writes to stderr."""
    with tempfile.TemporaryFile() as file:
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            lines += file.read().decode(errors="replace").splitlines()
