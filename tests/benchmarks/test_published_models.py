"""Outcomes of trials with published models: right, refused, explained by the vendor, or wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from benchmarks.published_models.saturation import explains
from benchmarks.published_models.trial import attempt, differs
from benchmarks.published_models.trial import run_reference as run


def saved(folder: Path, body: str) -> str:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "a.b" : 1]> g (float[n, m] x) => (float[n, k] y) '
        + body
    )
    onnx.save(model, folder / "model.onnx")
    return str(folder / "model.onnx")


@pytest.mark.parametrize("way", ["CPU", "random"])
def test_attempt_right_model(tmp_path, way):
    assert attempt(saved(tmp_path, "{a = Relu(x) y = Exp(a)}"), way)["outcome"] == "right"


def test_attempt_model_unknown_to_onnxruntime(tmp_path):
    assert attempt(saved(tmp_path, "{y = a.b.Odd(x)}"), "CPU")["outcome"] == "no reference"


def test_explains_saturation_only(tmp_path):
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1, 64] x) => (int32[1, 4] y) '
        "{q, s, z = DynamicQuantizeLinear(x) y = MatMulInteger(q, w, z)}"
    )
    weights = np.random.default_rng(0).integers(-128, 128, (64, 4)).astype(np.int8)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = str(tmp_path / "model.onnx")
    onnx.save(proto, path)
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 64)).astype(np.float32)}
    assert "weights of 7 bits" in explains(path, feeds, run, run)
    assert not explains(path, feeds, lambda *arguments: [2 * run(*arguments)[0]], run)
    assert not explains(path, feeds, lambda *arguments: [run(*arguments)[0] * np.nan], run)
    assert not explains(saved(tmp_path, "{y = Relu(x)}"), feeds, run, run)


def test_differs_by_value_dtype_and_shape():
    x = np.linspace(-1, 1, 100, dtype=np.float32)
    assert not differs(x + 1e-5, x)
    assert "numbers differ" in differs(x + 0.1, x)
    assert "float64" in differs(x.astype(float), x)
    assert "not float32[50, 2]" in differs(x, x.reshape(50, 2))
