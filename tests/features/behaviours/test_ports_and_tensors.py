"""Behaviours of ports, properties and tensors that applications of OpenVINO rely on.

The table in docs/behaviours.md lists them with the deliberate deviations.
"""

import ml_dtypes
import numpy as np
import pytest

import hetero
from hetero.devices import InferRequest, Tensor
from hetero.devices.conformance.plugin_subject import PluginSubject
from hetero.devices.errors import (
    ReadOnlyPropertyError,
    TensorError,
    TensorNameError,
    TensorShapeError,
    TensorTypeError,
    UnknownPropertyError,
    UnsupportedOperationError,
)
from hetero.devices.null.plugin import NullPlugin
from hetero.examples.third_party_plugin import DensePlugin
from tests.features.behaviours.controlled_device import DOUBLE
from tests.support.networks import PAIR, X, model

A, B = np.float32([1, 2]), np.float32([10, 20])


# Properties of a compiled model.


def test_unknown_property_raises(double):
    with pytest.raises(UnknownPropertyError, match="PERF_COUNT"):
        double.get_property("NO_SUCH")


def test_compile_option_overrides_only_its_model(subject):
    subject.set_property({"PERF_COUNT": True})
    assert subject.compile_model(DOUBLE, {"PERF_COUNT": False}).get_property("PERF_COUNT") is False
    assert subject.get_property("PERF_COUNT") is True
    assert subject.compile_model(DOUBLE).get_property("PERF_COUNT") is True


def test_set_property_of_compiled_model_raises(double):
    with pytest.raises(UnsupportedOperationError, match="compile_model"):
        double.set_property({"PERF_COUNT": True})
    with pytest.raises(UnknownPropertyError):
        double.set_property({"NO_SUCH": True})


def test_mandatory_properties(double):
    assert double.get_property("NETWORK_NAME") == "g"
    assert double.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") >= 1
    assert double.get_property("EXECUTION_DEVICES")[0] in ("DENSE", "DENSE.0")
    assert "PERF_COUNT" in double.get_property("SUPPORTED_PROPERTIES")


def test_compile_rejects_invalid_properties(subject):
    with pytest.raises(UnknownPropertyError):
        subject.compile_model(DOUBLE, {"NO_SUCH": 1})
    with pytest.raises(ReadOnlyPropertyError):
        subject.compile_model(DOUBLE, {"NETWORK_NAME": "other"})
    assert subject.compile_model(DOUBLE, {}).inputs == [*DOUBLE.inputs]


# Ports.


def test_port_without_key_needs_exactly_one(double, pair):
    assert double.input() == DOUBLE.inputs[0]
    with pytest.raises(TensorNameError, match="name or position of an"):
        pair.input()
    with pytest.raises(TensorNameError, match="name or position of an"):
        pair.output()


def test_port_index_error_names_index_and_count(pair):
    assert pair.output(1).name == "d"
    with pytest.raises(
        TensorNameError, match=r"input 2 is out of range; the model has 2 inputs: 'a', 'b'"
    ):
        pair.input(2)


def test_port_by_tensor_name_not_node_name(subject):
    compiled = subject.compile_model(model("(float[2] x) => (float[2] y) {[a_node] y = Relu(x)}"))
    assert compiled.output("y").name == "y"
    with pytest.raises(TensorNameError, match="a_node"):
        compiled.output("a_node")


# Tensors.


@pytest.mark.parametrize("name", ["x", "y"])
def test_set_tensor_of_none_raises(infer_request, name):
    with pytest.raises(TensorTypeError, match=name):
        infer_request.set_tensor(name, None)


@pytest.mark.parametrize("name", ["x", "y"])
def test_get_tensor_shares_memory_of_set_tensor(infer_request, name):
    array = np.zeros((4, 3), np.float32)
    infer_request.set_tensor(name, array)
    tensor = infer_request.get_tensor(name)
    assert np.shares_memory(tensor.data, array)
    assert (tensor.shape, tensor.element_type) == ((4, 3), "float")


def test_unknown_tensor_name_raises(infer_request):
    for action in (infer_request.get_tensor, lambda n: infer_request.set_tensor(n, X)):
        with pytest.raises(TensorNameError, match="'nope'"):
            action("nope")


def test_tensor_index_out_of_range_raises(infer_request):
    with pytest.raises(TensorNameError, match="input 7 is out of range"):
        infer_request.get_input_tensor(7)


def test_set_tensor_rejects_wrong_element_type(infer_request):
    with pytest.raises(TensorTypeError, match=r"astype\(numpy.float32\)"):
        infer_request.set_tensor("x", np.zeros((2, 3)))
    with pytest.raises(TensorTypeError, match="'y'"):
        infer_request.set_tensor("y", np.zeros((2, 3), object))


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("shape", [(2, 4), (3,), (1, 2, 3)])
def test_set_tensor_rejects_wrong_shape(infer_request, name, shape):
    with pytest.raises(TensorShapeError, match=name):
        infer_request.set_tensor(name, np.zeros(shape, np.float32))


def test_dynamic_dimension_accepts_any_size(infer_request):
    for rows in (1, 5, 0):
        infer_request.set_tensor("x", np.ones((rows, 3), np.float32))
        assert infer_request.infer()["y"].shape == (rows, 3)


def test_infer_names_missing_inputs(pair):
    request = pair.create_infer_request()
    with pytest.raises(TensorNameError, match=r"missing: 'a' .*'b'"):
        request.infer()
    # Writing to the request's tensors sets the inputs.
    request.get_input_tensor(0).data[:] = A
    request.get_tensor("b").data[:] = B
    np.testing.assert_array_equal(request.infer()["s"], A + B)


def test_infer_does_not_reuse_earlier_inputs(pair):
    request = pair.create_infer_request()
    request.infer({"a": A, "b": B})
    with pytest.raises(TensorNameError, match="'b'") as error:
        request.infer({"a": A})
    assert error.value.missing == ["b"]
    request.set_tensor("b", B)
    np.testing.assert_array_equal(request.infer({"a": A})["s"], A + B)
    np.testing.assert_array_equal(request.infer()["d"], A - B)


def test_tensor_object_follows_each_run(infer_request):
    before = infer_request.get_tensor("y")
    infer_request.infer({"x": X})
    assert infer_request.get_tensor("y") is before
    np.testing.assert_array_equal(before.data, X * 2)
    infer_request.infer({"x": X[:1]})
    assert before.shape == (1, 3)


def test_output_is_written_to_user_memory(infer_request):
    memory = np.zeros((2, 3), np.float32)
    infer_request.set_output_tensor(memory)
    results = infer_request.infer({"x": X}, share_outputs=True)
    np.testing.assert_array_equal(memory, X * 2)
    assert np.shares_memory(results["y"], memory)
    assert not np.shares_memory(infer_request.infer({"x": X})["y"], memory)
    with pytest.raises(TensorShapeError, match="its tensor was set"):
        infer_request.infer({"x": X[:1]})
    read_only = np.zeros((2, 3), np.float32)
    read_only.setflags(write=False)
    with pytest.raises(TensorTypeError, match="read-only"):
        infer_request.set_output_tensor(read_only)


def test_output_tensor_becomes_input_without_copy(double):
    first, second = double.create_infer_request(), double.create_infer_request()
    first.infer({"x": X})
    second.set_tensor("x", first.get_tensor("y"))
    assert second.get_tensor("x") is first.get_tensor("y")
    for _ in range(3):  # each request's output is the other's input
        second.infer()
        first.set_tensor("x", second.get_tensor("y"))
        first.infer()
    np.testing.assert_array_equal(first.results["y"], X * 2**7)


def test_concurrent_requests_are_independent(double):
    first, second = double.create_infer_request(), double.create_infer_request()
    first.set_tensor("x", X)
    second.set_tensor("x", X + 1)
    first.start_async()
    second.start_async()
    first.wait()
    second.wait()
    np.testing.assert_array_equal(first.results[0], X * 2)
    np.testing.assert_array_equal(second.results[0], (X + 1) * 2)


def test_strided_input_is_correct(infer_request):
    wide = np.arange(24, dtype=np.float32).reshape(4, 6)
    infer_request.set_tensor("x", wide[::2, ::2])
    np.testing.assert_array_equal(infer_request.infer()["y"], wide[::2, ::2] * 2)


@pytest.mark.parametrize("device", [NullPlugin, DensePlugin])
def test_remote_tensors_as_ports(device):
    context = NullPlugin().create_context()
    compiled = PluginSubject(device()).compile_model(DOUBLE)
    request = compiled.create_infer_request()
    source, sink = context.from_host(X), context.create_tensor("float32", (2, 3))
    with pytest.raises(UnsupportedOperationError, match="to_host"):
        _ = Tensor(source).data
    request.set_tensor("x", source)
    request.set_tensor("y", sink)
    expected = X * (2 if device is DensePlugin else 0)
    np.testing.assert_array_equal(request.infer()["y"], expected)
    np.testing.assert_array_equal(sink.to_host(), expected)
    with pytest.raises(TensorShapeError):
        request.set_tensor("x", context.create_tensor("float32", (2, 4)))
    with pytest.raises(TensorTypeError):
        request.set_tensor("y", context.create_tensor("int64", (2, 3)))


def test_set_tensors_joins_a_batch(infer_request):
    items = [np.full((1, 3), i, np.float32) for i in range(3)]
    items[1] = np.zeros((1, 6), np.float32)[:, ::2]
    infer_request.set_tensors("x", items)
    items[1][:] = 7  # the request reads it at the run
    np.testing.assert_array_equal(infer_request.infer()["y"], np.concatenate(items) * 2)
    items[2][:] = 9
    np.testing.assert_array_equal(infer_request.infer()["y"][2], [18, 18, 18])


def test_batch_of_one_shares_memory(infer_request):
    item = X[:1].copy()
    infer_request.set_tensors("x", [item])
    assert np.shares_memory(infer_request.get_tensor("x").data, item)


def test_batched_input_has_no_tensor(infer_request):
    infer_request.set_tensors("x", [X[:1], X[1:]])
    with pytest.raises(TensorError, match="batch of 2"):
        infer_request.get_tensor("x")
    infer_request.set_tensor("x", X)
    assert np.shares_memory(infer_request.get_tensor("x").data, X)


def test_set_tensors_rejects_invalid_batches(infer_request, pair):
    one = X[:1]
    with pytest.raises(TensorShapeError, match="1 on axis 0"):
        infer_request.set_tensors("x", [X, X])
    with pytest.raises(TensorShapeError, match="batch item 1"):
        infer_request.set_tensors("x", [one, one[:, :2]])
    with pytest.raises(TensorTypeError, match="batch item 1"):
        infer_request.set_tensors("x", [one, one.astype("float64")])
    with pytest.raises(TensorNameError):
        infer_request.set_tensors("nope", [one, one])
    with pytest.raises(TensorNameError):  # an output
        infer_request.set_tensors("y", [one, one])
    with pytest.raises(TensorShapeError, match="a batch of 2 tensors"):
        pair.create_infer_request().set_tensors("a", [A[:1]] * 3)
    with pytest.raises(TensorShapeError):
        infer_request.set_tensors("x", [])


# Dynamic outputs.


def test_dynamic_output_is_empty_before_a_run(infer_request):
    tensor = infer_request.get_tensor("y")
    assert (tensor.size, tensor.element_type) == (0, "float")


def test_output_shape_follows_each_run(infer_request):
    for rows in (2, 5, 1):
        assert infer_request.infer({"x": np.ones((rows, 3), "float32")})["y"].shape == (rows, 3)


# Inputs in every form, and results.


@pytest.mark.parametrize(
    "inputs",
    [
        {"a": A, "b": B},
        {0: A, 1: B},
        {PAIR.inputs[0]: A, "b": B},
        [A, B],
        (A, B),
        {"a": [1, 2], "b": [10.0, 20]},
        {"a": A.astype("float64"), "b": B.astype("int32")},
        {"a": A.astype(">f4"), "b": B.astype(ml_dtypes.bfloat16)},
        {"a": Tensor(A), "b": B},
    ],
)
def test_inputs_in_all_forms_are_accepted(pair, inputs):
    results = pair(inputs)
    np.testing.assert_array_equal(results["s"], A + B)
    assert results["s"].dtype == np.float32


def test_single_input_needs_no_name(double):
    for inputs in (X, X.tolist(), [X], Tensor(X)):
        np.testing.assert_array_equal(double(inputs)[0], X * 2)


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        ({"a": A, "B": B}, TensorNameError),
        ({"a": A, "b": B, "c": B}, TensorNameError),
        ({"a": A, 2: B}, TensorNameError),
        ({"a": A, 1.5: B}, TypeError),
        ([A, B, B], TensorNameError),
        (A, TensorNameError),
        ({"a": A, "b": ["1", "2"]}, TensorTypeError),
        ({"a": A, "b": [1j, 2]}, TensorTypeError),
        ({"a": A, "b": [[1], [2, 3]]}, TensorShapeError),
        ({"a": A, "b": 1.0}, TensorShapeError),
    ],
)
def test_invalid_inputs_raise(pair, inputs, error):
    with pytest.raises(error):
        pair(inputs)


def test_share_inputs_reads_caller_memory(control, infer_request):
    for share, expected in ((False, X * 2), (True, X * 0)):
        memory = X.copy()
        control.gate.clear()
        infer_request.start_async({"x": memory}, share_inputs=share)
        memory[:] = 0
        control.gate.set()
        infer_request.wait()
        np.testing.assert_array_equal(infer_request.results["y"], expected)


def test_results_are_found_by_index_name_and_port(pair):
    results = pair({"a": A, "b": B})
    np.testing.assert_array_equal(results[0], A + B)
    np.testing.assert_array_equal(results[-1], A - B)
    np.testing.assert_array_equal(results[PAIR.outputs[1]], A - B)
    assert results.names() == ({"s"}, {"d"})
    assert tuple(results) == tuple(results.to_dict()) == tuple(pair.outputs)
    assert len(results.to_tuple()) == len(results) == 2
    assert "s" in results
    assert "t" not in results
    with pytest.raises(LookupError, match="'s', 'd'"):
        results["t"]
    with pytest.raises(LookupError, match="out of range"):
        results[2]
    with pytest.raises(TypeError):
        results["s"] = A


def test_input_as_output_does_not_share_memory(subject):
    passing_model = model("(float[2] x) => (float[2] x, float[2] y) {y = Relu(x)}")
    memory = A.copy()
    results = subject.compile_model(passing_model)({"x": memory})
    memory[:] = 0
    np.testing.assert_array_equal(results["x"], A)
    results["x"][:] = 5  # the result is writable


def test_compiled_model_creates_requests(double):
    assert isinstance(double.create_infer_request(), InferRequest)
    np.testing.assert_array_equal(double.infer_new_request({"x": X})["y"], X * 2)


def test_batched_tensors_after_cache_hit(tmp_path):
    with hetero.Core("inprocess") as core:
        for hit in (False, True):
            compiled = core.compile_model(DOUBLE, "HETERO:CPU", {"CACHE_DIR": tmp_path})
            assert compiled.get_property("LOADED_FROM_CACHE") is hit
            request = compiled.create_infer_request()
            request.set_tensors("x", [X[:1], X[1:]])
            np.testing.assert_array_equal(request.infer()["y"], X * 2)
