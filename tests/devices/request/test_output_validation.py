"""Validation of a program's outputs: types, shapes, counts and shared memory."""

import pickle

import numpy as np
import pytest
from onnx import parser

import hetero
from hetero.devices import Plugin, Program, read_model
from hetero.devices.errors import InferenceError
from hetero.devices.plugin.remote_memory import RemoteTensor

MODEL = read_model(
    parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 3] x) => (float[N, 3] y, string[1] s)'
        " <float[1] one = {1.0}> {y = Relu(x) s = Cast<to = 8>(one)}"
    )
)
TEXT = np.array(["1"], object)


class FixedOutputsPlugin(Plugin):
    """Returns fixed outputs, whatever the model computes."""

    name = "FIXED"
    outputs: object = None

    def refuse(self, node, model, config):
        return None

    def compile(self, model, config):
        program = type("FixedProgram", (Program,), {"run": lambda *_: self.outputs})
        return program()


@pytest.fixture
def run_with_outputs(monkeypatch):
    """Return a function that runs the model with fixed outputs."""

    def run(*values):
        monkeypatch.setattr(FixedOutputsPlugin, "outputs", values)
        return FixedOutputsPlugin().compile_model(MODEL)({"x": np.zeros((2, 3), np.float32)})

    return run


@pytest.mark.parametrize(
    ("value", "actual"),
    [
        (np.zeros((2, 3)), r"float64\[2, 3\]"),
        (np.zeros((2, 3), np.int32), r"int32\[2, 3\]"),
        (np.zeros((2, 4), np.float32), r"float32\[2, 4\]"),
        (np.zeros(3, np.float32), r"float32\[3\]"),
        (np.float32(3), r"float32\[\]"),
        ([0.0], r"\[0\.0\]"),
        (None, "None"),
    ],
)
def test_output_of_wrong_type_or_shape_raises(run_with_outputs, value, actual):
    message = rf"FIXED.0, model 'g', output 'y' .computed by node 'y', Relu.*got {actual}"
    with pytest.raises(InferenceError, match=message) as caught:
        run_with_outputs(value, TEXT)
    assert "expected tensor(float)[N, 3] by the types and shapes of its inputs" in str(caught.value)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.device, error.port, error.operator) == ("FIXED.0", "y", "y")


def test_missing_output_raises(run_with_outputs):
    with pytest.raises(InferenceError, match=r"expected 2 outputs of model 'g' .* got 1"):
        run_with_outputs(np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("text", [TEXT, np.array(["1"]), np.array([b"1"], object)])
def test_dynamic_sizes_and_all_text_dtypes_are_valid(run_with_outputs, text):
    assert run_with_outputs(np.ones((5, 3), np.float32), text)["y"].shape == (5, 3)


def test_read_only_output_is_copied(run_with_outputs):
    read_only = np.broadcast_to(np.float32(1), (2, 3))
    results = run_with_outputs(read_only, TEXT)
    results["y"][0] = 7
    assert read_only[0, 0] == 1


def test_error_names_the_stage_with_the_wrong_output(monkeypatch):
    """Without validation, the next stage would report a wrong input of the caller."""
    model = read_model(
        parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] z) '
            "{y = Relu(x) z = Neg(y)}"
        )
    )
    monkeypatch.setattr(FixedOutputsPlugin, "outputs", [np.zeros(2, np.int64)])
    with hetero.Core(executor="inprocess", plugins=[FixedOutputsPlugin]) as core:
        pins = {"y": "FIXED", "z": "CPU"}
        compiled = core.compile_model(model, "HETERO:FIXED,CPU", affinity=pins)
        with pytest.raises(InferenceError, match=r"stage 0 on device FIXED.*got int64\[2\]"):
            compiled({"x": np.zeros(2, np.float32)})


TWO_OUTPUTS = read_model(
    parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 3] x) => '
        "(float[N, 3] y, float[M, 3] z) {y = Relu(x) z = Relu(y)}"
    )
)


class DeviceTensor(RemoteTensor):
    """A tensor in device memory, whose contents must not be read."""

    device = "FIXED.0"

    def __init__(self, *shape):
        self.shape, self.dtype = shape, np.dtype(np.float32)

    def to_host(self):
        raise AssertionError

    copy_from = to_host


def test_device_tensor_is_checked_without_a_copy(monkeypatch):
    x, first = np.zeros((2, 3), np.float32), DeviceTensor(2, 3)
    for second in (DeviceTensor(2, 3), DeviceTensor(2, 4), DeviceTensor(3)):
        monkeypatch.setattr(FixedOutputsPlugin, "outputs", (first, second))
        compiled = FixedOutputsPlugin().compile_model(TWO_OUTPUTS)
        if second.shape == (2, 3):
            assert list(compiled.run([x])) == [first, second]
        else:
            with pytest.raises(InferenceError, match="output 'z'"):
                compiled.run([x])
