"""Bare ONNX Runtime sessions, the peer of the ORT device, and the models that both run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from hetero.devices.model.light_models import light_model_inputs, light_model_path
from hetero.devices.model.reader import read_model

#: Models so small that a request is nothing but what surrounds it.
TINY = {
    "where": "where (bool[n] c, float[n] x) => (float[n] y) { y = Where(c, x, x) }",
    "nonzero": "nonzero (float[n] x) => (int64[1, m] y) { y = NonZero(x) }",
    "add": "add (float[n] x) => (float[n] y) { y = Add(x, x) }",
}
_LENGTH = 16


def parsed(graph: str) -> onnx.ModelProto:
    """Return the model of a graph in ONNX's text form."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')


def source(name: str) -> onnx.ModelProto:
    """Return a tiny model, or a light one."""
    return parsed(TINY[name]) if name in TINY else onnx.load(light_model_path(name))


def light_inputs(name: str) -> dict[str, np.ndarray]:
    """Return a request of a model."""
    if name not in TINY:
        return dict(light_model_inputs(read_model(f"light:{name}")))
    return {port.name: np.ones(_LENGTH, port.dtype) for port in read_model(source(name)).inputs}


def bare_session(model: onnx.ModelProto | Path, threads: int) -> onnxruntime.InferenceSession:
    """Return a session of a model as one would make it by hand."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    given = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
