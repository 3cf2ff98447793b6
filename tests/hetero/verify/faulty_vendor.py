"""A vendor device over ONNX Runtime with wrong kernels, which the option FAULT selects."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.parser import parse_model

from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.ort.plugin import ORTPlugin
from hetero.devices.plugin.program import Program, RunContext, Value
from hetero.devices.plugin.properties import Config, Property, PropertyTable

#: Makes the wrong nodes of a node; their last one writes the node's first output.
Rewrite = Callable[[Node, Model], list[onnx.NodeProto]]


@dataclass(frozen=True)
class Fault:
    """A wrong kernel: `op_type` where `when` holds is computed as `rewrite` makes it."""

    op_type: str
    rewrite: Rewrite
    when: Callable[[Node, Model], bool] = lambda node, model: True


def after(op_type: str, value: float | None = None, **attributes: object) -> Rewrite:
    """Apply one more operator to the result."""

    def rewrite(node: Node, model: Model) -> list[onnx.NodeProto]:
        inner = _copy(node)
        inner.output[0] = f"{node.outputs[0]}_right"
        inputs = [inner.output[0]]
        nodes = [inner]
        if value is not None:
            dtype = model.spec(node.outputs[0]).dtype
            tensor = numpy_helper.from_array(np.asarray(value, dtype))
            nodes.append(helper.make_node("Constant", [], [f"{node.name}_value"], value=tensor))
            inputs.append(f"{node.name}_value")
        return [*nodes, helper.make_node(op_type, inputs, [node.outputs[0]], **attributes)]

    return rewrite


def of_rows(comparison: str, count: int) -> Rewrite:
    """Add 0.5 to the result if its number of rows compares so with `count`."""

    def rewrite(node: Node, model: Model) -> list[onnx.NodeProto]:
        inner = _copy(node)
        right = inner.output[0] = f"{node.outputs[0]}_right"
        name = node.name
        values = {"zero": np.int64(0), "count": np.int64(count), "half": np.float32(0.5)}
        constants = [
            helper.make_node("Constant", [], [f"{name}_{key}"], value=numpy_helper.from_array(v))
            for key, v in ((key, np.asarray(value)) for key, value in values.items())
        ]
        return [
            inner,
            *constants,
            helper.make_node("Shape", [right], [f"{name}_shape"]),
            helper.make_node("Gather", [f"{name}_shape", f"{name}_zero"], [f"{name}_rows"]),
            helper.make_node(comparison, [f"{name}_rows", f"{name}_count"], [f"{name}_applies"]),
            helper.make_node("Add", [right, f"{name}_half"], [f"{name}_wrong"]),
            helper.make_node(
                "Where", [f"{name}_applies", f"{name}_wrong", right], [node.outputs[0]]
            ),
        ]

    return rewrite


def instead(op_type: str | None = None, **attributes: object) -> Rewrite:
    """Run another operator, or the same one with other attributes."""

    def rewrite(node: Node, model: Model) -> list[onnx.NodeProto]:
        copy = _copy(node)
        copy.op_type = op_type or node.op_type
        remaining = [a for a in copy.attribute if a.name not in attributes and op_type is None]
        del copy.attribute[:]
        copy.attribute.extend(remaining)
        copy.attribute.extend(helper.make_attribute(*item) for item in attributes.items())
        return [copy]

    return rewrite


def swapped(node: Node, model: Model) -> list[onnx.NodeProto]:
    """Exchange the first two inputs."""
    copy = _copy(node)
    copy.input[0], copy.input[1] = copy.input[1], copy.input[0]
    return [copy]


def with_constant(position: int, change: Callable[[np.ndarray], np.ndarray]) -> Rewrite:
    """Replace a constant input."""

    def rewrite(node: Node, model: Model) -> list[onnx.NodeProto]:
        copy = _copy(node)
        array = model.constants[node.inputs[position]].array
        tensor = numpy_helper.from_array(np.ascontiguousarray(change(array)))
        copy.input[position] = f"{node.name}_changed"
        return [helper.make_node("Constant", [], [copy.input[position]], value=tensor), copy]

    return rewrite


def _shifted_slice(node: Node, model: Model) -> list[onnx.NodeProto]:
    first, moved_start = with_constant(1, lambda starts: starts + 1)(node, model)
    renamed = Node.from_proto(moved_start, name=f"{node.name}_moved")
    return [first, *with_constant(2, lambda ends: ends + 1)(renamed, model)]


def reads(op_type: str) -> Callable[[Node, Model], bool]:
    """Hold where the first input is the result of an operator: a fusion."""

    def when(node: Node, model: Model) -> bool:
        producer = model.producer(node.inputs[0])
        return producer is not None and producer.op_type == op_type

    return when


def has_type(name: str) -> Callable[[Node, Model], bool]:
    """Hold for an element type of the first input."""
    return lambda node, model: model.spec(node.inputs[0]).element_type == name


def has_rank(rank: int) -> Callable[[Node, Model], bool]:
    """Hold for a rank of the first input."""
    return lambda node, model: len(model.spec(node.inputs[0]).shape or ()) == rank


def _copy(node: Node) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node.proto)
    return copy


#: Attributes of the pools in the net.
WINDOW = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}
#: Fault -> the wrong kernel.
FAULTS: Mapping[str, Fault] = {
    "conv_shifted": Fault("Conv", after("Add", 0.05), has_rank(4)),
    "conv_pads": Fault("Conv", instead(pads=[2, 2, 0, 0]), lambda n, m: "pads" in n.attributes),
    "gather_then_conv": Fault("Conv", with_constant(1, lambda w: w[:, ::-1]), reads("Gather")),
    "mul_then_add_drops_sign": Fault("Add", after("Abs"), reads("Mul")),
    "normalization_epsilon": Fault("BatchNormalization", instead(epsilon=0.5)),
    "relu_lets_negatives_pass": Fault("Relu", instead("Identity")),
    "relu_after_normalization": Fault("Relu", instead("Abs"), reads("BatchNormalization")),
    "max_pool_one_percent": Fault("MaxPool", after("Mul", 1.01)),
    "max_pool_averages": Fault("MaxPool", instead("AveragePool", **WINDOW)),
    "average_counts_padding": Fault("AveragePool", instead(count_include_pad=1)),
    "concat_reversed": Fault("Concat", swapped),
    "transpose_inverse": Fault("Transpose", instead(perm=[0, 3, 1, 2])),
    "slice_off_by_one": Fault("Slice", lambda node, model: _shifted_slice(node, model)),
    "softmax_axis": Fault("Softmax", instead(axis=0)),
    "softmax_one_short": Fault("Softmax", after("Mul", 0.99)),
    "matmul_of_batches": Fault("MatMul", after("Mul", 1.01), has_rank(3)),
    "gemm_untransposed": Fault("Gemm", instead(transB=0)),
    "gemm_without_bias": Fault("Gemm", instead(beta=0.0)),
    "sum_axis": Fault("ReduceSum", with_constant(1, lambda axes: axes - 1)),
    "mean_is_sum": Fault("ReduceMean", instead("ReduceSumSquare", axes=[1], keepdims=1)),
    "sub_swapped": Fault("Sub", swapped),
    "div_rounds": Fault("Div", after("Add", 1.0), has_type("int32")),
    "mod_sign": Fault("Mod", instead(fmod=1)),
    "tanh_of_many_rows": Fault("Tanh", of_rows("Greater", 16)),
    "tanh_nan": Fault("Tanh", after("Sqrt")),
    "exp_infinite": Fault("Exp", after("Pow", 100.0)),
    "argmax_last": Fault("ArgMax", after("Add", 1.0)),
    "where_swapped": Fault("Where", lambda node, model: _where(node)),
    "clip_high": Fault("Clip", with_constant(2, lambda high: high - 1)),
    "gather_negative": Fault("Gather", with_constant(1, lambda i: i[::-1]), has_rank(4)),
    "cast_of_doubles": Fault("Cast", after("Add", 1.0), has_type("double")),
    "equal_is_greater": Fault("Less", instead("Greater")),
    "cumsum_exclusive": Fault("CumSum", instead(exclusive=1)),
}


def _where(node: Node) -> list[onnx.NodeProto]:
    copy = _copy(node)
    copy.input[1], copy.input[2] = copy.input[2], copy.input[1]
    return [copy]


#: Values of FAULT with which runs of Tanh fail.
FAILURES = (
    "error",
    "crash",
    "crash_of_fifth_run",
    "crash_of_repeated_shape",
    "wrong_first_run",
    "wrong_second_run",
)


class _Failing(Program):
    """A program whose runs fail as one of `FAILURES`."""

    def __init__(self, failure: str, program: Program) -> None:
        self._failure = failure
        self._program = program
        self._shapes: list[tuple[int, ...]] = []

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        if self._failure == "error":
            raise ValueError("no Tanh today")
        shape = inputs[0].shape
        if (
            self._failure == "crash"
            or (self._failure == "crash_of_fifth_run" and len(self._shapes) == 4)
            or (
                self._failure == "crash_of_repeated_shape"
                and shape in self._shapes
                and shape != self._shapes[-1]
            )
        ):
            os.kill(os.getpid(), signal.SIGSEGV)
        self._shapes.append(shape)
        outputs = self._program.run(inputs, context)
        is_first = len(self._shapes) == 1
        if (self._failure == "wrong_first_run" and is_first) or (
            self._failure == "wrong_second_run" and len(self._shapes) > 4
        ):
            return [value + np.float32(0.5) for value in outputs]
        return outputs


class FaultyVendor(ORTPlugin):
    """ONNX Runtime with the wrong kernel FAULT, or with runs of Tanh that fail as FAULT."""

    name: ClassVar[str] = "VENDOR"
    properties: ClassVar[PropertyTable] = ORTPlugin.properties.extended(
        Property("FAULT", str, "", True, "The wrong kernel.", shapes_result=True)
    )

    def compile(self, model: Model, config: Config) -> Program:
        """Compile the model with the wrong kernel."""
        if config["FAULT"] in FAILURES and any(n.op_type == "Tanh" for n in model.nodes):
            return _Failing(config["FAULT"], super().compile(model, config))
        fault = FAULTS.get(config["FAULT"])
        return super().compile(_with_fault(model, fault) if fault else model, config)


def _with_fault(model: Model, fault: Fault) -> Model:
    nodes: list[Node] = []
    for node in model.nodes:
        if node.op_type != fault.op_type or not fault.when(node, model):
            nodes.append(node)
            continue
        for number, proto in enumerate(fault.rewrite(node, model)):
            name = node.name if number == 0 else f"{node.name}_{number}"
            nodes.append(Node.from_proto(proto, name=name, covers=(node.name,)))
    constants = dict(model.constants)
    for node in list(nodes):
        if node.is_constant:  # as `transform_model` lifts them
            constants[node.outputs[0]] = Constant(node.outputs[0], node.attributes["value"])
            nodes.remove(node)
    return model.replace(nodes=nodes, constants=constants)


class SecondVendor(ORTPlugin):
    """Another vendor, whose results are right."""

    name: ClassVar[str] = "SECOND"


class AgreeingVendor(FaultyVendor):
    """Another vendor with the same fault."""

    name: ClassVar[str] = "AGREEING"


def small() -> onnx.ModelProto:
    """Return x -> Relu -> Tanh -> Neg -> y."""
    return parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        small (float[N, 3] x) => (float[N, 3] y) {
            [first] a = Relu(x)
            [middle] b = Tanh(a)
            [last] y = Neg(b)
        }"""
    )


def small_output(x: np.ndarray) -> np.ndarray:
    """Return the right output of `small`."""
    return np.asarray(-np.tanh(np.maximum(x, 0)))
