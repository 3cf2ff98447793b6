"""Replanning after devices are lost for good, while requests run."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import ray
from onnx.parser import parse_model

import hetero
from hetero.devices.errors import DeviceLostError, UnknownDeviceError
from hetero.scheduler.executor import ReplannedModel
from hetero.scheduler.ray.nodes import alive_nodes
from tests.scheduler.endpoints import wait_for
from tests.support.models import branches, branches_output

pytestmark = pytest.mark.ray
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def new_core(local_ray):
    """A Core whose devices a test may end."""
    with hetero.Core(devices={"CPU": 2}) as core:
        yield core


@pytest.mark.slow
def test_requests_run_on_remaining_devices_until_none_remains(new_core, monkeypatch):
    executor: Any = new_core.executor
    devices = executor._devices
    missing: set[str] = set()
    with_addresses = devices.with_addresses

    def with_addresses_unless_missing(names: Collection[str], *, wait: bool = True) -> Any:
        if absent_names := missing.intersection(names):
            raise UnknownDeviceError(f"{absent_names} left the cluster")
        return with_addresses(names, wait=wait)

    monkeypatch.setattr(devices, "with_addresses", with_addresses_unless_missing)
    monkeypatch.setattr("hetero.scheduler.ray.executor.AWAITED_S", 0.0)
    compiled = new_core.compile_model(branches(), "HETERO:CPU.0,CPU.1", affinity={"tanh": "CPU.1"})
    assert {s.device for s in compiled.subgraphs} == {"CPU.0", "CPU.1"}

    def pid_of(name: str) -> int:
        missing.add(name)
        pid: int = ray.get(executor._devices.device(name).actor.ping.remote())
        return pid

    # The device is stopped first, so that its loss finds requests in flight.
    pid = pid_of("CPU.1")
    os.kill(pid, signal.SIGSTOP)
    submissions = [compiled.submit({"x": X}) for _ in range(3)]
    os.kill(pid, signal.SIGKILL)
    for submission in [*submissions, compiled.submit({"x": X})]:
        result = submission.future.result(300)
        np.testing.assert_allclose(result.outputs["y"], branches_output(X), rtol=1e-6)
        assert {run.device for run in result.stage_timings} == {"CPU.0"}
    assert {s.device for s in compiled.subgraphs} == {"CPU.0"}
    assert compiled.get_property("EXECUTION_DEVICES") == ["CPU.0"]
    assert set(compiled.affinity.values()) == {"CPU.0"}
    assert len(compiled.get_runtime_model().nodes) == len(compiled.executed_nodes())
    history = "\n".join(line.event for line in compiled.story(submissions[0].request_id))
    assert "device CPU.1" in history
    assert "parked" in history
    os.kill(pid_of("CPU.0"), signal.SIGKILL)
    with pytest.raises(DeviceLostError, match="no device remains"):
        compiled({"x": X})
    missing.clear()  # the nodes have returned
    end_s = time.monotonic() + 120
    while time.monotonic() < end_s:
        with contextlib.suppress(DeviceLostError):
            np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)
            break
        time.sleep(0.1)
    else:
        raise AssertionError("devices that have returned are not used")


@pytest.mark.slow
def test_replan_does_not_wait_for_joining_nodes(local_ray, monkeypatch):
    (local,) = alive_nodes()
    leaving = replace(local, id="leaving", name="leaving", host="leaving")
    joining = replace(
        local,
        id="joining",
        name="joining",
        host="joining",
        options={"num_cpus": 0, "resources": {"nowhere": 1}},  # it never answers
    )
    nodes = [local, leaving]
    monkeypatch.setattr("hetero.scheduler.ray.node_discovery.alive_nodes", lambda: tuple(nodes))
    with hetero.Core(devices={"CPU": 1}) as core:
        executor: Any = core.executor
        devices = executor._devices
        names = {
            descriptor.node: descriptor.name
            for descriptor in core.device_descriptors
            if descriptor.plugin == "CPU"
        }
        remaining_name, lost_name = names[local.name], names["leaving"]
        compiled = core.compile_model(
            branches(), f"HETERO:{remaining_name},{lost_name}", affinity={"tanh": lost_name}
        )
        assert {s.device for s in compiled.subgraphs} == {remaining_name, lost_name}
        pid: int = ray.get(devices.device(lost_name).actor.ping.remote())
        monkeypatch.setattr(devices.discovery, "_probe_timeout_s", math.inf)
        nodes[1] = joining
        os.kill(pid, signal.SIGKILL)
        result = compiled.submit({"x": X}).future.result(300)
        np.testing.assert_allclose(result.outputs["y"], branches_output(X), rtol=1e-6)
        assert {run.device for run in result.stage_timings} == {remaining_name}
        assert "joining" in devices.discovery._probes


def compile_on_each(core: hetero.Core) -> tuple[list[hetero.CompiledModel], list[Any]]:
    """Compile a model for each of two devices; return the models and their deployments."""
    deployments: Any = core.executor._deployments  # type: ignore[attr-defined]
    earlier_keys = {deployment.key for deployment in deployments}
    compiled = [core.compile_model(branches(), name) for name in ("CPU.0", "CPU.1")]
    return compiled, [
        deployment for deployment in deployments if deployment.key not in earlier_keys
    ]


@pytest.mark.slow
def test_failed_load_of_placement_adds_no_device(new_core, monkeypatch):
    executor: Any = new_core.executor
    models, (deployment, other) = compile_on_each(new_core)
    assert set(deployment.devices) == {"CPU.0"}
    monkeypatch.setattr(executor._loader, "load", lambda *_: {}["CPU.1 is lost"])
    with pytest.raises(KeyError):
        executor._add(deployment, ReplannedModel(other.placement, other.sources, {}))
    assert set(deployment.devices) == {"CPU.0"}
    assert [model({"x": X})[0].shape for model in models]


@pytest.mark.slow
def test_placement_requires_devices_with_loaded_stages(new_core):
    """Requests must not take routes whose stages the restarted device has not loaded yet."""
    executor: Any = new_core.executor
    _, (deployment, other) = compile_on_each(new_core)
    deployment.devices["CPU.1"] = other.devices["CPU.1"]
    deployment.set_address("CPU.1", "of the process before")
    with pytest.raises(DeviceLostError, match="not loaded its stages"):
        executor._add(deployment, ReplannedModel(other.placement, other.sources, {}))
    assert set(deployment.placement.devices) == {"CPU.0"}


@pytest.mark.slow
def test_placement_added_during_reload_is_kept(new_core, monkeypatch):
    executor: Any = new_core.executor
    models, (changed, other) = compile_on_each(new_core)
    earlier, load = (changed.placement, changed.sources), executor._loader._load

    def add_and_load(deployment: Any, stages: Any) -> Any:
        changed.add(
            ReplannedModel(other.placement, other.sources, {}), other.devices, other.num_threads
        )
        return load(deployment, stages)

    monkeypatch.setattr(executor._loader, "_load", add_and_load)
    executor._loader.load(changed, changed.placement.stages)
    assert {stage.device for stage in changed.placement.stages} == {"CPU.0", "CPU.1"}
    changed.take_back(*earlier)
    for model in models:
        np.testing.assert_allclose(model({"x": X})[0], branches_output(X), rtol=1e-6)


def test_added_route_sends_constants_to_earlier_stages(core):
    """A stage computes the constant once; its reader is a stage of both routes."""
    model = parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[2] x) => (float[2] y) {
            [constant] c = Constant <value = float[2] {-3.0, 4.0}> ()
            [same] k = Abs (c)
            [other] n = Neg (x)
            [sum] y = Add (n, k)
        }"""
    )
    x = np.float32([1, 2])
    executor: Any = core.executor
    earlier = set(executor._deployments)
    pins = {"constant": "CPU.0", "same": "CPU.0", "sum": "CPU.1"}
    devices = "HETERO:CPU.0,CPU.1,CPU.2"
    compiled = [
        core.compile_model(model, devices, affinity={**pins, "other": device})
        for device in ("CPU.0", "CPU.2")
    ]
    deployment, other = (d for d in executor._deployments if d not in earlier)
    assert (len(deployment.constant_stages.outputs), len(other.constant_stages.outputs)) == (1, 1)
    executor._add(deployment, ReplannedModel(other.placement, other.sources, {}))
    # Both routes share the stages of the constant and of its reader.
    assert {0, 2} < set(deployment.placement.routes[1].stages)
    for _ in range(4):  # by both routes
        np.testing.assert_array_equal(compiled[0]({"x": x})[0], [2, 2])


def test_devices_of_returned_node_start_concurrently(new_core, monkeypatch):
    supervisor = new_core.executor._supervisor  # type: ignore[attr-defined]  # of the Ray executor
    barrier = threading.Barrier(3)

    def start(name: str, *, reload: bool) -> Any:
        barrier.wait(300)
        raise DeviceLostError(f"{name} died again")

    monkeypatch.setattr(supervisor, "_start", start)
    supervisor._find(["CPU.0", "CPU.1", "CPU.7"])
    barrier.wait(300)
    wait_for(lambda: not supervisor._returning_devices)


def test_starting_device_on_unreachable_host_is_lost(new_core, monkeypatch):
    devices = new_core.executor._devices  # type: ignore[attr-defined]  # of the Ray executor
    device = devices.device("CPU.1")

    def refuse(address: str, timeout_s: float, host_timeout_s: float) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr("hetero.scheduler.ray.node_discovery.reach", refuse)
    with pytest.raises(DeviceLostError, match="its node has left"):
        devices.fetch(device, device.actor.wait_for_end.remote())
    monkeypatch.undo()
    ray.kill(device.actor)


@pytest.mark.slow
def test_requests_avoid_a_device_that_starts_slowly(new_core, monkeypatch):
    executor: Any = new_core.executor
    compiled = new_core.compile_model(branches(), "HETERO:CPU.0,CPU.1", affinity={"tanh": "CPU.1"})
    may_start, start = threading.Event(), executor._supervisor._start

    def start_late(name: str, *, reload: bool) -> Any:
        may_start.wait(300)
        return start(name, reload=reload)

    def devices_of_a_request() -> set[str]:
        result = compiled.submit({"x": X}).future.result(300)
        np.testing.assert_allclose(result.outputs["y"], branches_output(X), rtol=1e-6)
        return {run.device for run in result.stage_timings}

    monkeypatch.setattr(executor._supervisor, "_start", start_late)
    monkeypatch.setattr("hetero.scheduler.client.liveness._EXCLUDED_AFTER_S", 0.0)
    assert devices_of_a_request() == {"CPU.0", "CPU.1"}
    pid = ray.get(executor._devices.device("CPU.1").actor.ping.remote())
    os.kill(pid, signal.SIGKILL)
    assert devices_of_a_request() == {"CPU.0"}
    may_start.set()
    wait_for(lambda: devices_of_a_request() == {"CPU.0", "CPU.1"})
