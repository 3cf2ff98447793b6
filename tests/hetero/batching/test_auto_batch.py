"""Dynamic batching: results, failures, cancellation, order, models, measurements."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import hetero
from hetero.cli.bench import measure
from hetero.devices.errors import (
    DeadlineError,
    HeteroError,
    PropertyError,
    RequestCancelledError,
)
from hetero.devices.request.promise import FutureLike
from hetero.devices.request.response import Response
from tests.support import prometheus_text as exposition
from tests.support.core_fixtures import core_fixture
from tests.support.gated_plugin import GatedPlugin
from tests.support.models import branches

TIMEOUT_S = 60
#: The batch timeout exceeds the test: a batch starts because it is full, or a device is idle.
BATCH = {"AUTO_BATCH_SIZE": 8, "AUTO_BATCH_TIMEOUT": 600_000}


core = core_fixture("module", plugins=(GatedPlugin,))


@pytest.fixture
def closed_gate():
    with GatedPlugin.closed():
        yield GatedPlugin


@pytest.fixture(scope="module")
def session():
    return onnxruntime.InferenceSession(branches().SerializeToString())


def x(value: float, rows: int = 1) -> np.ndarray:
    """Return an input of the rows value, value + 1, ..."""
    return np.full((rows, 3), value, np.float32) + np.arange(rows, dtype=np.float32)[:, None]


def check_output(
    actual: np.ndarray, session: onnxruntime.InferenceSession, data: np.ndarray
) -> None:
    (expected,) = session.run(None, {"x": data})
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-7)  # as ONNX's own suite does


def start_all(compiled: hetero.CompiledModel, *inputs: np.ndarray) -> list[Any]:
    requests = [compiled.create_infer_request() for _ in inputs]
    for request, array in zip(requests, inputs, strict=True):
        request.start_async({"x": array})
    return requests


@pytest.mark.parametrize("device", ["GATED", "HETERO:CPU,GATED"])
def test_waiting_requests_run_as_one_batch(
    core,
    closed_gate,
    session,
    device,
):
    inputs = [x(1), x(2), x(3, 2), x(-4), x(5, 3)]
    pins = {} if device == "GATED" else {"tanh": "GATED"}
    with core.compile_model(branches(), device, BATCH, affinity=pins) as compiled:
        levels = max(compiled.plan.levels) + 1
        # One request per level can run at once; the next requests wait in a batch.
        first = start_all(compiled, *[x(0)] * levels)
        assert closed_gate.began.wait(TIMEOUT_S)
        requests = start_all(compiled, *inputs)
        closed_gate.gate.set()
        for request, rows in zip((*first, *requests), (*[x(0)] * levels, *inputs), strict=True):
            request.wait()
            check_output(request.results[0], session, rows)
        assert closed_gate.runs == [*[1] * levels, 8]


@pytest.mark.parametrize("device", ["ORT", "CPU", "HETERO:CPU,ORT"])
def test_concurrent_requests_get_the_results_of_onnxruntime(core, session, device):
    pins = {"neg": "ORT"} if device.startswith("HETERO") else {}
    with (
        core.compile_model(branches(), device, BATCH, affinity=pins) as compiled,
        ThreadPoolExecutor(12) as threads,
    ):

        def call(number: int) -> None:
            data = x(number / 7, 1 + number % 3)
            check_output(compiled({"x": data})[0], session, data)

        assert list(threads.map(call, range(200))) == [None] * 200


def test_queue_calls_back_once_per_request(core, session):
    with core.compile_model(branches(), "HETERO:CPU,ORT", BATCH) as compiled:
        outputs: dict[int, np.ndarray] = {}
        queue = hetero.AsyncInferQueue(compiled)
        assert len(queue) == compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 16
        queue.set_callback(lambda r, n: outputs.update({n: r.results[0].copy()}))
        for number in range(100):
            queue.start_async({"x": x(number)}, userdata=number)
        queue.wait_all()
    for number in range(100):
        check_output(outputs[number], session, x(number))


def test_failing_row_fails_only_its_request(core, closed_gate, session):
    with core.compile_model(branches(), "GATED", BATCH) as compiled:
        start_all(compiled, x(0))
        assert closed_gate.began.wait(TIMEOUT_S)
        first, invalid, last = start_all(compiled, x(1), x(13), x(2))
        closed_gate.gate.set()
        first.wait()
        last.wait()
        check_output(first.results[0], session, x(1))
        check_output(last.results[0], session, x(2))
        with pytest.raises(HeteroError, match="a row is 13"):
            invalid.wait()
        assert closed_gate.runs == [1, 3, 1, 1, 1]


def test_cancelled_and_expired_requests_leave_the_batch(core, closed_gate, session):
    with core.compile_model(branches(), "GATED", BATCH) as compiled:
        start_all(compiled, x(0))
        assert closed_gate.began.wait(TIMEOUT_S)
        cancelled, remaining = start_all(compiled, x(1), x(2))
        expired = compiled.create_infer_request()
        expired.start_async({"x": x(3)}, timeout_s=0.01)
        cancelled.cancel()
        with pytest.raises(RequestCancelledError):
            cancelled.wait()
        with pytest.raises(DeadlineError):
            expired.wait()
        closed_gate.gate.set()
        remaining.wait()
        check_output(remaining.results[0], session, x(2))
        assert closed_gate.runs == [1, 1]


def test_times_and_history_of_batched_requests(core, closed_gate):
    options = {**BATCH, "PERF_COUNT": True}
    with core.compile_model(branches(), "GATED", options) as compiled:
        start_all(compiled, x(0))
        assert closed_gate.began.wait(TIMEOUT_S)
        first, second = start_all(compiled, x(1), x(2))
        closed_gate.gate.set()
        first.wait()
        second.wait()
        assert first.times.stages == second.times.stages != ()
        names = [row.node_name for row in first.profiling_info if row.status == "EXECUTED"]
        assert "subgraph0: tanh" in names
        story = " ".join(first.story())
        assert "batch of 2: started" in story
        assert story.index("submitted with 12 bytes") < story.index("batch of 2")


def test_utilisation_counts_a_batch_once(core):
    x = np.ones((1, 512), np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 512] x) => (float[N, 512] y) '
        "{ a = Erf(x) b = Erf(a) c = Erf(b) y = Erf(c) }"
    )
    with core.compile_model(model, "CPU", BATCH) as compiled:
        measurement = measure(compiled, {"x": x}, 24, 240, TIMEOUT_S)
        assert measurement["requests"] == 240
        assert measurement["stages"][0]["utilisation"] <= 1  # batches do not overlap


def test_results_are_independent_copies(core, closed_gate):
    with core.compile_model(branches(), "GATED", BATCH) as compiled:
        start_all(compiled, x(0))
        assert closed_gate.began.wait(TIMEOUT_S)
        first, second = start_all(compiled, x(1), x(2))
        closed_gate.gate.set()
        first.wait()
        second.wait()
        output, expected = first.results[0], second.results[0].copy()
        assert output.base is None or output.base.nbytes == output.nbytes  # only its own rows
        output[:] = 0
        np.testing.assert_array_equal(second.results[0], expected)


def test_preserve_order_completes_requests_in_order(core, closed_gate):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, M] x) => (float[N, M] y) '
        "{ y = Neg(x) }"
    )
    values: list[float] = []

    def append_value(future: FutureLike[Response]) -> None:
        values.append(-float(np.asarray(future.result().outputs["y"])[0, 0]))

    with core.compile_model(model, "GATED", {**BATCH, "PRESERVE_ORDER": True}) as compiled:
        futures = []
        for number, width in enumerate((3, 3, 5, 3)):  # only rows of equal width are batched
            submission = compiled.submit({"x": np.full((1, width), number, np.float32)})
            submission.future.add_done_callback(append_value)
            futures.append(submission.future)
        closed_gate.gate.set()
        for future in futures:
            future.result(TIMEOUT_S)
        assert closed_gate.runs == [1, 2, 1]
    assert values == [0, 1, 2, 3]


def batch_of_two_model() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2, 3] x) => (float[2, 3] y) '
        "{ y = Neg(x) }"
    )


def batch_of_one_model() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[1, 3] x) => (float[1, 3] y) {
            c = Constant <value_ints = [1, 3, 1]> () d = Constant <value_ints = [1, -1]> ()
            n = Neg(x) r = Reshape(n, c) a = Abs(r) y = Reshape(a, d) }"""
    )


def test_model_with_batch_of_one_is_batched(core, closed_gate):
    with core.compile_model(batch_of_one_model(), "GATED", BATCH) as compiled:
        start_all(compiled, x(0))
        assert closed_gate.began.wait(TIMEOUT_S)
        requests = start_all(compiled, *map(x, range(8)))
        closed_gate.gate.set()
        for number, request in enumerate(requests):
            request.wait()
            assert request.results[0].tolist() == [[number] * 3]
        assert closed_gate.runs == [1, 8]


def test_single_batch_model_is_exported_and_cached(core, tmp_path):
    options = {**BATCH, "CACHE_DIR": tmp_path}
    compiled = core.compile_model(batch_of_one_model(), "CPU", options)
    imported = core.import_model(compiled.export_model())
    assert imported({"x": x(-2, 2)})[0].tolist() == [[2] * 3, [1] * 3]
    cached = core.compile_model(batch_of_one_model(), "CPU", options)
    assert cached.get_property("LOADED_FROM_CACHE")
    placed = core.compile_model(
        batch_of_one_model(), "HETERO:CPU,ORT", BATCH, affinity={"*": "ORT"}
    )
    assert placed({"x": x(-2, 2)})[0].tolist() == [[2] * 3, [1] * 3]
    unbatched = core.compile_model(batch_of_one_model(), "CPU", {"CACHE_DIR": tmp_path})
    assert not unbatched.get_property("LOADED_FROM_CACHE")
    assert unbatched.inputs[0].shape == (1, 3)


def softmax_over_batch_model() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 3] x) => (float[N, 3] y) '
        "{ y = Softmax <axis = 0> (x) }"
    )


@pytest.mark.parametrize(
    ("model", "pattern"),
    [
        (batch_of_two_model(), "input 'x' .* has no open batch axis 0"),
        (softmax_over_batch_model(), "Softmax.* operates on axis 0"),
    ],
)
def test_unbatchable_model_is_rejected_if_batching_is_on(core, model, pattern):
    with pytest.raises(PropertyError, match=pattern) as error:
        core.compile_model(model, "CPU", BATCH)
    assert error.value.data["property"] == "AUTO_BATCH_SIZE"
    core.compile_model(model, "CPU", {**BATCH, "ALLOW_AUTO_BATCHING": False}).close()


def test_request_with_optional_input_runs_alone(core):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 2] x, float[2] w) => (float[N, 2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }"""
    )
    rows = np.array([[1, 1], [2, 2]], np.float32)
    with core.compile_model(model, "CPU", BATCH) as compiled:
        assert compiled({"x": rows})[0].tolist() == [[1, 2], [2, 4]]
        inputs = {"x": rows, "w": np.array([5, 6], np.float32)}
        assert compiled(inputs)[0].tolist() == [[5, 6], [10, 12]]


def test_export_and_cache_keep_the_batch_size(core, session, tmp_path):
    options = {**BATCH, "CACHE_DIR": tmp_path}
    compiled = core.compile_model(branches(), "HETERO:CPU,ORT", options)
    for imported in (
        core.import_model(compiled.export_model()),
        core.compile_model(branches(), "HETERO:CPU,ORT", options),
    ):
        assert imported.get_property("AUTO_BATCH_SIZE") == 8
        assert imported.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 16
        check_output(imported({"x": x(3, 2)})[0], session, x(3, 2))
        imported.close()
    assert imported.get_property("LOADED_FROM_CACHE")
    unbatched = core.import_model(compiled.export_model(), config={"AUTO_BATCH_SIZE": 0})
    assert unbatched.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 2


def test_batched_model_has_no_thread_and_unloads():
    with hetero.Core("inprocess") as core:
        compiled = core.compile_model(branches(), "CPU", BATCH)
        compiled({"x": x(1)})  # now the executor has started its own threads
        before = set(threading.enumerate())
        second = core.compile_model(branches(), "CPU", BATCH)
        second({"x": x(1)})
        assert set(threading.enumerate()) <= before
        deployments = second.deployment._deployments  # type: ignore[attr-defined]
        assert len(deployments) == 2
        del second
        end_s = time.monotonic() + TIMEOUT_S
        while len(deployments) == 2:
            assert time.monotonic() < end_s
            time.sleep(0.001)
        compiled.close()


def test_metrics_and_trace_of_batched_requests(core, closed_gate, tmp_path):
    path = tmp_path / "trace.json"
    with (
        core.trace(path),
        core.serve_metrics() as metrics,
        core.compile_model(branches(), "GATED", BATCH) as compiled,
    ):
        (first,) = start_all(compiled, x(0))
        assert closed_gate.began.wait(TIMEOUT_S)
        requests = [first, *start_all(compiled, x(1), x(2, 2), x(3))]
        before = exposition.read(metrics.text())
        closed_gate.gate.set()
        for request in requests:
            request.wait()
        after = exposition.read(metrics.text())
    assert closed_gate.runs == [1, 4]
    assert before["hetero_requests_in_flight"].value(model="branches") == 4
    assert after["hetero_requests_in_flight"].value(model="branches") == 0
    assert after["hetero_requests_total"].value(model="branches", state="answered") == 4
    assert after["hetero_request_input_bytes_total"].value(model="branches") == x(0, 5).nbytes
    stage = {"model": "branches", "stage": "0", "device": "GATED"}
    assert after["hetero_stage_runs_total"].value(**stage) == 2
    runs = [request.times.stages for request in requests]
    assert runs[1] == runs[2] == runs[3] != runs[0]
    busy_s = after["hetero_stage_busy_seconds_total"].value(**stage)
    assert busy_s == pytest.approx(runs[0][0].run_s + runs[1][0].run_s)
    events = json.loads(path.read_text())["traceEvents"]
    traced = [e["args"] for e in events if e.get("cat") == "request" and "args" in e]
    assert len({args["request"] for args in traced}) == len(traced) == 4
    members = [e["args"].get("joined", []) for e in events if e.get("cat") == "stage"]
    assert sorted(map(len, members)) == [0, 3]
    assert {e["args"]["request"] for e in events if e["ph"] == "s"} == {
        args["request"] for args in traced
    }


@pytest.mark.parametrize(
    ("opset", "node", "pattern"),
    [
        (4, "Reshape <shape = [1, 3]> (x)", "Reshape"),
        (1, 'Pad <mode = "constant", paddings = [1, 0, 0, 0], value = 0.0> (x)', "Pad.* axis 0"),
    ],
)
def test_not_batchable_operator_of_old_opset_is_rejected(core, opset, node, pattern):
    model = onnx.parser.parse_model(
        f"""<ir_version: 3, opset_import: ["": {opset}]>
        g (float[1, 3] x) => (float y) {{ y = {node} }}"""
    )
    with pytest.raises(PropertyError, match=pattern):
        core.compile_model(model, "NULL", BATCH)


def test_query_uses_the_model_with_open_batch_axis(core):
    shapes: list[tuple[Any, ...]] = []
    query = core.executor.query

    def query_with_log(device: str, model: Any, config: Any) -> Any:
        shapes.append(model.inputs[0].shape)
        return query(device, model, config)

    core.executor.query = query_with_log  # type: ignore[method-assign]  # for the test
    try:
        core.query_model(batch_of_one_model(), "CPU", BATCH)
        core.survey_model(batch_of_one_model(), "CPU", BATCH)
    finally:
        del core.executor.query
    assert {shape[0] for shape in shapes} == {"batch"}
