"""What a program gives out is checked against the ports before anybody reads it."""

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


class Giving(Plugin):
    """Gives what it is told."""

    name = "GIVING"
    given: object = None

    def refuse(self, node, model, config):
        return None

    def compile(self, model, config):
        program = type("Given", (Program,), {"run": lambda *_: self.given})
        return program()


@pytest.fixture
def giving(monkeypatch):
    def give(*values):
        monkeypatch.setattr(Giving, "given", values)
        return Giving().compile_model(MODEL)({"x": np.zeros((2, 3), np.float32)})

    return give


@pytest.mark.parametrize(
    ("value", "said"),
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
def test_another_type_rank_or_size_is_an_error_that_says_where(giving, value, said):
    wanted = rf"GIVING.0 gave {said} as output 'y', which node 'y' \(Relu\) makes"
    with pytest.raises(InferenceError, match=wanted) as caught:
        giving(value, TEXT)
    assert "the types and shapes of its inputs it is tensor(float)[N, 3]" in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.device, again.port, again.operator) == ("GIVING.0", "y", "y")


def test_one_output_less_is_an_error(giving):
    with pytest.raises(InferenceError, match="gave 1 outputs for model 'g', which has 2"):
        giving(np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("text", [TEXT, np.array(["1"]), np.array([b"1"], object)])
def test_open_sizes_and_every_kind_of_text_are_taken(giving, text):
    assert giving(np.ones((5, 3), np.float32), text)["y"].shape == (5, 3)


def test_outputs_share_memory_with_nothing(giving):
    frozen = np.broadcast_to(np.float32(1), (2, 3))
    results = giving(frozen, TEXT)
    results["y"][0] = 7
    assert frozen[0, 0] == 1


def test_a_stage_that_gives_another_type_fails_there_and_not_in_the_next(monkeypatch):
    """The next stage would have blamed the caller's input."""
    model = read_model(
        parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] z) '
            "{y = Relu(x) z = Neg(y)}"
        )
    )
    monkeypatch.setattr(Giving, "given", [np.zeros(2, np.int64)])
    with hetero.Core(executor="inprocess", plugins=[Giving]) as core:
        pins = {"y": "GIVING", "z": "CPU"}
        compiled = core.compile_model(model, "HETERO:GIVING,CPU", affinity=pins)
        with pytest.raises(InferenceError, match=r"stage 0 on device GIVING.*gave int64\[2\]"):
            compiled({"x": np.zeros(2, np.float32)})


ALIKE = read_model(
    parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 3] x) => '
        "(float[N, 3] y, float[M, 3] z) {y = Relu(x) z = Relu(y)}"
    )
)


class Left(RemoteTensor):
    """A tensor that stays on the device."""

    device = "GIVING.0"

    def __init__(self, *shape):
        self.shape, self.dtype = shape, np.dtype(np.float32)

    def to_host(self):
        raise AssertionError

    copy_from = to_host


def test_a_tensor_on_the_device_is_checked_beside_one_that_fits(monkeypatch):
    x, first = {"x": np.zeros((2, 3), np.float32)}, Left(2, 3)
    for second in (Left(2, 3), Left(2, 4), Left(3)):
        monkeypatch.setattr(Giving, "given", (first, second))
        compiled = Giving().compile_model(ALIKE)
        if second.shape == (2, 3):
            assert list(compiled.run(list(x.values()))) == [first, second]
        else:
            with pytest.raises(InferenceError, match="as output 'z'"):
                compiled.run(list(x.values()))
