"""States: variables that a request keeps on devices from run to run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

import hetero
from hetero.errors import (
    ArgumentError,
    HeteroError,
    ModelError,
    RequestCancelledError,
    TensorNameError,
    TensorShapeError,
    TensorTypeError,
)
from hetero.scheduler.channels.memory import MemoryChannel
from tests.support import custom_operators
from tests.support.remote_cores import Counting, await_freed, core_on, crossed, kept_nbytes
from tests.support.stateful_models import (
    STATES,
    VOCABULARY,
    attention_decoder,
    decoder,
    expected,
    generated,
    lstm,
    running_sum,
)

SPLIT = "HETERO:CPU.0,CPU.1"
X = np.ones(3, np.float32)
#: Two inputs with the same symbolic length, which may differ.
GROWING = parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x, float[n] past) => (float[m] present) '
    "{present = Concat<axis = 0>(past, x)}"
)


@pytest.fixture(scope="module", params=[MemoryChannel, Counting])
def core(request):
    with core_on(request.param) as core:
        yield core


def compile_running_sum(core: hetero.Core, **options: Any) -> hetero.CompiledModel:
    """Compile the running sum with its addition and its product on two devices."""
    options = {"affinity": {"y": "CPU.1"}, "states": {"before": "after"}, **options}
    return core.compile_model(running_sum(), SPLIT, **options)


def test_state_persists_between_runs_of_a_request(core):
    with compile_running_sum(core) as compiled:
        assert [port.name for port in compiled.inputs] == ["x"]
        assert [port.name for port in compiled.outputs] == ["y"]
        first, second = compiled.create_infer_request(), compiled.create_infer_request()
        outputs = [first.infer({"x": X})[0][0] for _ in range(3)]
        assert (outputs, second.infer({"x": X})[0][0]) == ([2, 4, 6], 2)
        first.reset_state()
        assert [r.infer(X)[0][0] for r in (first, second)] == [2, 4]
        assert [compiled(X)[0][0] for _ in range(2)] == [2, 4]
        compiled.reset_state()
        assert compiled(X)[0][0] == 2
        assert compiled.query_state()[0].state.data[0] == 1


def test_state_read_write_and_reset(core):
    request = compile_running_sum(core).create_infer_request()
    (state,) = request.query_state()
    assert (state.name, state.state.shape) == ("before", (0,))
    request.infer(X)
    np.testing.assert_array_equal(state.state.data, X)
    state.state = X * 5
    np.testing.assert_array_equal(state.state.data, X * 5)
    assert request.infer(X)[0][0] == 12
    state.state = core.create_context("CPU.0").from_host(X * 2)
    assert request.infer(X)[0][0] == 6
    state.reset()
    assert request.infer(X)[0][0] == 2
    with pytest.raises(TensorTypeError, match="before"):
        state.state = ["one"]


def test_lstm_steps_equal_the_whole_sequence(core):
    x = np.random.default_rng(3).normal(size=(7, 2, 3)).astype(np.float32)
    initial_state = np.zeros((1, 2, 5), np.float32)
    expected = ReferenceEvaluator(lstm()).run(
        ["y"], {"x": x, "h0": initial_state, "c0": initial_state}
    )[0]
    states = {"h0": "h1", "c0": "c1"}
    pins = {"tanh": "CPU.1"}
    with core.compile_model(lstm(), SPLIT, affinity=pins, states=states) as compiled:
        request = compiled.create_infer_request()
        steps = [request.infer({"x": x[i : i + 1]})["y"] for i in range(len(x))]
    np.testing.assert_allclose(np.concatenate(steps), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "pins"),
    [
        (decoder(), {"1/*": "CPU.1"}),
        (decoder(), {"op:Concat": "CPU.1"}),
        (attention_decoder(), {"attention": "CPU.1"}),
    ],
    ids=["by layer", "caches separate", "Attention"],
)
def test_decoder_on_two_devices_generates_the_same_tokens(core, model, pins):
    with core.compile_model(model, SPLIT, affinity=pins, states=STATES) as compiled:
        assert {s.device for s in compiled.subgraphs} == {"CPU.0", "CPU.1"}
        assert generated(compiled.create_infer_request()) == expected(model)


@pytest.mark.parametrize("core", [Counting], indirect=True)
def test_states_on_one_device_are_not_transferred(core):
    with core.compile_model(decoder(), SPLIT, affinity={"1/*": "CPU.1"}, states=STATES) as compiled:
        request = compiled.create_infer_request()
        generated(request, 2)
        transferred_nbytes = []
        for _ in range(20):
            crossed()
            request.infer({"ids": [[1]]})
            transferred_nbytes.append(sum(nbytes for *_, nbytes in crossed()))
        caches = sum(state.state.byte_size for state in request.query_state())
    assert len(set(transferred_nbytes)) == 1  # although the caches grow
    assert transferred_nbytes[0] < caches
    ids, wires, logits = 8, 2 * 8 * 4, VOCABULARY * 4
    handles = 4 * 64  # a type and a shape per cache
    assert transferred_nbytes[0] < ids + wires + logits + handles


def test_failed_run_keeps_the_state(core):
    request = compile_running_sum(core).create_infer_request()
    request.infer(X)
    for invalid in (["x"], np.ones(3, np.complex64)):
        with pytest.raises(HeteroError):
            request.infer({"x": invalid})
    with pytest.raises(hetero.errors.DeadlineError):
        request.infer({"x": X}, timeout_s=-1)
    assert request.infer(X)[0][0] == 4


def test_retry_starts_with_the_committed_state(core):
    text = """<ir_version: 8, opset_import: ["" : 17, "org.example" : 1]>
    doomed (float[n] x, float[n] before) => (float[n] y, float[n] after)
    { after = Add (before, x) y = org.example.Doomed (after) }"""
    core.add_extension(custom_operators.lose)
    compiled = core.compile_model(
        parse_model(text), SPLIT, affinity={"y": "CPU.1"}, states={"before": "after"}
    )
    request = compiled.create_infer_request()
    request.infer(X)
    custom_operators.doomed[0] = 2
    assert request.infer(X)[0][0] == 2
    assert any("attempt" in line and "3" in line for line in request.story())
    assert request.infer(X)[0][0] == 3
    await_freed(core, X.nbytes)  # failed attempts keep nothing


def test_cancelled_run_keeps_the_state(core):
    text = """<ir_version: 8, opset_import: ["" : 17, "org.example" : 1]>
    waits (float[n] x, float[n] before) => (float[n] y, float[n] after)
    { after = Add (before, x) y = org.example.Wait (after) }"""
    core.add_extension(custom_operators.wait)
    compiled = core.compile_model(
        parse_model(text), SPLIT, affinity={"y": "CPU.1"}, states={"before": "after"}
    )
    request = compiled.create_infer_request()
    custom_operators.may_go_on.set()
    request.infer(X)
    custom_operators.may_go_on.clear()
    custom_operators.waiting.clear()
    request.start_async(X)
    assert custom_operators.waiting.wait(60)
    request.cancel()
    custom_operators.may_go_on.set()
    with pytest.raises(RequestCancelledError):
        request.wait()
    assert request.infer(X)[0][0] == 2


def test_states_are_freed_with_their_request(core):
    await_freed(core, 0)
    request = compile_running_sum(core).create_infer_request()
    for _ in range(3):
        request.infer(X)
    await_freed(core, X.nbytes)
    assert kept_nbytes(core) == X.nbytes
    del request
    await_freed(core, 0)


def test_export_and_cache_keep_states(core, tmp_path):
    for _ in range(2):
        with compile_running_sum(core, config={"CACHE_DIR": str(tmp_path)}) as compiled:
            blob = compiled.export_model()
            assert [compiled(X)[0][0] for _ in range(2)] == [2, 4]
    assert compiled.get_property("LOADED_FROM_CACHE")
    with core.import_model(blob) as imported:
        assert [port.name for port in imported.inputs] == ["x"]
        assert [imported(X)[0][0] for _ in range(2)] == [2, 4]
    with compile_running_sum(core, config={"CACHE_DIR": str(tmp_path)}, states=None) as stateless:
        assert len(stateless.inputs) == 2


def test_states_from_model_metadata(core):
    model = decoder(1)
    model.metadata_props.add(key="hetero.states", value='{"past.*": "present.*"}')
    request = core.compile_model(model, "CPU.0").create_infer_request()
    assert [s.name for s in request.query_state()] == ["past.0.key", "past.0.value"]
    model_with_states = core.read_model(decoder(1), states=STATES)
    assert model_with_states.metadata["hetero.states"] == '{"past.*": "present.*"}'
    assert generated(
        core.compile_model(model_with_states, "CPU.0").create_infer_request(), 3
    ) == generated(request, 3)


def test_states_with_replicas_and_dynamic_batching(core):
    for config in ({"REPLICAS": 2}, {"AUTO_BATCH_SIZE": 4}):
        with compile_running_sum(core, affinity=None, config=config) as compiled:
            requests = [compiled.create_infer_request() for _ in range(3)]
            for total in (2, 4, 6):
                assert [r.infer(X)[0][0] for r in requests] == [total] * 3


def test_state_with_wrong_shape_is_rejected(core):
    request = compile_running_sum(core).create_infer_request()
    request.infer(X)
    with pytest.raises(TensorShapeError, match=r"state 'before'.*\[3\].*reset_state\(\)"):
        request.infer(np.ones(2, np.float32))
    assert request.infer(X)[0][0] == 4
    request.start_async(X)
    request.wait()


PORTS = """<ir_version: 8, opset_import: ["" : 17]>
ports (float[2] x, float[2, n] wide, int64[2] whole, seq(float[n]) many) => (float[2] y, float[3] z)
<float[3] three = {1, 2, 3}> { y = Neg (x) z = Identity (three) }"""


@pytest.mark.parametrize(
    ("states", "error", "text"),
    [
        ({"whole": "y"}, TensorTypeError, "'whole'.*int64.*'y'.*float"),
        ({"many": "y"}, TensorTypeError, "'many'"),
        ({"x": "z"}, TensorShapeError, r"'x'.*\[2\].*'z'.*\[3\]"),
        ({"wide": "y"}, TensorShapeError, "'wide'.*'y'"),
        ({"w": "y"}, TensorNameError, "'w'.*'x'"),
        ({"x": "w"}, TensorNameError, "'w'.*'y'"),
        ({"past*": "y"}, TensorNameError, r"past\*"),
        ({"x": "*"}, ArgumentError, r"\*"),
        (["x"], ArgumentError, "dict"),
    ],
)
def test_invalid_states_are_rejected(core, states, error, text):
    for function in (core.read_model, core.compile_model):
        with pytest.raises(error, match=text):
            function(parse_model(PORTS), states=states)


@pytest.mark.parametrize("text", ["", "[]", '{"x": 1}', "{"])
def test_invalid_states_metadata_is_rejected(core, text):
    model = parse_model(PORTS)
    model.metadata_props.add(key="hetero.states", value=text)
    with pytest.raises(ModelError, match=r"hetero\.states"):
        core.compile_model(model, "CPU.0")


def test_initial_state_can_be_set(core):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    open (float[1] x, float[m, 1] past) => (float[k, 1] present)
    <int64[2] row = {1, 1}> { r = Reshape (x, row) present = Concat <axis = 0> (past, r) }"""
    compiled = core.compile_model(parse_model(text), "CPU.0", states={"past": "present"})
    assert compiled.outputs == []
    request = compiled.create_infer_request()
    request.query_state()[0].state = [[7.0]]
    request.infer([1.0])
    np.testing.assert_array_equal(request.query_state()[0].state.data, [[7], [1]])


def test_scalar_state_starts_with_zero(core):
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        sum (float x, float before) => (float y, float after)
        { after = Add(before, x) y = Add(after, after) }"""
    )
    compiled = core.compile_model(model, SPLIT, affinity={"y": "CPU.1"}, states={"before": "after"})
    request = compiled.create_infer_request()
    (state,) = request.query_state()
    assert state.state.shape == ()
    assert [request.infer(np.float32(x))["y"] for x in (1, 2)] == [2, 6]
    assert state.state.data == 3


def test_length_of_state_is_independent_of_inputs():
    with hetero.Core(executor="inprocess") as core:
        compiled = core.compile_model(GROWING, "CPU", states={"past": "present"})
        request = compiled.create_infer_request()
        (state,) = request.query_state()
        for size in (0, 5):
            state.state = np.zeros(size, np.float32)
            request.infer({"x": X})
            assert state.state.data.tolist() == [0] * size + [1] * 3
        with pytest.raises(TensorShapeError, match="a shape that matches the other inputs"):
            request.infer({"x": X})
