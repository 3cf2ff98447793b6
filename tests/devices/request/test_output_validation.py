"""Validation of a program's outputs: types, shapes, counts and shared memory."""

import pickle

import numpy as np
import pytest
from onnx import parser

import hetero
from hetero.devices import Plugin, Program, read_model
from hetero.devices.cpu.plugin import CPUPlugin
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
    returns_new_memory = False

    def refuse(self, node, model, config):
        return None

    def compile(self, model, config):
        program = type("FixedProgram", (Program,), {"run": lambda *_: self.outputs})()
        program.returns_new_memory = self.returns_new_memory
        return program


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


@pytest.mark.parametrize("returns_new_memory", [False, True])
def test_each_new_shape_and_type_is_checked(monkeypatch, returns_new_memory):
    monkeypatch.setattr(FixedOutputsPlugin, "returns_new_memory", returns_new_memory)
    compiled, x = FixedOutputsPlugin().compile_model(MODEL), np.zeros((2, 3), np.float32)
    for width, is_valid in ((3, True), (4, False), (3, True), (2, False)):
        outputs = (np.zeros((2, width), np.float32), TEXT)
        monkeypatch.setattr(FixedOutputsPlugin, "outputs", outputs)
        if is_valid:
            assert compiled({"x": x})["y"].shape == (2, 3)
        else:
            with pytest.raises(InferenceError, match=rf"got float32\[2, {width}\]"):
                compiled({"x": x})
    monkeypatch.setattr(FixedOutputsPlugin, "outputs", (np.zeros((2, 3), np.int32), TEXT))
    with pytest.raises(InferenceError, match=r"got int32\[2, 3\]"):
        compiled({"x": x})


def test_each_output_is_checked(monkeypatch):
    model = read_model(
        parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[3] x) => (float[3] y, float[3] z) '
            "{y = Relu(x) z = Neg(x)}"
        )
    )
    monkeypatch.setattr(FixedOutputsPlugin, "returns_new_memory", True)
    compiled, x = FixedOutputsPlugin().compile_model(model), np.zeros(3, np.float32)
    monkeypatch.setattr(FixedOutputsPlugin, "outputs", (x + 1, x + 2))
    results = compiled({"x": x})
    assert [results["y"].tolist(), results["z"].tolist()] == [[1, 1, 1], [2, 2, 2]]
    monkeypatch.setattr(FixedOutputsPlugin, "outputs", (x + 1, np.zeros(4, np.float32)))
    with pytest.raises(InferenceError, match=r"output 'z' .*got float32\[4\]"):
        compiled({"x": x})
    for value, actual in ((None, "None"), ([x], r"\[array"), (x.astype(int), r"int64\[3\]")):
        monkeypatch.setattr(FixedOutputsPlugin, "outputs", (x + 1, x + 2))
        compiled({"x": x})
        monkeypatch.setattr(FixedOutputsPlugin, "outputs", (x + 1, value))
        with pytest.raises(InferenceError, match=rf"output 'z' .*got {actual}"):
            compiled({"x": x})


def test_missing_output_raises(run_with_outputs):
    with pytest.raises(InferenceError, match=r"expected 2 outputs of model 'g' .* got 1"):
        run_with_outputs(np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("text", [TEXT, np.array(["1"]), np.array([b"1"], object)])
def test_text_dtypes_are_valid(run_with_outputs, text):
    assert run_with_outputs(np.ones((2, 3), np.float32), text)["y"].shape == (2, 3)


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


def test_one_symbol_has_one_size_in_a_run(monkeypatch):
    x = np.zeros((2, 3), np.float32)
    compiled = FixedOutputsPlugin().compile_model(TWO_OUTPUTS)
    for first, second, output in ((2, 2, ""), (1, 2, "y"), (2, 1, "z"), (3, 3, "y")):
        shapes = ((first, 3), (second, 3))
        monkeypatch.setattr(compiled._program.__class__, "run", lambda *_, s=shapes: _zeros(*s))
        if not output:
            assert [value.shape for value in compiled.run([x])] == [(2, 3), (2, 3)]
        else:
            message = rf"output '{output}'.*expected tensor\(float\)\[N, 3\] with one N"
            with pytest.raises(InferenceError, match=message):
                compiled.run([x])


@pytest.mark.parametrize("shape", [(0, 0), (0,), (0, 3)])
def test_empty_output_gets_the_sizes_of_the_model(monkeypatch, shape):
    compiled = FixedOutputsPlugin().compile_model(TWO_OUTPUTS)
    monkeypatch.setattr(FixedOutputsPlugin, "outputs", _zeros((0, 3), shape))
    for _ in range(2):
        results = compiled.run([np.zeros((0, 3), np.float32)])
        assert [value.shape for value in results] == [(0, 3), (0, 3)]
    with pytest.raises(InferenceError, match="output 'y'"):
        compiled.run([np.zeros((2, 3), np.float32)])


def _zeros(*shapes):
    return tuple(np.zeros(shape, np.float32) for shape in shapes)


def test_broadcast_of_a_wrong_stage_is_an_error():
    """A stage that returns one row for several would be spread by the next stage's Add."""

    class OneRowProgram(Program):
        def run(self, inputs, context):
            return [np.tanh(inputs[0][:1])]

    class OneRowPlugin(Plugin):
        name = "ONE_ROW"

        def refuse(self, node, model, config):
            return None

        def compile(self, model, config):
            return OneRowProgram()

    model = read_model(
        parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] z) '
            "{y = Tanh(x) z = Add(x, y)}"
        )
    )
    with hetero.Core(executor="inprocess", plugins=[OneRowPlugin]) as core:
        pins = {"y": "ONE_ROW", "z": "CPU"}
        compiled = core.compile_model(model, "HETERO:ONE_ROW,CPU", {"VERIFY": "NO"}, affinity=pins)
        assert compiled({"x": np.ones((1, 4), np.float32)})["z"].shape == (1, 4)
        with pytest.raises(InferenceError, match=r"device ONE_ROW.*with one n .*got .*\[1, 4\]"):
            compiled({"x": np.ones((3, 4), np.float32)})


def test_inputs_that_disagree_about_a_symbol_prove_nothing():
    model = read_model(
        parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[n] a, float[n] b) => (float[n] y) '
            "{y = Add(a, b)}"
        )
    )
    compiled = CPUPlugin().compile_model(model)
    assert compiled({"a": np.ones(1, np.float32), "b": np.ones(4, np.float32)})["y"].shape == (4,)
