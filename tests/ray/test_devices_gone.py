"""Devices that are gone for good: models are placed anew on what is left, while requests run."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import ray
from onnx.parser import parse_model

import hetero
from hetero.devices.errors import DeviceLostError, UnknownDeviceError
from hetero.scheduler.executor import Remade
from hetero.scheduler.ray.nodes import alive_nodes
from tests.scheduler.parties import wait_for
from tests.support.models import branches, branches_output

pytestmark = pytest.mark.ray
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def core(local_ray: None) -> Iterator[hetero.Core]:
    with hetero.Core(devices={"CPU": 2}) as core:
        yield core


def test_requests_go_on_on_what_is_left_and_fail_at_once_when_nothing_is(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor: Any = core.executor
    devices = executor._devices
    gone: set[str] = set()
    reached = devices.reached

    def unless_gone(names: Collection[str], *, wait: bool = True) -> Any:
        if left := gone.intersection(names):
            raise UnknownDeviceError(f"{left} left the cluster")
        return reached(names, wait=wait)

    monkeypatch.setattr(devices, "reached", unless_gone)
    monkeypatch.setattr("hetero.scheduler.ray.executor.AWAITED_S", 0.0)
    compiled = core.compile_model(branches(), "HETERO:CPU.0,CPU.1", affinity={"tanh": "CPU.1"})
    assert {s.device for s in compiled.subgraphs} == {"CPU.0", "CPU.1"}

    def pid_of(name: str) -> int:
        gone.add(name)
        pid: int = ray.get(executor._devices.device(name).actor.ping.remote())
        return pid

    # What is in flight at the time is answered too: the device is stopped before it is lost.
    pid = pid_of("CPU.1")
    os.kill(pid, signal.SIGSTOP)
    waiting = [compiled.submit({"x": X}) for _ in range(3)]
    os.kill(pid, signal.SIGKILL)
    for submission in [*waiting, compiled.submit({"x": X})]:
        answer = submission.future.result(300)
        np.testing.assert_allclose(answer.outputs["y"], branches_output(X), rtol=1e-6)
        assert {run.device for run in answer.stage_timings} == {"CPU.0"}
    assert {s.device for s in compiled.subgraphs} == {"CPU.0"}
    assert compiled.get_property("EXECUTION_DEVICES") == ["CPU.0"]
    assert set(compiled.affinity.values()) == {"CPU.0"}
    assert len(compiled.get_runtime_model().nodes) == len(compiled.executed_nodes())
    story = "\n".join(line.event for line in compiled.story(waiting[0].request_id))
    assert "device CPU.1" in story
    assert "parked" in story
    os.kill(pid_of("CPU.0"), signal.SIGKILL)
    with pytest.raises(DeviceLostError, match="no device remains"):
        compiled({"x": X})
    gone.clear()  # the nodes are back
    end_s = time.monotonic() + 120
    while time.monotonic() < end_s:
        with contextlib.suppress(DeviceLostError):
            np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)
            break
        time.sleep(0.1)
    else:
        raise AssertionError("devices that are back are not used")


def test_what_is_left_is_used_before_a_node_that_joins_has_answered(
    local_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here,) = alive_nodes()
    leaving = replace(here, id="leaving", name="leaving", host="leaving")
    joining = replace(
        here,
        id="joining",
        name="joining",
        host="joining",
        options={"num_cpus": 0, "resources": {"nowhere": 1}},  # its answer never comes
    )
    nodes = [here, leaving]
    monkeypatch.setattr("hetero.scheduler.ray.survey.alive_nodes", lambda: tuple(nodes))
    with hetero.Core(devices={"CPU": 1}) as core:
        executor: Any = core.executor
        devices = executor._devices
        on = {row.node: row.name for row in core.device_descriptors if row.plugin == "CPU"}
        left, gone = on[here.name], on["leaving"]
        compiled = core.compile_model(branches(), f"HETERO:{left},{gone}", affinity={"tanh": gone})
        assert {s.device for s in compiled.subgraphs} == {left, gone}
        pid: int = ray.get(devices.device(gone).actor.ping.remote())
        monkeypatch.setattr(devices.survey, "_probe_timeout_s", math.inf)
        nodes[1] = joining
        os.kill(pid, signal.SIGKILL)
        answer = compiled.submit({"x": X}).future.result(300)
        np.testing.assert_allclose(answer.outputs["y"], branches_output(X), rtol=1e-6)
        assert {run.device for run in answer.stage_timings} == {left}
        assert "joining" in devices.survey._probes


def one_each(core: hetero.Core) -> tuple[list[hetero.CompiledModel], list[Any]]:
    """Return a model on each of two devices, and their deployments."""
    deployments: Any = core.executor._deployments  # type: ignore[attr-defined]
    before = {deployment.key for deployment in deployments}
    compiled = [core.compile_model(branches(), name) for name in ("CPU.0", "CPU.1")]
    return compiled, [each for each in deployments if each.key not in before]


@pytest.mark.slow
def test_a_placement_that_cannot_be_loaded_leaves_none_of_its_devices_behind(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor: Any = core.executor
    kept, (mine, other) = one_each(core)
    assert set(mine.devices) == {"CPU.0"}
    monkeypatch.setattr(executor._loader, "load", lambda *_: {}["CPU.1 is lost"])
    with pytest.raises(KeyError):
        executor._add(mine, Remade(other.placement, other.sources, {}))
    assert set(mine.devices) == {"CPU.0"}
    assert [model({"x": X})[0].shape for model in kept]


def test_a_placement_waits_for_a_device_that_has_not_its_stages_again(core: hetero.Core) -> None:
    """Else requests would go to its new process by routes whose stages are not loaded there."""
    executor: Any = core.executor
    _, (mine, other) = one_each(core)
    mine.devices["CPU.1"] = other.devices["CPU.1"]
    mine.move("CPU.1", "of the process before")
    with pytest.raises(DeviceLostError, match="not loaded its stages"):
        executor._add(mine, Remade(other.placement, other.sources, {}))
    assert set(mine.placement.devices) == {"CPU.0"}


@pytest.mark.slow
def test_a_placement_that_comes_while_a_device_is_loaded_again_stays(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor: Any = core.executor
    kept, (mine, other) = one_each(core)
    was, load = (mine.placement, mine.sources), executor._loader._load

    def meanwhile(deployment: Any, stages: Any) -> Any:
        mine.add(Remade(other.placement, other.sources, {}), other.devices, other.num_threads)
        return load(deployment, stages)

    monkeypatch.setattr(executor._loader, "_load", meanwhile)
    executor._loader.load(mine, mine.placement.stages)
    assert {stage.device for stage in mine.placement.stages} == {"CPU.0", "CPU.1"}
    mine.take_back(*was)
    for model in kept:
        np.testing.assert_allclose(model({"x": X})[0], branches_output(X), rtol=1e-6)


def test_what_is_the_same_for_every_request_is_sent_to_stages_that_were_loaded_without_it(
    local_ray: None,
) -> None:
    """On the way that is added it is made by a stage of its own, and read by one of both ways."""
    model = parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[2] x) => (float[2] y) {
            [drawn] c = Constant <value = float[2] {-3.0, 4.0}> ()
            [same] k = Abs (c)
            [other] n = Neg (x)
            [sum] y = Add (n, k)
        }"""
    )
    x = np.float32([1, 2])
    with hetero.Core(devices={"CPU": 3}) as core:
        executor: Any = core.executor
        pins = {"drawn": "CPU.0", "same": "CPU.0", "sum": "CPU.1"}
        devices = "HETERO:CPU.0,CPU.1,CPU.2"
        compiled = [
            core.compile_model(model, devices, affinity={**pins, "other": where})
            for where in ("CPU.0", "CPU.2")
        ]
        mine, other = executor._deployments
        assert (len(mine.known.outputs), len(other.known.outputs)) == (0, 1)
        executor._add(mine, Remade(other.placement, other.sources, {}))
        assert 1 in mine.placement.routes[1].stages
        for _ in range(4):  # by either way
            np.testing.assert_array_equal(compiled[0]({"x": x})[0], [2, 2])


def test_devices_whose_node_is_back_start_side_by_side(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = core.executor._keeper  # type: ignore[attr-defined]  # of the Ray executor
    together = threading.Barrier(3)

    def start(name: str, *, reload: bool) -> Any:
        together.wait(300)
        raise DeviceLostError(f"{name} died again")

    monkeypatch.setattr(keeper, "_start", start)
    keeper._find(["CPU.0", "CPU.1", "CPU.7"])
    together.wait(300)
    wait_for(lambda: not keeper._coming)


def test_a_device_whose_host_lets_nobody_in_while_it_starts_is_lost(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = core.executor._devices  # type: ignore[attr-defined]  # of the Ray executor
    device = devices.device("CPU.1")

    def refuse(address: str, timeout_s: float, host_timeout_s: float) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr("hetero.scheduler.ray.survey.reach", refuse)
    with pytest.raises(DeviceLostError, match="its node has left"):
        devices.fetch(device, device.actor.stay.remote())
    monkeypatch.undo()
    ray.kill(device.actor)


@pytest.mark.slow
def test_requests_go_elsewhere_while_a_device_takes_long_to_start(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor: Any = core.executor
    compiled = core.compile_model(branches(), "HETERO:CPU.0,CPU.1", affinity={"tanh": "CPU.1"})
    started, start = threading.Event(), executor._keeper._start

    def start_late(name: str, *, reload: bool) -> Any:
        started.wait(300)
        return start(name, reload=reload)

    def devices() -> set[str]:
        answer = compiled.submit({"x": X}).future.result(300)
        np.testing.assert_allclose(answer.outputs["y"], branches_output(X), rtol=1e-6)
        return {run.device for run in answer.stage_timings}

    monkeypatch.setattr(executor._keeper, "_start", start_late)
    monkeypatch.setattr("hetero.scheduler.client.liveness._AWAY_S", 0.0)
    assert devices() == {"CPU.0", "CPU.1"}
    pid = ray.get(executor._devices.device("CPU.1").actor.ping.remote())
    os.kill(pid, signal.SIGKILL)
    assert devices() == {"CPU.0"}
    started.set()
    wait_for(lambda: devices() == {"CPU.0", "CPU.1"})
