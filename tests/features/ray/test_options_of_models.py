"""Options of models on Ray: ranges of replicas, live samples, memory budgets, joined models."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from onnx.parser import parse_model

import hetero
from tests.hetero.verify.faulty_vendor import FaultyVendor, small, small_output
from tests.support.models import branches, branches_output
from tests.support.slow_replica import share_of_slow_replica

pytestmark = pytest.mark.ray

DEVICES = "HETERO:CPU.0,CPU.1"
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
#: Limit for an event on a busy machine, in seconds.
PATIENCE_S = 60


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_replicas_follow_the_load(core):
    with core.compile_model(branches(), DEVICES, {"REPLICAS": "1..2"}) as compiled:
        scaler = compiled.target.autoscaler
        assert scaler is not None
        scaler.policy.up_delay_s = scaler.policy.down_delay_s = 0.0
        scaler.policy.minimum = 2  # as under load
        compiled({"x": X})  # starts the scaling
        wait_until(lambda: compiled.num_replicas == 2)
        requests = [compiled.create_infer_request() for _ in range(40)]
        for factor, request in enumerate(requests):
            request.start_async({"x": X * factor})
        scaler.policy.minimum = scaler.policy.maximum = 1
        for factor, request in enumerate(requests):
            request.wait()
            expected = branches_output(X * factor)
            np.testing.assert_allclose(request.results["y"], expected, rtol=1e-5)
        wait_until(lambda: compiled.num_replicas == 1)


def test_slow_replica_runs_fewer_requests(local_ray):
    with hetero.Core(devices={"NULL": 2}) as core:
        assert share_of_slow_replica(core) < 0.3  # with equal turns: 0.5


def test_samples_of_a_split_model_agree(core):
    config = {"VERIFY": "NO", "VERIFY_SAMPLE": 1}
    with (
        core.compile_model(
            branches(), "HETERO:ORT,CPU.0", config, affinity={"op:Neg": "CPU.0"}
        ) as compiled,
        core.serve_metrics() as server,
    ):
        compiled({"x": X})
        wait_until(lambda: "hetero_verify_samples_total{" in server.text())
        assert "hetero_verify_differences_total{" not in server.text()


def test_wrong_device_is_excluded_from_the_running_model(local_ray):
    config = {
        "VERIFY": "NO",
        "VERIFY_SAMPLE": 1,
        "VERIFY_SAMPLE_ACTION": "EXCLUDE",
        "FAULT": "relu_lets_negatives_pass",
    }
    plugin = f"{FaultyVendor.__module__}:{FaultyVendor.__qualname__}"
    with (
        hetero.Core("ray", plugins=[plugin]) as core,
        core.compile_model(small(), "HETERO:VENDOR,CPU", config) as compiled,
    ):
        requests = [compiled.create_infer_request() for _ in range(8)]
        end_s = time.monotonic() + PATIENCE_S
        while set(compiled.affinity.values()) != {"CPU"}:  # requests run all the time
            assert time.monotonic() < end_s
            compiled(X)  # wrong as long as the device is used
            for request in requests:
                request.start_async(np.abs(X))
            for request in requests:
                request.wait()
                np.testing.assert_allclose(request.results["y"], small_output(np.abs(X)), 1e-6)
        for request in requests:
            np.testing.assert_allclose(request.infer(X)["y"], small_output(X), 1e-6)
        assert [s.device for s in compiled.subgraphs] == ["CPU"]


def test_model_is_split_by_the_memory_of_its_devices(core):
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        layers (float[1, 2000] x) => (float[1, 2000] y) { h = MatMul(x, v)  y = MatMul(h, w) }
    """
    model = parse_model(text)
    random = np.random.default_rng(0)
    weights = [random.standard_normal((2000, 2000)).astype(np.float32) for _ in "vw"]
    for name, weight in zip("vw", weights, strict=True):
        tensor = model.graph.initializer.add(name=name, data_type=1, dims=weight.shape)
        tensor.raw_data = weight.tobytes()
    whole = core.plan_model(model, "CPU.0", {"FIT_MEMORY": True}).memory[0].peak_nbytes
    budgets = {"CPU.0": whole - 8_000_000, "CPU.1": whole - 8_000_000}  # half of one weight less
    config = {"FIT_MEMORY": True, "DEVICE_MEMORY_NBYTES": budgets}
    x = random.standard_normal((1, 2000)).astype(np.float32)
    with core.compile_model(model, DEVICES, config) as compiled:
        assert [subgraph.device for subgraph in compiled.subgraphs] == ["CPU.0", "CPU.1"]
        np.testing.assert_allclose(
            compiled({"x": x})["y"], x @ weights[0] @ weights[1], rtol=1e-3, atol=1e-1
        )


def test_joined_models_run_on_two_devices(core):
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    first = f"{head} first (float[3] x) => (float[3] boxes) {{ boxes = Neg(x) }}"
    second = f"{head} second (float[3] rois) => (float[3] y) {{ y = Relu(rois) }}"
    models = [parse_model(first), parse_model(second)]
    joined = core.read_model(models, wires={"boxes": "rois"})
    pins = {"op:Neg": "CPU.0", "op:Relu": "CPU.1"}
    with core.compile_model(joined, DEVICES, affinity=pins) as compiled:
        assert [subgraph.device for subgraph in compiled.subgraphs] == ["CPU.0", "CPU.1"]
        y = compiled({"x": np.float32([-1, 0, 2])})["y"]
    np.testing.assert_array_equal(y, [1, 0, 0])
