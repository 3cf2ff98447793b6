"""Plain ONNX Runtime sessions as a baseline of the ORT device, and models for both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from hetero.devices.model.light_models import light_model_inputs, light_model_path
from hetero.devices.model.reader import read_model

#: Models so small that only the overhead of a request is measured.
TINY = {
    "where": "where (bool[n] c, float[n] x) => (float[n] y) { y = Where(c, x, x) }",
    "nonzero": "nonzero (float[n] x) => (int64[1, m] y) { y = NonZero(x) }",
    "add": "add (float[n] x) => (float[n] y) { y = Add(x, x) }",
}
_LENGTH = 16


def parsed(graph: str) -> onnx.ModelProto:
    """Return the model of a graph in ONNX's text format."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')


def source(name: str) -> onnx.ModelProto:
    """Return a tiny model or a light model."""
    return parsed(TINY[name]) if name in TINY else onnx.load(light_model_path(name))


def light_inputs(name: str) -> dict[str, np.ndarray]:
    """Return inputs for a model."""
    if name not in TINY:
        return dict(light_model_inputs(read_model(f"light:{name}")))
    return {port.name: np.ones(_LENGTH, port.dtype) for port in read_model(source(name)).inputs}


def bare_session(model: onnx.ModelProto | Path, threads: int) -> onnxruntime.InferenceSession:
    """Return a plain session of a model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    source_model = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source_model, options, providers=["CPUExecutionProvider"])
