"""Requests that are joined: on one device and cut in two, each as if it were alone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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
from tests.support import exposition
from tests.support.gated_plugin import GatedPlugin
from tests.support.models import branches

PATIENCE_S = 60
#: Longer than any test: batches are fired because they are full, or because nothing runs.
BATCH = {"AUTO_BATCH_SIZE": 8, "AUTO_BATCH_TIMEOUT": 600_000}


@pytest.fixture(scope="module")
def core() -> Iterator[hetero.Core]:
    with hetero.Core(executor="inprocess", plugins=(GatedPlugin,)) as core:
        yield core


@pytest.fixture
def closed_gate() -> Iterator[type[GatedPlugin]]:
    with GatedPlugin.closed():
        yield GatedPlugin


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(branches().SerializeToString())


def x(value: float, rows: int = 1) -> np.ndarray:
    return np.full((rows, 3), value, np.float32) + np.arange(rows, dtype=np.float32)[:, None]


def check(got: np.ndarray, session: onnxruntime.InferenceSession, given: np.ndarray) -> None:
    (want,) = session.run(None, {"x": given})
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-7)  # as ONNX's own suite does


def started(compiled: hetero.CompiledModel, *inputs: np.ndarray) -> list[Any]:
    requests = [compiled.create_infer_request() for _ in inputs]
    for request, given in zip(requests, inputs, strict=True):
        request.start_async({"x": given})
    return requests


@pytest.mark.parametrize("device", ["GATED", "HETERO:CPU,GATED"])
def test_requests_that_wait_run_as_one_and_each_gets_its_rows(
    core: hetero.Core,
    closed_gate: type[GatedPlugin],
    session: onnxruntime.InferenceSession,
    device: str,
) -> None:
    given = [x(1), x(2), x(3, 2), x(-4), x(5, 3)]
    pins = {} if device == "GATED" else {"tanh": "GATED"}
    with core.compile_model(branches(), device, BATCH, affinity=pins) as compiled:
        levels = max(compiled.plan.levels) + 1
        # As many run as there are levels; the others wait for one of them to end.
        first = started(compiled, *[x(0)] * levels)
        assert closed_gate.began.wait(PATIENCE_S)
        requests = started(compiled, *given)
        closed_gate.gate.set()
        for request, rows in zip((*first, *requests), (*[x(0)] * levels, *given), strict=True):
            request.wait()
            check(request.results[0], session, rows)
        assert closed_gate.runs == [*[1] * levels, 8]


@pytest.mark.parametrize("device", ["ORT", "CPU", "HETERO:CPU,ORT"])
def test_many_callers_each_get_what_onnxruntime_gives_them(
    core: hetero.Core, session: onnxruntime.InferenceSession, device: str
) -> None:
    pins = {"neg": "ORT"} if device.startswith("HETERO") else {}
    with (
        core.compile_model(branches(), device, BATCH, affinity=pins) as compiled,
        ThreadPoolExecutor(12) as threads,
    ):

        def call(number: int) -> None:
            given = x(number / 7, 1 + number % 3)
            check(compiled({"x": given})[0], session, given)

        assert list(threads.map(call, range(200))) == [None] * 200


def test_a_queue_of_joined_requests_calls_back_for_each(
    core: hetero.Core, session: onnxruntime.InferenceSession
) -> None:
    with core.compile_model(branches(), "HETERO:CPU,ORT", BATCH) as compiled:
        answers: dict[int, np.ndarray] = {}
        queue = hetero.AsyncInferQueue(compiled)
        assert len(queue) == compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 16
        queue.set_callback(lambda r, n: answers.update({n: r.results[0].copy()}))
        for number in range(100):
            queue.start_async({"x": x(number)}, userdata=number)
        queue.wait_all()
    for number in range(100):
        check(answers[number], session, x(number))


def test_a_bad_row_is_its_callers_alone(
    core: hetero.Core, closed_gate: type[GatedPlugin], session: onnxruntime.InferenceSession
) -> None:
    with core.compile_model(branches(), "GATED", BATCH) as compiled:
        started(compiled, x(0))
        assert closed_gate.began.wait(PATIENCE_S)
        good, bad, better = started(compiled, x(1), x(13), x(2))
        closed_gate.gate.set()
        good.wait()
        better.wait()
        check(good.results[0], session, x(1))
        check(better.results[0], session, x(2))
        with pytest.raises(HeteroError, match="a row is 13"):
            bad.wait()
        assert closed_gate.runs == [1, 3, 1, 1, 1]


def test_who_leaves_a_batch_that_waits_is_not_in_it(
    core: hetero.Core, closed_gate: type[GatedPlugin], session: onnxruntime.InferenceSession
) -> None:
    with core.compile_model(branches(), "GATED", BATCH) as compiled:
        started(compiled, x(0))
        assert closed_gate.began.wait(PATIENCE_S)
        cancelled, stays = started(compiled, x(1), x(2))
        late = compiled.create_infer_request()
        late.start_async({"x": x(3)}, timeout_s=0.01)
        cancelled.cancel()
        with pytest.raises(RequestCancelledError):
            cancelled.wait()
        with pytest.raises(DeadlineError):
            late.wait()
        closed_gate.gate.set()
        stays.wait()
        check(stays.results[0], session, x(2))
        assert closed_gate.runs == [1, 1]


def test_times_and_story_are_those_of_the_batch(
    core: hetero.Core, closed_gate: type[GatedPlugin]
) -> None:
    options = {**BATCH, "PERF_COUNT": True}
    with core.compile_model(branches(), "GATED", options) as compiled:
        started(compiled, x(0))
        assert closed_gate.began.wait(PATIENCE_S)
        one, other = started(compiled, x(1), x(2))
        closed_gate.gate.set()
        one.wait()
        other.wait()
        assert one.times.stages == other.times.stages != ()
        names = [row.node_name for row in one.profiling_info if row.status == "EXECUTED"]
        assert "subgraph0: tanh" in names
        story = " ".join(one.story())
        assert "batch of 2: started" in story
        assert story.index("submitted with 12 bytes") < story.index("batch of 2")


def test_a_batchs_run_is_measured_once(core: hetero.Core) -> None:
    x = np.ones((1, 512), np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 512] x) => (float[N, 512] y) '
        "{ a = Erf(x) b = Erf(a) c = Erf(b) y = Erf(c) }"
    )
    with core.compile_model(model, "CPU", BATCH) as compiled:
        found = measure(compiled, {"x": x}, 24, 240, PATIENCE_S)
        assert found["requests"] == 240
        assert found["stages"][0]["utilisation"] <= 1  # it runs one batch at a time


def test_results_may_be_kept_and_written_to(
    core: hetero.Core, closed_gate: type[GatedPlugin]
) -> None:
    with core.compile_model(branches(), "GATED", BATCH) as compiled:
        started(compiled, x(0))
        assert closed_gate.began.wait(PATIENCE_S)
        one, other = started(compiled, x(1), x(2))
        closed_gate.gate.set()
        one.wait()
        other.wait()
        mine, theirs = one.results[0], other.results[0].copy()
        assert mine.base is None or mine.base.nbytes == mine.nbytes  # it keeps no other's rows
        mine[:] = 0
        np.testing.assert_array_equal(other.results[0], theirs)


def test_answers_come_in_order_where_that_is_asked_for(
    core: hetero.Core, closed_gate: type[GatedPlugin]
) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, M] x) => (float[N, M] y) '
        "{ y = Neg(x) }"
    )
    came: list[float] = []

    def note(future: FutureLike[Response]) -> None:
        came.append(-float(np.asarray(future.result().outputs["y"])[0, 0]))

    with core.compile_model(model, "GATED", {**BATCH, "PRESERVE_ORDER": True}) as compiled:
        futures = []
        for number, width in enumerate((3, 3, 5, 3)):  # rows of other widths are not joined
            made = compiled.submit({"x": np.full((1, width), number, np.float32)})
            made.future.add_done_callback(note)
            futures.append(made.future)
        closed_gate.gate.set()
        for future in futures:
            future.result(PATIENCE_S)
        assert closed_gate.runs == [1, 2, 1]
    assert came == [0, 1, 2, 3]


def fixed() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2, 3] x) => (float[2, 3] y) '
        "{ y = Neg(x) }"
    )


def single() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[1, 3] x) => (float[1, 3] y) {
            c = Constant <value_ints = [1, 3, 1]> () d = Constant <value_ints = [1, -1]> ()
            n = Neg(x) r = Reshape(n, c) a = Abs(r) y = Reshape(a, d) }"""
    )


def test_a_model_for_one_row_takes_as_many_as_are_joined(
    core: hetero.Core, closed_gate: type[GatedPlugin]
) -> None:
    with core.compile_model(single(), "GATED", BATCH) as compiled:
        started(compiled, x(0))
        assert closed_gate.began.wait(PATIENCE_S)
        requests = started(compiled, *map(x, range(8)))
        closed_gate.gate.set()
        for number, request in enumerate(requests):
            request.wait()
            assert request.results[0].tolist() == [[number] * 3]
        assert closed_gate.runs == [1, 8]


def test_a_cache_and_a_blob_keep_a_model_that_was_for_one_row(
    core: hetero.Core, tmp_path: Path
) -> None:
    options = {**BATCH, "CACHE_DIR": tmp_path}
    compiled = core.compile_model(single(), "CPU", options)
    again = core.import_model(compiled.export_model())
    assert again({"x": x(-2, 2)})[0].tolist() == [[2] * 3, [1] * 3]
    cached = core.compile_model(single(), "CPU", options)
    assert cached.get_property("LOADED_FROM_CACHE")
    split = core.compile_model(single(), "HETERO:CPU,ORT", BATCH, affinity={"*": "ORT"})
    assert split({"x": x(-2, 2)})[0].tolist() == [[2] * 3, [1] * 3]
    alone = core.compile_model(single(), "CPU", {"CACHE_DIR": tmp_path})
    assert not alone.get_property("LOADED_FROM_CACHE")
    assert alone.inputs[0].shape == (1, 3)


def mixing() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 3] x) => (float[N, 3] y) '
        "{ y = Softmax <axis = 0> (x) }"
    )


@pytest.mark.parametrize(
    ("model", "words"),
    [(fixed(), "input 'x' .* has no batch of any size"), (mixing(), "Softmax.* works on axis 0")],
)
def test_a_model_that_mixes_rows_is_refused_by_name_unless_batching_is_off(
    core: hetero.Core, model: onnx.ModelProto, words: str
) -> None:
    with pytest.raises(PropertyError, match=words) as caught:
        core.compile_model(model, "CPU", BATCH)
    assert caught.value.data["property"] == "AUTO_BATCH_SIZE"
    core.compile_model(model, "CPU", {**BATCH, "ALLOW_AUTO_BATCHING": False}).close()


def test_a_request_with_an_optional_input_runs_alone(core: hetero.Core) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 2] x, float[2] w) => (float[N, 2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }"""
    )
    rows = np.array([[1, 1], [2, 2]], np.float32)
    with core.compile_model(model, "CPU", BATCH) as compiled:
        assert compiled({"x": rows})[0].tolist() == [[1, 2], [2, 4]]
        given = {"x": rows, "w": np.array([5, 6], np.float32)}
        assert compiled(given)[0].tolist() == [[5, 6], [10, 12]]


def test_a_blob_and_a_cache_keep_it(
    core: hetero.Core, session: onnxruntime.InferenceSession, tmp_path: Path
) -> None:
    options = {**BATCH, "CACHE_DIR": tmp_path}
    compiled = core.compile_model(branches(), "HETERO:CPU,ORT", options)
    for again in (
        core.import_model(compiled.export_model()),
        core.compile_model(branches(), "HETERO:CPU,ORT", options),
    ):
        assert again.get_property("AUTO_BATCH_SIZE") == 8
        assert again.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 16
        check(again({"x": x(3, 2)})[0], session, x(3, 2))
        again.close()
    assert again.get_property("LOADED_FROM_CACHE")
    alone = core.import_model(compiled.export_model(), config={"AUTO_BATCH_SIZE": 0})
    assert alone.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 2


def test_a_model_has_no_thread_of_its_own_and_is_unloaded_once_it_is_dropped() -> None:
    with hetero.Core("inprocess") as core:
        compiled = core.compile_model(branches(), "CPU", BATCH)
        compiled({"x": x(1)})  # the executor's own threads are there now
        before = set(threading.enumerate())
        other = core.compile_model(branches(), "CPU", BATCH)
        other({"x": x(1)})
        assert set(threading.enumerate()) <= before
        deployments = other.deployment._deployments  # type: ignore[attr-defined]
        assert len(deployments) == 2
        del other
        end_s = time.monotonic() + PATIENCE_S
        while len(deployments) == 2:
            assert time.monotonic() < end_s
            time.sleep(0.001)
        compiled.close()


def test_joined_requests_are_counted_and_traced_each_and_their_stages_once(
    core: hetero.Core, closed_gate: type[GatedPlugin], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    with (
        core.trace(path),
        core.serve_metrics() as metrics,
        core.compile_model(branches(), "GATED", BATCH) as compiled,
    ):
        (first,) = started(compiled, x(0))
        assert closed_gate.began.wait(PATIENCE_S)
        requests = [first, *started(compiled, x(1), x(2, 2), x(3))]
        waiting = exposition.read(metrics.text())
        closed_gate.gate.set()
        for request in requests:
            request.wait()
        found = exposition.read(metrics.text())
    assert closed_gate.runs == [1, 4]
    assert waiting["hetero_requests_in_flight"].value(model="branches") == 4
    assert found["hetero_requests_in_flight"].value(model="branches") == 0
    assert found["hetero_requests_total"].value(model="branches", state="answered") == 4
    assert found["hetero_request_input_bytes_total"].value(model="branches") == x(0, 5).nbytes
    stage = {"model": "branches", "stage": "0", "device": "GATED"}
    assert found["hetero_stage_runs_total"].value(**stage) == 2
    runs = [request.times.stages for request in requests]
    assert runs[1] == runs[2] == runs[3] != runs[0]
    busy_s = found["hetero_stage_busy_seconds_total"].value(**stage)
    assert busy_s == pytest.approx(runs[0][0].run_s + runs[1][0].run_s)
    events = json.loads(path.read_text())["traceEvents"]
    traced = [e["args"] for e in events if e.get("cat") == "request" and "args" in e]
    assert len({args["request"] for args in traced}) == len(traced) == 4
    joined = [e["args"].get("joined", []) for e in events if e.get("cat") == "stage"]
    assert sorted(map(len, joined)) == [0, 3]
    assert {e["args"]["request"] for e in events if e["ph"] == "s"} == {
        args["request"] for args in traced
    }


@pytest.mark.parametrize(
    ("opset", "node", "words"),
    [
        (4, "Reshape <shape = [1, 3]> (x)", "Reshape"),
        (1, 'Pad <mode = "constant", paddings = [1, 0, 0, 0], value = 0.0> (x)', "Pad.* axis 0"),
    ],
)
def test_operators_of_old_opsets_are_refused_by_name(
    core: hetero.Core, opset: int, node: str, words: str
) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 3, opset_import: ["": {opset}]>
        g (float[1, 3] x) => (float y) {{ y = {node} }}"""
    )
    with pytest.raises(PropertyError, match=words):
        core.compile_model(model, "NULL", BATCH)


def test_a_query_is_about_the_model_that_is_compiled(core: hetero.Core) -> None:
    asked: list[tuple[Any, ...]] = []
    query = core.executor.query

    def noted(device: str, model: Any, config: Any) -> Any:
        asked.append(model.inputs[0].shape)
        return query(device, model, config)

    core.executor.query = noted  # type: ignore[method-assign]  # counts what devices are asked
    try:
        core.query_model(single(), "CPU", BATCH)
        core.survey_model(single(), "CPU", BATCH)
    finally:
        del core.executor.query
    assert {shape[0] for shape in asked} == {"batch"}
