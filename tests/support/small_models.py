"""Small models, and their runs on the CPU device and on oracles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.reader import read_model
from hetero.devices.request.device_model import DeviceModel


def flattening() -> onnx.ModelProto:
    """Return the last nodes of a text recogniser of opset 11: Reshape with a computed size."""
    return onnx.parser.parse_model(
        """<ir_version: 6, opset_import: ["": 11]> flattening (float[N,2,3] x) => (float[N,M] y)
        <int64[1] z = {0}, int64[1] e = {1}, int64[1] r = {-1}> {
            s = Shape(x) i = Cast <to = 6> (s) n = Slice(i, z, e) m = Cast <to = 7> (n)
            t = Concat <axis = 0> (m, r) f = Reshape(x, t) a = Neg(f) y = Relu(a) }"""
    )


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """Return a model with inputs of the types and shapes of these arrays."""
    graph = helper.make_graph(
        list(nodes),
        "model",
        [value_info(name, np.asarray(value)) for name, value in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, version) for domain, version in (domains or {}).items()]
    return helper.make_model(
        graph,
        opset_imports=imports,
        functions=functions,
        ir_version=max(8, helper.find_min_ir_version_for(imports, ignore_unknown=True)),
    )


def value_info(name: str, value: Any) -> onnx.ValueInfoProto:
    """Return the type of a tensor, or of a sequence of tensors."""
    if isinstance(value, list):
        element = value_info("", value[0] if value else np.zeros(0, np.float32)).type
        element.tensor_type.ClearField("shape")
        return helper.make_value_info(name, helper.make_sequence_type_proto(element))
    array = np.asarray(value)
    is_text = array.dtype.kind in "OUS"
    code = onnx.TensorProto.STRING if is_text else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, code, array.shape)


def compile_cpu(model: onnx.ModelProto, **config: Any) -> DeviceModel:
    return CPUPlugin().compile_model(read_model(model), config)


def run_cpu(model: onnx.ModelProto, inputs: Mapping[str, Any], **config: Any) -> list[Any]:
    return list(compile_cpu(model, **config).run(list(inputs.values())))


def run_reference(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    return list(ReferenceEvaluator(model).run(None, dict(inputs)))


def onnxruntime_session(model: bytes, *, as_written: bool = False) -> onnxruntime.InferenceSession:
    """Return ONNX Runtime's session of a model; `as_written` disables optimisations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if as_written:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    return list(onnxruntime_session(model.SerializeToString()).run(None, dict(inputs)))
