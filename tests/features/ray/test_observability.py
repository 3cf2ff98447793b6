"""Traces, metrics and request histories on Ray, also of lost devices."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import onnx
import pytest
import ray

from tests.support import prometheus_text as exposition
from tests.support.core_fixtures import core_fixture
from tests.support.models import branches

pytestmark = pytest.mark.ray
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
SPLIT = "HETERO:CPU.0,CPU.1"
CUT = {"op:Tanh": "CPU.1"}


private_core = core_fixture(executor="ray", devices={"CPU": 2})


def test_trace_has_one_clock_for_all_devices(core, tmp_path):
    with (
        core.trace(tmp_path / "trace.json"),
        core.compile_model(branches(), SPLIT, affinity=CUT) as compiled,
    ):
        for _ in range(3):
            compiled(X)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    requests = {
        e["args"]["request"]: e for e in events if e.get("cat") == "request" and "args" in e
    }
    stages = [e for e in events if e.get("cat") == "stage"]
    assert len(requests) == 3
    assert len(stages) == 9
    for stage in stages:
        request = requests[stage["args"]["request"]]
        assert request["ts"] <= stage["ts"]
        assert stage["ts"] + stage["dur"] <= request["ts"] + request["dur"]
    assert {e["args"]["device"] for e in stages} == {"CPU.0", "CPU.1"}


@pytest.mark.slow
def test_lost_device_is_in_metrics_trace_and_history(private_core, tmp_path):
    path = tmp_path / "trace.json"
    with (
        private_core.trace(path),
        private_core.serve_metrics() as metrics,
        private_core.compile_model(branches(), SPLIT, affinity=CUT) as compiled,
    ):
        request = compiled.create_infer_request()
        request.infer(X)
        device = compiled.deployment.devices["CPU.1"]  # type: ignore[attr-defined]
        os.kill(ray.get(device.actor.ping.remote()), signal.SIGKILL)
        request.infer(X, timeout_s=60)
        families = exposition.read(metrics.text())
        history = request.story()
    model = "branches"
    assert families["hetero_requests_total"].value(model=model, state="answered") == 2
    assert families["hetero_device_losses_total"].value(device="CPU.1") == 1
    (age_s,) = (
        value
        for (_, labels), value in families["hetero_device_heartbeat_age_seconds"].values.items()
        if ("device", "CPU.0") in labels
    )
    assert 0 <= age_s < 60
    retries = families["hetero_request_retries_total"].value(model=model)
    assert retries == max(int(line.split("attempt ")[1].split(":")[0]) for line in history) - 1
    events = json.loads(path.read_text())["traceEvents"]
    event_names = [e["name"] for e in events if e.get("cat") == "device"]
    assert any(name.startswith("CPU.1 lost: ") for name in event_names)


@pytest.mark.slow
def test_commands_trace_and_show_ray_requests(private_core, shell, tmp_path):
    model, path = tmp_path / "branches.onnx", tmp_path / "trace.json"
    onnx.save_model(branches(), model)
    pins = ("-d", SPLIT, "--devices", "CPU=2", "-a", "op:Tanh=CPU.1")
    line = ("run --profile --json", model, *pins, "--trace", path, "--metrics-port", 0)
    result = shell(*line, ray=True)
    assert result.code == 0, result.err
    profile = result.document["profile"]
    assert all(row["seconds"] > 0 for row in profile["nodes"])
    assert sorted(name for row in profile["nodes"] for name in row["covers"]) == sorted(
        node.name for node in branches().graph.node
    )
    assert [row["runs"] for row in profile["stages"]] == [10, 10, 10]
    assert "metrics: http://127.0.0.1:" in result.err
    events = json.loads(path.read_text())["traceEvents"]
    devices = {e["args"]["device"] for e in events if e.get("cat") == "stage"}
    assert devices == {"CPU.0", "CPU.1"}
    with (
        private_core.serve_metrics() as metrics,
        private_core.compile_model(branches(), SPLIT, affinity=CUT) as compiled,
    ):
        compiled(X)
        document = shell("top --json", metrics.url, ray=True).document
    assert [d["device"] for d in document["devices"] if d["up"]] == ["CPU.0", "CPU.1"]
    assert [s["device"] for s in document["stages"]] == ["CPU.0", "CPU.1", "CPU.0"]
