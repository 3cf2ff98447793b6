"""A vendor device over numpy with wrong kernels, which the option KERNEL selects.

Unlike the faults of `faulty_vendor`, which change a graph, these depend on the values, the sizes
and the number of calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.parser import parse_model

from hetero.devices.cpu.plugin import CPUPlugin, CPUProgram
from hetero.devices.interpreter.backend import ArrayBackend
from hetero.devices.kernels import Kernel
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Program
from hetero.devices.plugin.properties import Config, Property, PropertyTable

Arrays = Sequence[Any]
#: Returns a wrong result from the right kernel, its inputs and its attributes.
Wrong = Callable[[Callable[..., Any], Arrays, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class WrongKernel:
    """A wrong kernel of `op_type`, and a graph with constants in which it runs."""

    op_type: str
    wrong: Wrong
    graph: str
    constants: Mapping[str, Any]

    def model(self) -> onnx.ModelProto:
        """Return the graph as a model."""
        model = parse_model(f'<ir_version: 9, opset_import: ["": 18]> g {self.graph}')
        for node in model.graph.node:
            node.ClearField("domain")
        model.graph.initializer.extend(
            numpy_helper.from_array(np.asarray(value), name)
            for name, value in self.constants.items()
        )
        return model


def on_result(op_type: str, change: Callable[[Any, Any], Any], graph: str, **constants: Any) -> Any:
    """Return a kernel that changes its right result; `change` also gets the first input."""

    def wrong(right: Callable[..., Any], inputs: Arrays, attributes: Mapping[str, Any]) -> Any:
        return change(right(*inputs), inputs[0])

    return WrongKernel(op_type, wrong, graph, constants)


def on_inputs(op_type: str, change: Callable[..., Arrays], graph: str, **constants: Any) -> Any:
    """Return a kernel that reads changed inputs."""

    def wrong(right: Callable[..., Any], inputs: Arrays, attributes: Mapping[str, Any]) -> Any:
        return right(*change(*inputs))

    return WrongKernel(op_type, wrong, graph, constants)


def _if(applies: Any, wrong: Any, right: Any) -> Any:
    return np.where(applies, wrong, right).astype(right.dtype)


def _after(array: np.ndarray, first: Any, factor: float = 0.0) -> np.ndarray:
    copy = np.array(array)
    copy[first] = copy[first] * factor
    return copy


def _overwritten(result: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Write a result over its input, as a kernel in place does."""
    ctypes.memmove(data.ctypes.data, np.ascontiguousarray(result).ctypes.data, data.nbytes)
    return result


_COUNTS = {"calls": 0}


def _second_call(result: np.ndarray, data: np.ndarray) -> np.ndarray:
    _COUNTS["calls"] += 1
    return result if _COUNTS["calls"] % 2 else result + np.float32(0.5)


_BUFFERS: dict[tuple[int, ...], np.ndarray] = {}


def _reused(result: np.ndarray, data: np.ndarray) -> np.ndarray:
    buffer = _BUFFERS.setdefault(result.shape, np.empty_like(result))
    buffer[...] = result
    return buffer


def _last_of_ties(right: Callable[..., Any], inputs: Arrays, attributes: Mapping[str, Any]) -> Any:
    data = inputs[0]
    return data.shape[1] - 1 - right(np.ascontiguousarray(data[:, ::-1]))


def _last_of_repeated(
    right: Callable[..., Any], inputs: Arrays, attributes: Mapping[str, Any]
) -> Any:
    data, indices, updates = inputs[:3]
    result = np.array(data)
    np.put_along_axis(result, indices, np.take_along_axis(data, indices, 0) + updates, 0)
    return result


def _saturating(right: Callable[..., Any], inputs: Arrays, attributes: Mapping[str, Any]) -> Any:
    wide = inputs[0].astype(np.int64) * inputs[1]
    return np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32)


def _variance_by_squares(
    right: Callable[..., Any], inputs: Arrays, attributes: Mapping[str, Any]
) -> Any:
    data, scale = inputs[:2]
    mean = data.mean(-1, keepdims=True)
    variance = (data * data).mean(-1, keepdims=True) - mean * mean - np.float32(1e-7)
    return ((data - mean) / np.sqrt(variance) * scale).astype(np.float32)


_RNG = np.random.default_rng(5)
_TABLE = _RNG.standard_normal((1000, 4)).astype(np.float32)
_UNARY = "(float[N,4] x) => (float[N,4] y) {{ a = Relu(x) b = {0}(a) y = Neg(b) }}".format
_MATRIX = "(float[N,M] x) => (float[{1}] y) {{ a = {0}(x) y = Neg(a) }}".format
_LOOKUP = "(int64[N] i) => (float[N,4] y) { a = Gather(t, i) y = Neg(a) }"
_ELEMENTS = "(float[N,6] x, int64[N,3] i) => (float[N,3] y) {y = GatherElements<axis = 1>(x, i)}"
_SUM = """(float[6,4] x, int64[N,4] i, float[N,4] u) => (float[6,4] y)
    { y = ScatterElements<axis = 0, reduction = "add">(x, i, u) }"""
_BEST = "(float[N,6] x) => (int64[N,1] y) { a = Relu(x) y = ArgMax<axis = 1>(a) }"
_ONE_BEST = """(float[1,6] x, float[1] z) => (int64[1,1] y, int64[1] w)
    { y = ArgMax<axis = 1>(x) w = Cast<to = 7>(z) }"""
_KEPT = "(float[N,4] x) => (float[N,4] a, float[N,4] y) { a = Neg(x) b = Relu(a) y = Neg(b) }"
_POOL = """(float[N,3,6,6] x) => (float[N,3,3,3] y, int64[N,3,3,3] i)
    { y, i = MaxPool<kernel_shape = [2,2], strides = [2,2]>(x) }"""
_NORMAL = """(float[N,8] x) => (float[N,8] y, float[N,1] m, float[N,1] d)
    { y, m, d = LayerNormalization(x, s) }"""
_EXACT_NORMAL = """(float[N,8] x) => (float[N,8] y)
    { y = LayerNormalization<epsilon = 0.00000000001>(x, s) }"""
_ROOT = """(float[N,4] x) => (float[N,4] y) { a = Mul(x, c) b = Mul(x, c) d = Sub(a, b) e = Abs(x)
    h = Add(e, d) k = Sub(h, e) y = Sqrt(k) }"""
_MASKED = "(float[4,4] x) => (float[4,4] y) { y = Where(c, x, low) }"
_HALVES = """(float[N,4] x, float16[N,4] h) => (float[N,4] y, float16[N,4] z)
    { y = Add(x, x) z = Add(h, h) }"""
_CONV = "(float[N,3,9,9] x) => (float[N,4,7,7] y) { y = Conv(x, w) }"
_WEIGHTS = _RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)
_SCALE = _RNG.standard_normal(8).astype(np.float32)

#: Name -> the wrong kernel.
KERNELS: Mapping[str, WrongKernel] = {
    "negative indices are clamped": on_inputs(
        "Gather", lambda t, i: (t, np.maximum(i, 0)), _LOOKUP, t=_TABLE
    ),
    "indices have eight bits": on_inputs("Gather", lambda t, i: (t, i & 255), _LOOKUP, t=_TABLE),
    "indices have no sign": on_inputs("GatherElements", lambda x, i: (x, np.abs(i)), _ELEMENTS),
    "repeated indices overwrite": WrongKernel("ScatterElements", _last_of_repeated, _SUM, {}),
    "last of equal elements": WrongKernel("ArgMax", _last_of_ties, _BEST, {}),
    "next to the only best": on_result("ArgMax", lambda r, x: r + 1, _ONE_BEST),
    "long integers through double": on_result(
        "Max",
        lambda r, x: _if(r < 2**62, np.minimum(r, 2**62).astype(np.float64).astype(np.int64), r),
        "(int64[N,4] x) => (int64[N,4] y) { y = Max(x, c) }",
        c=np.int64(0),
    ),
    "integers through single precision": on_result(
        "Max",
        lambda r, x: _if(r < 2**30, r.astype(np.float32), r),
        "(int32[N,4] x) => (int32[N,4] y) { y = Max(x, c) }",
        c=np.int32(0),
    ),
    "integers saturate": WrongKernel(
        "Mul",
        _saturating,
        "(int32[N,4] x) => (int32[N,4] y) { y = Mul(x, c) }",
        {"c": np.int32(3)},
    ),
    "bytes have a sign": on_inputs(
        "Greater",
        lambda x, z: (x.view(np.int8), z.view(np.int8)),
        "(uint8[N,4] x, uint8[N,4] z) => (bool[N,4] y) { y = Greater(x, z) }",
    ),
    "half precision only": on_result(
        "Add", lambda r, x: r + np.float16(1) if r.dtype == np.float16 else r, _HALVES
    ),
    "last axis above 64": on_result(
        "Softmax", lambda r, x: _after(r, np.s_[..., 64:]), _MATRIX("Softmax", "N,M")
    ),
    "last axis above 256": on_result(
        "Softmax", lambda r, x: _after(r, np.s_[..., 256:]), _MATRIX("Softmax", "N,M")
    ),
    "more than 1024 elements": on_result(
        "Tanh",
        lambda r, x: _after(r.reshape(-1), np.s_[1024:], 0.5).reshape(r.shape),
        _UNARY("Tanh"),
    ),
    "batch of one": on_result("Tanh", lambda r, x: r + (len(r) == 1), _UNARY("Tanh")),
    "batch of 8 to 32": on_result("Tanh", lambda r, x: r + (8 <= len(r) <= 32), _UNARY("Tanh")),
    "batch is a multiple of 4": on_result(
        "Tanh", lambda r, x: r + (not len(r) % 4), _UNARY("Tanh")
    ),
    "last of 8 rows": on_result(
        "MatMul",
        lambda r, x: r if len(r) % 8 else _after(r, -1),
        "(float[N,4] x) => (float[N,4] y) { a = MatMul(x, w) y = Neg(a) }",
        w=_TABLE[:4],
    ),
    "images after the seventh": on_result(
        "Conv", lambda r, x: _after(r, np.s_[7:]), _CONV, w=_WEIGHTS
    ),
    "more rows than columns": on_result(
        "Transpose", lambda r, x: r + (x.shape[0] > x.shape[1]), _MATRIX("Transpose", "M,N")
    ),
    "as many rows as columns": on_result(
        "Transpose",
        lambda r, x: np.array(x) if x.shape[0] == x.shape[1] else r,
        _MATRIX("Transpose", "M,N"),
    ),
    "last of an odd number": on_result(
        "Tanh",
        lambda r, x: _after(r, -1) if len(r) % 2 and len(r) > 1 else r,
        "(float[N] x) => (float[N] y) { a = Relu(x) b = Tanh(a) y = Neg(b) }",
    ),
    "broadcast of one row": WrongKernel(
        "Add",
        lambda right, inputs, attributes: right(*inputs) + (len(inputs[0]) != len(inputs[1])),
        "(float[N,4] x, float[M,4] z) => (float[K,4] y) { y = Add(x, z) }",
        {},
    ),
    "second call": on_result("Tanh", _second_call, _UNARY("Tanh")),
    "one buffer for all results": on_result(
        "Tanh", _reused, "(float[N,4] x) => (float[N,4] y) { a = Neg(x) y = Tanh(a) }"
    ),
    "in place over an output": on_result("Relu", _overwritten, _KEPT),
    "in place over an input": on_result(
        "Neg",
        _overwritten,
        "(float[N,4] x) => (float[N,4] y, float[N,4] z) { a = Neg(x) y = Exp(a) z = Exp(x) }",
    ),
    "indices of each channel": on_result(
        "MaxPool", lambda r, x: (r[0], r[1] % 36) if isinstance(r, tuple) else r, _POOL
    ),
    "deviation of a normalization": on_result(
        "LayerNormalization",
        lambda r, x: (*r[:2], 1 / r[2]) if isinstance(r, tuple) else r,
        _NORMAL,
        s=_SCALE,
    ),
    "variance by squares": WrongKernel(
        "LayerNormalization", _variance_by_squares, _EXACT_NORMAL, {"s": _SCALE}
    ),
    "rows of zeros": on_result(
        "Softmax",
        lambda r, x: _if(~x.any(-1, keepdims=True), 0, r),
        "(float[N,8] x) => (float[N,8] y) { a = Softmax(x) y = Neg(a) }",
    ),
    "beside values of a mask": on_result(
        "Where",
        lambda r, x: _if(np.abs(r) < 1000, r * 1.5 + 1, r),
        _MASKED,
        c=np.tril(np.ones((4, 4), bool)),
        low=np.float32(-1e9),
    ),
    "beside NaN of rounding noise": on_result("Sqrt", lambda r, x: r + 1, _ROOT, c=np.float32(1.1)),
}


class _WrongBackend(ArrayBackend):
    """numpy with one wrong kernel."""

    selected: WrongKernel | None

    def function(
        self, kernel: Kernel, keywords: Mapping[str, Any], on_host: bool
    ) -> Callable[..., Any]:
        """Return the kernel as a function, which is wrong if the kernel is selected."""
        right, selected = super().function(kernel, keywords, on_host), self.selected
        if selected is None or kernel.op_type != selected.op_type:
            return right

        def call_wrong(*inputs: Any) -> Any:
            with np.errstate(all="ignore"):
                return selected.wrong(right, inputs, keywords)

        return call_wrong


class WrongVendor(CPUPlugin):
    """numpy with the wrong kernel KERNEL."""

    name: ClassVar[str] = "WRONG"
    properties: ClassVar[PropertyTable] = CPUPlugin.properties.extended(
        Property("KERNEL", str, "", True, "The wrong kernel.", shapes_result=True)
    )

    def compile(self, model: Model, config: Config) -> Program:
        """Compile the model with the wrong kernel."""
        backend = _WrongBackend("numpy", np)
        object.__setattr__(backend, "selected", KERNELS.get(config["KERNEL"]))
        return CPUProgram(model, config["INFERENCE_NUM_THREADS"], backend)
