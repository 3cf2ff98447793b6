"""Tensors of a request over several runs, compared with a dictionary of expected values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from hetero.devices.errors import (
    ArgumentTypeError,
    TensorError,
    TensorNameError,
    TensorShapeError,
    TensorTypeError,
)
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.request.request_tensors import RequestTensors
from hetero.devices.request.tensor import Tensor

X, Z = (TensorSpec(name, "tensor(float)", ("N", 2)) for name in "xz")
OPTIONAL = TensorSpec("o", "tensor(float)", (2,))
Y = TensorSpec("y", "tensor(float)", ("N", 2))


def array(number: float, rows: int = 1) -> np.ndarray:
    return np.full((rows, 2), number, np.float32)


NAMES = st.sampled_from("xz")
NUMBERS = st.integers(1, 9).map(float)
ROWS = st.sampled_from([1, 1, 1, 2])


class InputSequences(RuleBasedStateMachine):
    """Inputs that are set, accessed and passed; expected by name: its origin and its value."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors = RequestTensors((X, Z), (Y,), (OPTIONAL,))
        self.ports = {"x": X, "z": Z}
        self.expected: dict[str, tuple[str, np.ndarray]] = {}

    @rule(name=NAMES, number=NUMBERS, rows=ROWS, wrap=st.booleans())
    def set_input(self, name: str, number: float, rows: int, wrap: bool) -> None:
        value = array(number, rows)
        self.tensors.set(name, Tensor(value, shared_memory=True) if wrap else value)
        self.expected[name] = ("user", value)

    @rule(name=NAMES, numbers=st.lists(NUMBERS, min_size=2, max_size=3))
    def set_batch(self, name: str, numbers: list[float]) -> None:
        self.tensors.set_batch(self.ports[name], [array(n) for n in numbers])
        self.expected[name] = ("batch", np.concatenate([array(n) for n in numbers]))

    @rule(name=NAMES)
    def access(self, name: str) -> None:
        origin, value = self.expected.get(name, ("", np.zeros((0, 2), np.float32)))
        if origin == "batch":
            with pytest.raises(TensorError, match=f"input '{name}'"):
                self.tensors.get(name)
            return
        tensor = self.tensors.get(name)
        assert tensor is self.tensors.get(name)
        if origin:
            np.testing.assert_array_equal(tensor.data, value)
            self.expected[name] = ("user", tensor.data)
        else:
            tensor.replace(value := array(0.5))
            self.expected[name] = ("user", value)

    @rule(
        values=st.dictionaries(NAMES, st.tuples(NUMBERS, ROWS)), copy=st.booleans(), o=st.booleans()
    )
    def run(self, values: dict[str, tuple[float, int]], copy: bool, o: bool) -> None:
        feeds: dict[str, Any] = {name: array(*value) for name, value in values.items()}
        if o:
            feeds["o"] = np.array([7, 8], np.float32)
        self.check_run(feeds, feeds, copy=copy)

    @rule()
    def run_again(self) -> None:
        self.check_run(None, {}, copy=True)

    @rule(first=NUMBERS, second=NUMBERS)
    def run_with_list(self, first: float, second: float) -> None:
        values = [array(first), array(second)]
        self.check_run(values, {"x": values[0], "z": values[1]}, copy=True)

    def check_run(self, inputs: Any, feeds: dict[str, Any], *, copy: bool) -> None:
        wanted = dict(feeds)
        for name in ("x", "z", "o"):
            origin, value = self.expected.get(name, ("", None))
            if name not in feeds and (origin in ("user", "batch") or (origin and inputs is None)):
                wanted[name] = value
        missing = [name for name in "xz" if name not in wanted]
        if missing:
            with pytest.raises(TensorNameError) as caught:
                self.tensors.collect(inputs, copy=copy)
            assert caught.value.data["missing"] == missing
            return
        result = self.tensors.collect(inputs, copy=copy)
        assert result.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(result[name], value)
            if name in feeds:
                assert (result[name] is feeds[name]) == (not copy)
                self.expected[name] = ("last", result[name])

    @precondition(lambda self: self.expected)
    @rule(name=NAMES)
    def reject(self, name: str) -> None:
        for bad, error in (
            (np.zeros((1, 3), np.float32), TensorShapeError),
            (np.zeros((1, 2), np.float64), TensorTypeError),
        ):
            with pytest.raises(error, match=f"'{name}'"):
                self.tensors.set(name, bad)


TestInputSequences = InputSequences.TestCase
TestInputSequences.settings = settings(max_examples=20, stateful_step_count=12)


def one_input(spec: TensorSpec = X) -> RequestTensors:
    return RequestTensors((spec,), (Y,))


def test_input_of_a_run_replaces_a_set_tensor():
    tensors = RequestTensors((X, Z), (Y,))
    tensors.set("x", array(1))
    tensors.set("z", array(2))
    tensors.collect({"x": array(3)}, copy=True)
    with pytest.raises(TensorNameError) as caught:
        tensors.collect({"z": array(4)}, copy=True)
    assert caught.value.data["missing"] == ["x"]
    np.testing.assert_array_equal(tensors.collect(None, copy=True)["x"], array(3))


def test_new_layouts_are_checked_and_equal_ones_reused():
    tensors = one_input()
    for number in (1, 2, 3):
        for inputs in (array(number), {"x": array(number)}):
            np.testing.assert_array_equal(tensors.collect(inputs, copy=True)["x"], array(number))
    assert tensors.collect(array(4, rows=3), copy=True)["x"].shape == (3, 2)
    with pytest.raises(TensorShapeError):
        tensors.collect(np.zeros((1, 3), np.float32), copy=True)
    with pytest.raises(TensorTypeError):
        tensors.collect({"x": np.array([["a", "b"]])}, copy=True)
    with pytest.raises(TensorNameError):
        tensors.collect({"w": array(1)}, copy=True)
    transposed = np.asfortranarray(np.arange(4, dtype=np.float32).reshape(2, 2))
    tensors.collect(array(1, rows=2), copy=False)
    assert tensors.collect(transposed, copy=False)["x"].flags.c_contiguous


def test_copy_of_an_input_is_the_run_s_own():
    tensors = one_input()
    for _ in range(2):
        value = array(1)
        copied = tensors.collect(value, copy=True)["x"]
        value[:] = 9
        assert copied.max() == 1
        assert tensors.collect(value, copy=False)["x"] is value


def test_target_copies_large_inputs():
    large: list[np.ndarray] = []

    def copy_large(value: np.ndarray) -> np.ndarray:
        large.append(value)
        return value + 1

    tensors = RequestTensors((X,), (Y,), copy_large=copy_large)
    value = array(1, rows=2)
    wide = array(1, rows=10_000)
    tensors.collect(value, copy=True)  # the first run checks more
    assert tensors.collect(value, copy=True)["x"].max() == 1
    assert tensors.collect(wide, copy=False)["x"] is wide
    assert large == []
    assert tensors.collect(wide, copy=True)["x"].max() == 2
    assert large[0] is wide


def test_caller_may_extend_the_values_of_a_run():
    tensors = one_input()
    for _ in range(3):
        tensors.collect(array(1), copy=True)["state"] = array(5)
    assert tensors.collect(None, copy=True).keys() == {"x"}


def test_position_selects_no_tensor_by_name():
    tensors = RequestTensors((X, Z), (Y,))
    with pytest.raises(TensorNameError, match="got position 1"):
        tensors.get(1)  # type: ignore[arg-type]
    assert tensors.collect({0: array(1), "z": array(2)}, copy=True).keys() == {"x", "z"}


@pytest.mark.parametrize("inputs", ["text", b"text"])
def test_text_is_no_input(inputs):
    with pytest.raises(ArgumentTypeError, match="'x'"):
        one_input().collect(inputs, copy=True)
    with pytest.raises(ArgumentTypeError, match="'x'"):
        RequestTensors((X, Z), ()).collect(inputs, copy=True)
    text = one_input(TensorSpec("t", "tensor(string)", ()))
    assert text.collect(inputs, copy=True)["t"].item() == "text"


def test_too_many_inputs_in_a_list():
    with pytest.raises(TensorNameError, match=r"at most 2 inputs \('x', 'z'\), got 3"):
        RequestTensors((X, Z), ()).collect([array(1)] * 3, copy=True)


@pytest.mark.parametrize(
    "inputs", [[array(1)], [[[1, 1]]], [[1, 1]], (array(1),), [Tensor(array(1))]]
)
def test_list_for_one_input(inputs):
    np.testing.assert_array_equal(one_input().collect(inputs, copy=True)["x"], array(1))


# Batches.

LAYOUT = TensorSpec("x", "tensor(float)", (2, "N"), layout="CN")


def test_batch_along_the_axis_of_the_layout():
    tensors = one_input(LAYOUT)
    items = [np.full((2, 1), number, np.float32) for number in (1, 2, 3)]
    tensors.set_batch(LAYOUT, items)
    np.testing.assert_array_equal(tensors.collect(None, copy=True)["x"], [[1, 2, 3], [1, 2, 3]])


def test_batch_of_one_is_the_tensor_itself():
    tensors, tensor = one_input(), Tensor(array(1))
    tensors.set_batch(X, [tensor])
    assert tensors.get("x") is tensor


@pytest.mark.parametrize(
    ("port", "items", "message"),
    [
        (TensorSpec("x", "tensor(float)", ()), [np.float32(1)] * 2, "batch axis"),
        (TensorSpec("x", "tensor(float)", (2, 2), layout="CW"), [array(1)] * 2, "batch axis"),
        (TensorSpec("x", "seq(tensor(float))", None), [array(1)] * 2, "batch axis"),
        (TensorSpec("x", "tensor(float)", (3, 2)), [array(1)] * 2, "batch of 3 tensors, got 2"),
        (X, [], "batch of N tensors, got 0"),
        (X, [array(1), array(2, rows=2)], r"batch item 1 has shape \[2, 2\]"),
        (X, [array(1, rows=2), array(2, rows=2)], "size 1 on axis 0; batch item 0"),
        (X, [np.zeros((1, 3), np.float32)] * 2, "batch item 0 of input 'x'"),
    ],
)
def test_batch_that_does_not_fit(port, items, message):
    tensors = RequestTensors((port,), ())
    with pytest.raises(TensorShapeError, match=message):
        tensors.set_batch(port, items)


# Outputs.


def test_output_tensor_follows_each_run():
    tensors = one_input()
    tensors.store({"y": array(1)}, copy=True)
    tensor = tensors.get("y")
    assert tensor.data.max() == 1
    results = tensors.store({"y": array(2)}, copy=True)
    assert tensors.get("y") is tensor
    assert (tensor.data.max(), results["y"].max()) == (2, 2)
    assert not np.shares_memory(tensor.data, results["y"])
    memory = tensor.data
    shared = tensors.store({"y": array(3)}, copy=False)
    assert np.shares_memory(tensor.data, shared["y"])
    assert tensor.data is memory  # the caller may refer to it
    wider = tensors.store({"y": array(4, 3)}, copy=True)
    assert (tensor.data.shape, memory.max(), wider["y"].max()) == ((3, 2), 3, 4)
    assert not np.shares_memory(tensor.data, wider["y"])


@pytest.mark.parametrize("copy", [True, False])
def test_first_access_after_a_run_copies_on_request(copy):
    tensors = one_input()
    results = tensors.store({"y": array(1)}, copy=copy)
    assert np.shares_memory(tensors.get("y").data, results["y"]) == (not copy)


@pytest.mark.parametrize("copy", [True, False])
def test_output_memory_of_the_user_is_written(copy):
    tensors, memory = one_input(), array(0)
    tensors.set("y", memory)
    for number in (1, 2):
        results = tensors.store({"y": array(number)}, copy=copy)
        assert memory.max() == results["y"].max() == number
        assert np.shares_memory(results["y"], memory) == (not copy)
    with pytest.raises(TensorShapeError, match=r"output 'y' has shape \[2, 2\].*\[1, 2\]"):
        tensors.store({"y": array(3, rows=2)}, copy=copy)


def test_output_memory_must_be_writable_and_fit():
    tensors, memory = one_input(), array(0)
    memory.flags.writeable = False
    with pytest.raises(TensorTypeError, match="output 'y': expected a writable array"):
        tensors.set("y", memory)
    with pytest.raises(TensorTypeError, match="'y'"):
        tensors.set("y", np.zeros((1, 2), object))
    with pytest.raises(TensorTypeError, match="'y'"):
        tensors.set("y", np.zeros((1, 2), "datetime64[s]"))
    assert not tensors.may_have_resident_outputs


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.uint8, bool])
def test_output_converts_to_the_memory_s_element_type(dtype):
    tensors, memory = one_input(), np.zeros((1, 2), dtype)
    tensors.set("y", memory)
    result = tensors.store({"y": array(3.7)}, copy=False)["y"]
    assert result is memory
    assert memory.tolist() == array(3.7).astype(dtype).tolist()


def test_read_only_output_is_copied():
    output = array(1)
    output.flags.writeable = False
    assert one_input().store({"y": output}, copy=False)["y"].flags.writeable
    own = array(3)
    assert one_input().store({"y": own}, copy=False)["y"] is own


def test_outputs_that_stay_on_their_device():
    tensors = one_input()
    assert (tensors.may_have_resident_outputs, tensors.resident_outputs) == (False, ())
    tensors.keep_remote(Y, True)
    tensors.keep_remote(Y, True)
    assert (tensors.may_have_resident_outputs, tensors.resident_outputs) == (True, ("y",))
    tensors.keep_remote(Y, False)
    tensors.keep_remote(Y, False)
    assert (tensors.may_have_resident_outputs, tensors.resident_outputs) == (False, ())
    tensors.set("y", array(1))
    assert (tensors.may_have_resident_outputs, tensors.resident_outputs) == (True, ())
    sequence = TensorSpec("s", "seq(tensor(float))", None)
    with pytest.raises(TensorTypeError, match="output 's'"):
        RequestTensors((), (sequence,)).keep_remote(sequence, True)


def test_port_that_is_input_and_output():
    output = TensorSpec("x", "tensor(float)", ("M", 2))
    tensors = RequestTensors((X,), (output,))
    tensors.set("x", array(1))
    assert tensors.get("x").data.max() == 1
    tensors.store({"x": array(2)}, copy=True)
    assert tensors.get(output).data.max() == 2
    assert tensors.get(X).data.max() == 1


def test_fresh_tensors_have_the_ports_and_no_values():
    tensors = RequestTensors((X,), (Y,), (OPTIONAL,))
    tensors.set("x", array(1))
    fresh = tensors.new_tensors()
    with pytest.raises(TensorNameError):
        fresh.collect(None, copy=True)
    values = fresh.collect({"x": array(2), "o": np.zeros(2, np.float32)}, copy=True)
    assert values.keys() == {"x", "o"}
