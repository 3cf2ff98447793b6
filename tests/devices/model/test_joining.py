"""Joined models against the same models run one after the other by ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import hetero
from hetero.devices.errors import (
    ArgumentError,
    TensorNameError,
    TensorShapeError,
    TensorTypeError,
)
from hetero.devices.model.joining import join_models
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model

DETECTOR = """<ir_version: 8, opset_import: ["" : 15]>
detector (float[N, 3] image, bool flag) => (float[N, 2] boxes, float[N, 3] h)
<float[3, 2] w = {1, 2, 3, 4, 5, 6}, float two = {2}> {
  boxes = MatMul(image, w)
  h = If(flag) <then_branch = t () => (float[N, 3] a) { a = Mul(image, two) },
                else_branch = e () => (float[N, 3] b) { b = Relu(image) }>
}"""
CLASSIFIER = """<ir_version: 9, opset_import: ["" : 17]>
classifier (float[B, 2] rois) => (float[B, 2] scores) {
  h = Tanh(rois)
  scores = Softmax(h)
}"""
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def models() -> list[Model]:
    return [read_model(onnx.parser.parse_model(text)) for text in (DETECTOR, CLASSIFIER)]


def run(model: Model, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model.to_bytes(), providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("executor_device", ["CPU", "HETERO:ORT,CPU"])
def test_joined_models_equal_a_sequence_of_runs(flag, executor_device):
    detector, classifier = models()
    inputs = {"image": X, "flag": np.array(flag)}
    first = run(detector, **inputs)
    expected = {"h": first["h"], **run(classifier, rois=first["boxes"])}
    with hetero.Core("inprocess") as core:
        joined = core.read_model([detector, classifier], wires={"boxes": "rois"})
        pins = {"classifier/*": "CPU"}
        with core.compile_model(joined, executor_device, affinity=pins) as compiled:
            results = compiled(inputs).by_name()
    assert list(results) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(results[name], value, rtol=1e-5)


def test_one_output_can_have_several_wires():
    detector, classifier = models()
    twice = [detector, classifier, classifier]
    wires = {"boxes": ["classifier/rois", "classifier.2/rois"]}
    joined = join_models(twice, wires)
    outputs = run(joined, image=X, flag=np.array(True))
    scores = run(classifier, rois=run(detector, image=X, flag=np.array(True))["boxes"])["scores"]
    assert list(outputs) == ["h", "classifier/scores", "classifier.2/scores"]
    for name in ("classifier/scores", "classifier.2/scores"):
        np.testing.assert_allclose(outputs[name], scores, rtol=1e-6)


def test_models_without_wires_keep_all_ports():
    joined = join_models(models(), {})
    assert [port.name for port in joined.inputs] == ["image", "flag", "rois"]
    assert [port.name for port in joined.outputs] == ["boxes", "h", "scores"]


@pytest.mark.parametrize(
    ("classifier", "wires", "error", "message"),
    [
        (CLASSIFIER, {"box": "rois"}, TensorNameError, "no output is named 'box'.*'boxes'"),
        (CLASSIFIER, {"boxes": "roi"}, TensorNameError, "no input is named 'roi'.*'rois'"),
        (
            CLASSIFIER,
            {"h": "rois"},
            TensorShapeError,
            r"float\)\[B, 2\], got tensor\(float\)\[N, 3\]",
        ),
        (CLASSIFIER, {"scores": "image"}, ArgumentError, "an output of an earlier model"),
        (
            CLASSIFIER.replace("float[B, 2] rois", "double[B, 2] rois"),
            {"boxes": "rois"},
            TensorTypeError,
            r"expected tensor\(double\)\[B, 2\], got .*Add a Cast",
        ),
        (CLASSIFIER.replace("scores", "boxes"), {"boxes": "rois"}, TensorNameError, "detector/box"),
    ],
)
def test_wires_that_do_not_fit_raise(classifier, wires, error, message):
    pair = [models()[0], read_model(onnx.parser.parse_model(classifier))]
    with pytest.raises(error, match=message):
        join_models(pair, wires)


def test_input_with_two_wires_raises():
    detector, classifier = models()
    with pytest.raises(ArgumentError, match="expected one wire to an input, got two"):
        join_models(
            [detector, detector, classifier],
            {"detector/boxes": "rois", "detector.2/boxes": "rois"},
        )


def test_wires_of_a_single_model_raise(tmp_path):
    with hetero.Core("inprocess") as core:
        with pytest.raises(ArgumentError, match="expected a list of models"):
            core.read_model(models()[0], wires={"boxes": "rois"})
        with pytest.raises(ArgumentError, match="at least 2 models, got 1"):
            core.read_model([models()[0]])
