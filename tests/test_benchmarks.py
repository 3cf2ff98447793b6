"""Benchmarks with tiny settings: they run, and their numbers are consistent."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks import (
    batching,
    by_hand,
    chaos,
    generate,
    growth,
    one_device,
    paired,
    pipelines,
    scale,
    scheduler,
    simulate,
    state,
    vendors,
)
from benchmarks.chaos_flow import Flow, question
from benchmarks.sessions import bare_session
from benchmarks.tables import numbers
from benchmarks.timing import Timing, measure
from hetero.devices.errors import DeviceLostError
from hetero.examples.small_decoder import small_decoder


@pytest.fixture
def rows(capsys):
    """Return a function that runs a benchmark in process and returns its rows."""

    def run(main: Callable[[list[str]], Any], *arguments: str) -> list[dict[str, Any]]:
        main([*arguments, "--json", "--executors", "inprocess"])
        results: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
        return results

    return run


@pytest.mark.slow
def test_scheduler_compares_chains_with_a_peer(rows):
    options = ("--stages", "1,2", "--sizes", "1k", "--windows", "1,3", "--peers", "zmq")
    results = rows(scheduler.main, *options, "--seconds", "0.03")
    cases = [(row["stages"], row["window"], row["way"]) for row in results]
    assert cases == [(s, w, way) for s in (1, 2) for w in (1, 3) for way in ("zmq", "inprocess")]
    for peer, ours in zip(results[::2], results[1::2], strict=True):
        assert peer["p50_ratio"] == peer["rate_ratio"] == 1
        assert ours["p50_ratio"] == pytest.approx(ours["p50_ms"] / peer["p50_ms"], rel=0.1)


@pytest.mark.slow
def test_generate_compares_decoders_with_a_plain_session(rows, tmp_path):
    onnx.save(small_decoder(), tmp_path / "model.onnx")
    results = rows(
        generate.main,
        str(tmp_path),
        "--tokens",
        "3",
        "--turns",
        "1",
        "--rows",
        "2",
        "--beside",
        "9",
    )
    ways = ("1 device", "3 devices", "1 device, 2 rows", "1 device, 2 texts in threads")
    assert [row["way"] for row in results[:-3]] == ["bare", *(f"inprocess {way}" for way in ways)]
    assert min(row["ratio"] for row in results[-3:]) > 0
    for row in results[:-3]:
        each = 2 if ", 2 " in row["way"] else 1
        assert row["tokens_per_s"] == pytest.approx(each * 1e3 / row["ms_per_step"])


@pytest.mark.slow
def test_vendors_compares_devices_with_direct_calls(
    capsys,
):
    options = "--models squeezenet --shared squeezenet --seconds 0.03 --rounds 1 --json"
    vendors.main(options.split())
    results = json.loads(capsys.readouterr().out)["rows"]
    ways = ["onnxruntime", "ORT", "openvino", "OV", "openvino HETERO:CPU", "HETERO:OV"]
    ways += ["HETERO:OV,ORT, all threads", "HETERO:OV,ORT, shares"]
    installed = len(ways) if importlib.util.find_spec("openvino") else 2
    assert [row["way"] for row in results] == ways[:installed]
    for i, (bare, ours) in enumerate(zip(results[::2], results[1::2], strict=True)):
        assert bare["ratio"] == 1
        rate = ours["requests_per_s"] / bare["requests_per_s"]
        ratio = rate if i == 3 else bare["p50_ms"] / ours["p50_ms"]
        assert ours["ratio"] == pytest.approx(ratio, rel=0.01)


def test_scheduler_refuses_an_unknown_peer(capsys):
    with pytest.raises(SystemExit):
        scheduler.main(["--peers", "zmq,kafka"])
    assert "kafka" in capsys.readouterr().err


@pytest.mark.slow
def test_pipelines_share_is_relative_to_the_busiest_device(rows):
    options = ("--times", "4", "--devices", "2", "--seconds", "0.2")
    results = rows(pipelines.main, *options)
    assert [(row["visits"], row["way"]) for row in results] == [
        (1, "inprocess"),
        (1, "zmq"),
        (1, "sleep"),
        (2, "inprocess"),
        (2, "sleep"),
    ]
    for row in results:
        visits = 1 if row["way"] == "sleep" else row["visits"]
        assert row["share"] == pytest.approx(row["requests_per_s"] * 4e-3 * visits, abs=1e-3)


def test_batching_compares_with_session_and_manual_batches(rows):
    options = ("--models", "block", "--callers", "3", "--size", "2", "--seconds", "0.03")
    results = rows(batching.main, *options, "--rounds", "1")
    assert [row["way"] for row in results] == [
        "session",
        "session by hand",
        "one device",
        "one device, batched",
        "cut in two",
        "cut in two, batched",
    ]
    assert results[0]["ratio"] == results[1]["by_hand"] == 1
    assert all(row["requests_per_s"] > 0 for row in results)


def test_batches_by_hand_equal_single_requests():
    make, shape, _ = batching.MODELS["block"]
    session = bare_session(make(), 1)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    by_hand = batching.ByHand(session, x, 2)
    waits = [by_hand.submit() for _ in range(3)]
    (expected,) = session.run(None, {"x": x})
    for wait in waits:
        np.testing.assert_allclose(wait(), expected, rtol=1e-4, atol=1e-5)


def test_by_hand_compares_the_same_cut(rows):
    options = ("--models", "squeezenet", "--windows", "2", "--seconds", "0.05", "--rounds", "1")
    peer, ours = rows(by_hand.main, *options)
    assert (peer["way"], ours["way"]) == ("threads", "inprocess")
    assert peer["rate_ratio"] == 1
    assert ours["rate_ratio"] == pytest.approx(
        ours["requests_per_s"] / peer["requests_per_s"], abs=0.01
    )


@pytest.mark.slow
def test_pipeline_of_processes_computes_the_result():
    model, inputs = by_hand.load_model("squeezenet")
    cut = by_hand.cut_in_two(model)
    with by_hand.processes(cut.parts, inputs) as submit:
        by_hand.check_results(cut, inputs, {"processes": submit})


def test_one_device_compares_with_a_plain_session(rows):
    results = rows(
        one_device.main, "--models", "where,nonzero", "--seconds", "0.05", "--rounds", "1"
    )
    assert [row["model"] for row in results] == ["where", "nonzero"]
    assert all(row["bare_us"] > 0 for row in results)


@pytest.mark.slow
def test_scale_reports_time_per_stage_and_leaks(rows):
    (row,) = rows(
        scale.main, "--devices", "2", "--stages", "5", "--windows", "4", "--seconds", "0.02"
    )
    assert row["us_per_stage"] == pytest.approx(row["us_per_request"] / 5, abs=0.05)
    # Another part of this process may open a descriptor during one of them, but requests never.
    soaks = [row for _ in range(2) for row in rows(scale.main, "soak", "--requests", "40")]
    assert [row["requests"] for row in soaks] == [40, 40]
    assert min(row["descriptors_growth"] for row in soaks) <= 0


@pytest.mark.slow
def test_growth_has_one_value_per_device_count(capsys):
    growth.main(["--devices", "2,3", "--json"])
    results = json.loads(capsys.readouterr().out)["rows"]
    assert {"deploy", "request, alone", "loss of a device: others wait"} < {
        r["what"] for r in results
    }
    assert all(row["2"] >= 0 and row["3"] >= 0 for row in results)


def test_numbers_accept_units():
    assert numbers("1k,2.5M,7,") == [1_000, 2_500_000, 7]


def test_measure_keeps_window_in_flight():
    events: list[tuple[str, int]] = []

    def submit() -> Callable[[], None]:
        number = len(events)
        events.append(("submit", number))
        return lambda: events.append(("wait", number))

    timing = Timing()
    measure(submit, 3, 0, timing)
    assert [kind for kind, _ in events] == ["submit"] * 3 + ["wait"] * 3
    assert [number for _, number in events] == [0, 1, 2] * 2
    assert (len(timing.latencies_s), timing.steady_answers) == (3, 0)
    measure(submit, 3, 0, timing, windows=4)
    assert (len(timing.latencies_s), timing.steady_answers) == (3 + 12, 12 - 2 * 3 + 1)


class ScriptedModel:
    """Model whose requests end as scripted: right, wrong, twice, never, or in an error."""

    def __init__(self, outcomes: list[str]) -> None:
        self._outcomes = outcomes
        self.num_requests = 0

    def create_infer_request(self) -> ScriptedRequest:
        self.num_requests += 1
        return ScriptedRequest(self._outcomes[min(self.num_requests, len(self._outcomes)) - 1])


class ScriptedRequest:
    def __init__(self, outcome: str) -> None:
        self._outcome = outcome

    def set_callback(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback

    def start_async(self, inputs: dict[str, np.ndarray], **_: Any) -> None:
        if self._outcome == "refused":
            raise DeviceLostError("gone")
        self._x = inputs["x"]
        for _ in range({"never": 0, "twice": 2}.get(self._outcome, 1)):
            self._callback(None)

    @property
    def results(self) -> dict[str, np.ndarray]:
        if self._outcome == "fails":
            raise DeviceLostError("gone")
        return {"y": 2 * (self._x + 1) + (self._outcome == "wrong")}


def test_flow_counts_right_wrong_lost_and_duplicate_results():
    outcomes = ["right", "wrong", "twice", "refused", "fails", "never", "right"]
    flow = Flow(ScriptedModel(outcomes), window=2, rate=1e6, timeout_s=1)  # type: ignore[arg-type]
    while flow.requests < len(outcomes) + 5:
        assert flow._thread.is_alive()
    flow._stopped.set()
    flow._thread.join(300)  # results arrive in this thread
    flow.stop(0)
    assert (flow.wrong, flow.duplicated, flow.lost) == (1, 1, 3)
    assert flow.errors == {"DeviceLostError": 2}
    assert len(flow.answers) == flow.requests - 4
    results = chaos.result(flow, [(0.0, "kill"), (flow.answers[-1][1] + 1, "stop")], 1e9)
    assert (results["faults"], results["unrecovered"]) == (2, 1)
    assert results["kinds"] == {"kill": 1, "stop": 1}


def test_requests_of_a_flow_have_different_inputs():
    inputs = {question(number)[:8].tobytes() for number in range(1, 500)}
    assert len(inputs) == 499


@pytest.mark.ray
@pytest.mark.slow
def test_chaos_counts_faults_and_requests(capsys):
    chaos.main(["--seconds", "8", "--json"])
    results = json.loads(capsys.readouterr().out)
    assert results["whole"]
    assert results["requests"] > 0
    assert results["faults"] == sum(results["kinds"].values()) > 0
    assert (results["duplicated"], results["wrong"]) == (0, 0)


@pytest.mark.slow
def test_paired_compares_two_checkouts(capsys):
    checkout = str(Path(__file__).parents[1])
    options = ["--models", "small-vit,small-lstm", "--turns", "2", "--seconds", "0.02", "--json"]
    paired.main([checkout, *options])
    results = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in results["rows"]] == ["small-vit", "small-lstm"]
    for row in results["rows"]:
        assert row["ratio"] == pytest.approx(row["this_ms"] / row["other_ms"])
    assert results["geometric_mean"] > 0


def test_states_reduce_the_bytes_per_token(rows):
    options = ("--device", "CPU", "--tokens", "4", "--turns", "1", "--layers", "2", "--width", "8")
    results = rows(state.main, *options, "--heads", "2")
    assert [(row["devices"], row["way"]) for row in results] == [
        (count, way) for count in (1, 2) for way in ("onnxruntime", "handed", "state")
    ]
    for _, handed, with_states in (results[:3], results[3:]):
        assert with_states["bytes_per_token"] < handed["bytes_per_token"]


@pytest.mark.slow
def test_simulate_compares_with_real_runs(capsys):
    cases = ["NULL 20 ms, batches of 4, 60 %", "ORT 2 stages, 70 %"]
    simulate.main(["--only", *cases, "--seconds", "0.2", "--advice", "1", "--json"])
    results = json.loads(capsys.readouterr().out)
    assert [row["run"] for row in results["rows"]] == cases
    assert all(row["rate"] > 0 and row["rate error"] > -1 for row in results["rows"])
    assert results["advice"][0]["advice"].startswith("+1")


def test_simulate_scale_counts_events(
    capsys,
):
    simulate.main(["--scale", "10", "--requests", "100", "--json"])
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["events"] > 100 * 5
