"""The behaviours that applications of OpenVINO rely on, row by row: ports, properties, tensors.

Numbers are rows of the project's behaviour table; where a name says bettered, this project departs
from the row on purpose.
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
from tests.behaviours.held import DOUBLE
from tests.support.networks import PAIR, X, model

A, B = np.float32([1, 2]), np.float32([10, 20])


# Properties of a compiled model.


def test_25_unknown_property(double):
    with pytest.raises(UnknownPropertyError, match="PERF_COUNT"):
        double.get_property("NO_SUCH")


def test_30_31_compile_config_wins_and_stays_there(subject):
    subject.set_property({"PERF_COUNT": True})
    assert subject.compile_model(DOUBLE, {"PERF_COUNT": False}).get_property("PERF_COUNT") is False
    assert subject.get_property("PERF_COUNT") is True
    assert subject.compile_model(DOUBLE).get_property("PERF_COUNT") is True


def test_37_compiled_properties_cannot_be_set(double):
    with pytest.raises(UnsupportedOperationError, match="compile_model"):
        double.set_property({"PERF_COUNT": True})
    with pytest.raises(UnknownPropertyError):
        double.set_property({"NO_SUCH": True})


def test_38_to_40_mandatory_properties(double):
    assert double.get_property("NETWORK_NAME") == "g"
    assert double.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") >= 1
    assert double.get_property("EXECUTION_DEVICES")[0] in ("DENSE", "DENSE.0")
    assert "PERF_COUNT" in double.get_property("SUPPORTED_PROPERTIES")


def test_60_61_compile_properties(subject):
    with pytest.raises(UnknownPropertyError):
        subject.compile_model(DOUBLE, {"NO_SUCH": 1})
    with pytest.raises(ReadOnlyPropertyError):
        subject.compile_model(DOUBLE, {"NETWORK_NAME": "other"})
    assert subject.compile_model(DOUBLE, {}).inputs == [*DOUBLE.inputs]


# Ports.


def test_52_input_without_a_key_wants_exactly_one(double, pair):
    assert double.input() == DOUBLE.inputs[0]
    with pytest.raises(TensorNameError, match="exactly one"):
        pair.input()
    with pytest.raises(TensorNameError, match="exactly one"):
        pair.output()


def test_53_port_out_of_range_names_index_and_count(pair):
    assert pair.output(1).name == "d"
    with pytest.raises(TensorNameError, match=r"input 2 is out of range: there are 2: 'a', 'b'"):
        pair.input(2)


def test_54_port_by_tensor_name_not_node_name(subject):
    compiled = subject.compile_model(model("(float[2] x) => (float[2] y) {[a_node] y = Relu(x)}"))
    assert compiled.output("y").name == "y"
    with pytest.raises(TensorNameError, match="a_node"):
        compiled.output("a_node")


# Tensors.


@pytest.mark.parametrize("name", ["x", "y"])
def test_62_none_is_no_tensor(request_, name):
    with pytest.raises(TensorTypeError, match=name):
        request_.set_tensor(name, None)


@pytest.mark.parametrize("name", ["x", "y"])
def test_63_set_then_get_is_the_same_memory(request_, name):
    mine = np.zeros((4, 3), np.float32)
    request_.set_tensor(name, mine)
    got = request_.get_tensor(name)
    assert np.shares_memory(got.data, mine)
    assert (got.shape, got.element_type) == ((4, 3), "float")


def test_64_unknown_name(request_):
    for act in (request_.get_tensor, lambda n: request_.set_tensor(n, X)):
        with pytest.raises(TensorNameError, match="'nope'"):
            act("nope")


def test_65_position_out_of_range(request_):
    with pytest.raises(TensorNameError, match="input 7 is out of range"):
        request_.get_input_tensor(7)


@pytest.mark.parametrize("name", ["x", "y"])
def test_66_wrong_element_type_is_refused_when_set(request_, name):
    with pytest.raises(TensorTypeError, match=r"astype\(numpy.float32\)"):
        request_.set_tensor(name, np.zeros((2, 3)))


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("shape", [(2, 4), (3,), (1, 2, 3)])
def test_67_wrong_shape_or_rank_is_refused_when_set(request_, name, shape):
    with pytest.raises(TensorShapeError, match=name):
        request_.set_tensor(name, np.zeros(shape, np.float32))


def test_68_open_dimension_takes_any_length(request_):
    for rows in (1, 5, 0):
        request_.set_tensor("x", np.ones((rows, 3), np.float32))
        assert request_.infer()["y"].shape == (rows, 3)


def test_69_bettered_infer_without_inputs_says_which_are_missing(pair):
    request = pair.create_infer_request()
    with pytest.raises(TensorNameError, match=r"missing: 'a' .*'b'"):
        request.infer()
    # Memory that the request gave out counts as given.
    request.get_input_tensor(0).data[:] = A
    request.get_tensor("b").data[:] = B
    np.testing.assert_array_equal(request.infer()["s"], A + B)


def test_70_bettered_a_dict_without_an_input_does_not_use_the_last_ones(pair):
    request = pair.create_infer_request()
    request.infer({"a": A, "b": B})
    with pytest.raises(TensorNameError, match="'b'") as caught:
        request.infer({"a": A})
    assert caught.value.missing == ["b"]
    request.set_tensor("b", B)
    np.testing.assert_array_equal(request.infer({"a": A})["s"], A + B)
    np.testing.assert_array_equal(request.infer()["d"], A - B)


def test_71_85_the_tensor_stays_the_same_object(request_):
    before = request_.get_tensor("y")
    request_.infer({"x": X})
    assert request_.get_tensor("y") is before
    np.testing.assert_array_equal(before.data, X * 2)
    request_.infer({"x": X[:1]})
    assert before.shape == (1, 3)


def test_72_output_is_written_into_memory_of_the_user(request_):
    mine = np.zeros((2, 3), np.float32)
    request_.set_output_tensor(mine)
    results = request_.infer({"x": X}, share_outputs=True)
    np.testing.assert_array_equal(mine, X * 2)
    assert np.shares_memory(results["y"], mine)
    assert not np.shares_memory(request_.infer({"x": X})["y"], mine)
    with pytest.raises(TensorShapeError, match="its memory was set"):
        request_.infer({"x": X[:1]})
    read_only = np.zeros((2, 3), np.float32)
    read_only.setflags(write=False)
    with pytest.raises(TensorTypeError, match="read-only"):
        request_.set_output_tensor(read_only)


def test_73_outputs_chain_into_inputs_without_a_copy(double):
    first, second = double.create_infer_request(), double.create_infer_request()
    first.infer({"x": X})
    second.set_tensor("x", first.get_tensor("y"))
    assert second.get_tensor("x") is first.get_tensor("y")
    for _ in range(3):  # a loop: each feeds the other
        second.infer()
        first.set_tensor("x", second.get_tensor("y"))
        first.infer()
    np.testing.assert_array_equal(first.results["y"], X * 2**7)


def test_74_two_requests_do_not_mix(double):
    first, second = double.create_infer_request(), double.create_infer_request()
    first.set_tensor("x", X)
    second.set_tensor("x", X + 1)
    first.start_async()
    second.start_async()
    first.wait()
    second.wait()
    np.testing.assert_array_equal(first.results[0], X * 2)
    np.testing.assert_array_equal(second.results[0], (X + 1) * 2)


def test_75_strided_memory_is_read_as_it_lies(request_):
    wide = np.arange(24, dtype=np.float32).reshape(4, 6)
    request_.set_tensor("x", wide[::2, ::2])
    np.testing.assert_array_equal(request_.infer()["y"], wide[::2, ::2] * 2)


@pytest.mark.parametrize("device", [NullPlugin, DensePlugin])
def test_76_77_remote_tensors(device):
    context = NullPlugin().create_context()
    compiled = PluginSubject(device()).compile_model(DOUBLE)
    request = compiled.create_infer_request()
    source, sink = context.from_host(X), context.create_tensor("float32", (2, 3))
    with pytest.raises(UnsupportedOperationError, match="to_host"):
        _ = Tensor(source).data
    request.set_tensor("x", source)
    request.set_tensor("y", sink)
    want = X * (2 if device is DensePlugin else 0)
    np.testing.assert_array_equal(request.infer()["y"], want)
    np.testing.assert_array_equal(sink.to_host(), want)
    with pytest.raises(TensorShapeError):
        request.set_tensor("x", context.create_tensor("float32", (2, 4)))
    with pytest.raises(TensorTypeError):
        request.set_tensor("y", context.create_tensor("int64", (2, 3)))


def test_78_batched_tensors(request_):
    items = [np.full((1, 3), i, np.float32) for i in range(3)]
    items[1] = np.zeros((1, 6), np.float32)[:, ::2]
    request_.set_tensors("x", items)
    items[1][:] = 7  # seen: it is written before the run
    np.testing.assert_array_equal(request_.infer()["y"], np.concatenate(items) * 2)
    items[2][:] = 9
    np.testing.assert_array_equal(request_.infer()["y"][2], [18, 18, 18])


def test_79_a_batch_of_one_is_a_tensor(request_):
    item = X[:1].copy()
    request_.set_tensors("x", [item])
    assert np.shares_memory(request_.get_tensor("x").data, item)


def test_80_82_a_batched_input_has_no_tensor_until_one_is_set(request_):
    request_.set_tensors("x", [X[:1], X[1:]])
    with pytest.raises(TensorError, match="batch of 2"):
        request_.get_tensor("x")
    request_.set_tensor("x", X)
    assert np.shares_memory(request_.get_tensor("x").data, X)


def test_81_batches_that_cannot_be(request_, pair):
    one = X[:1]
    with pytest.raises(TensorShapeError, match="1 on axis 0"):
        request_.set_tensors("x", [X, X])
    with pytest.raises(TensorShapeError, match="batch item 1"):
        request_.set_tensors("x", [one, one[:, :2]])
    with pytest.raises(TensorTypeError, match="batch item 1"):
        request_.set_tensors("x", [one, one.astype("float64")])
    with pytest.raises(TensorNameError):
        request_.set_tensors("nope", [one, one])
    with pytest.raises(TensorNameError):  # an output
        request_.set_tensors("y", [one, one])
    with pytest.raises(TensorShapeError, match="takes 2 tensors"):
        pair.create_infer_request().set_tensors("a", [A[:1]] * 3)
    with pytest.raises(TensorShapeError):
        request_.set_tensors("x", [])


# Dynamic outputs: 85 is with 71.


def test_84_output_of_open_shape_before_a_run_is_empty(request_):
    tensor = request_.get_tensor("y")
    assert (tensor.size, tensor.element_type) == (0, "float")


def test_86_outputs_follow_the_shapes_of_each_run(request_):
    for rows in (2, 5, 1):
        assert request_.infer({"x": np.ones((rows, 3), "float32")})["y"].shape == (rows, 3)


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
def test_inputs_in_every_form(pair, inputs):
    results = pair(inputs)
    np.testing.assert_array_equal(results["s"], A + B)
    assert results["s"].dtype == np.float32


def test_one_input_needs_no_name(double):
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
def test_inputs_that_do_not_fit(pair, inputs, error):
    with pytest.raises(error):
        pair(inputs)


def test_sharing_of_inputs(held, request_):
    for share, seen in ((False, X * 2), (True, X * 0)):
        mine = X.copy()
        held.gate.clear()
        request_.start_async({"x": mine}, share_inputs=share)
        mine[:] = 0
        held.gate.set()
        request_.wait()
        np.testing.assert_array_equal(request_.results["y"], seen)


def test_results(pair):
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


def test_passed_through_inputs_do_not_share_the_callers_memory(subject):
    through = model("(float[2] x) => (float[2] x, float[2] y) {y = Relu(x)}")
    mine = A.copy()
    results = subject.compile_model(through)({"x": mine})
    mine[:] = 0
    np.testing.assert_array_equal(results["x"], A)
    results["x"][:] = 5  # and may be written to


def test_requests_are_made_by_the_compiled_model(double):
    assert isinstance(double.create_infer_request(), InferRequest)
    np.testing.assert_array_equal(double.infer_new_request({"x": X})["y"], X * 2)


def test_83_batched_tensors_of_a_model_from_a_cache(tmp_path):
    with hetero.Core("inprocess") as core:
        for hit in (False, True):
            compiled = core.compile_model(DOUBLE, "HETERO:CPU", {"CACHE_DIR": tmp_path})
            assert compiled.get_property("LOADED_FROM_CACHE") is hit
            request = compiled.create_infer_request()
            request.set_tensors("x", [X[:1], X[1:]])
            np.testing.assert_array_equal(request.infer()["y"], X * 2)
