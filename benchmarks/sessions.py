"""Bare ONNX Runtime sessions, the peer of the ORT device, and the models that both run."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from devices.model.light import light_model_inputs, light_model_path
from devices.model.reader import read_model

#: Models so small that a request is nothing but what surrounds it.
TINY = {
    "where": (("Where", ("c", "x", "x"), TensorProto.FLOAT), {"c": np.bool_, "x": np.float32}),
    "nonzero": (("NonZero", ("x",), TensorProto.INT64), {"x": np.float32}),
    "add": (("Add", ("x", "x"), TensorProto.FLOAT), {"x": np.float32}),
}
_LENGTH = 16


def source(name: str) -> onnx.ModelProto:
    """Return a tiny model, or a light one."""
    if name not in TINY:
        return onnx.load(light_model_path(name))
    (operator, takes, gives), inputs = TINY[name]
    ports = [
        helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), ["n"])
        for key, kind in inputs.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(operator, list(takes), ["y"], name=name)],
        name,
        ports,
        [helper.make_tensor_value_info("y", gives, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def light_inputs(name: str) -> dict[str, np.ndarray]:
    """Return a request of a model."""
    if name not in TINY:
        return dict(light_model_inputs(read_model(f"light:{name}")))
    return {key: np.ones(_LENGTH, kind) for key, kind in TINY[name][1].items()}


def bare_session(name: str, threads: int) -> onnxruntime.InferenceSession:
    """Return a session of a model as one would make it by hand."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(
        source(name).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
