"""The Ray executor on one node: answers, overlap, failures, and actors that die."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import ray
from ray import exceptions

from hetero.devices.errors import (
    ClusterError,
    DeadlineError,
    DeviceError,
    DeviceLostError,
    OverloadedError,
    RequestCancelledError,
    UnsupportedNodesError,
)
from hetero.devices.model.lazy_model import LazyModel
from hetero.devices.model.model import Model
from hetero.devices.request.request import Request
from hetero.scheduler import Limits, StageSource, create_executor
from hetero.scheduler.formats.model_parts import ModelParts, split_model
from hetero.scheduler.ray.devices import RayDevices
from hetero.scheduler.ray.executor import RayExecutor
from hetero.scheduler.ray.nodes import ClusterNode, alive_nodes
from hetero.scheduler.ray.start import connect
from hetero.scheduler.ray.survey import NodeSurvey
from hetero.scheduler.vocabulary.rows import DeviceDescriptor
from tests.scheduler.models import build, chain, cut, diamond
from tests.scheduler.on_any_executor import (  # noqa: F401  # run here as well
    test_a_plugin_that_fails_to_compile_is_named,
    test_a_plugin_that_misbehaves_takes_nothing_with_it,
    test_a_stage_that_raises_is_named_and_the_deployment_goes_on,
    test_branches_of_one_request_overlap,
    test_chain,
    test_requests_overlap_and_each_gets_its_own_answer,
    test_what_depends_on_no_input_is_loaded_with_its_readers,
)
from tests.scheduler.parties import wait_for
from tests.scheduler.plugins import BrokenPlugin, TwinPlugin

pytestmark = pytest.mark.ray
X = np.arange(4, dtype=np.float32)
TOY = "tests.scheduler.plugins:ToyPlugin"


@pytest.fixture(scope="module")
def executor(local_ray: None) -> Iterator[RayExecutor]:
    executor = create_executor("ray", devices={"TOY": 3}, plugins=(TOY, TwinPlugin, BrokenPlugin))
    yield executor
    executor.close()
    assert ray.is_initialized(), "a Ray that was there before is left running"


def kill(executor: RayExecutor, device: str, number: int = signal.SIGKILL) -> None:
    pid = ray.get(executor._devices.device(device).actor.ping.remote())
    assert pid != os.getpid()
    os.kill(pid, number)


def test_devices_are_those_of_the_node(executor: RayExecutor) -> None:
    rows = {row.name: row for row in executor.devices()}
    assert {"CPU", "TOY.0", "TOY.1", "TOY.2", "TWIN.0", "TWIN.1", "BROKEN"} <= set(rows)
    assert "libbroken.so is missing" in str(rows["BROKEN"].error)
    assert {row.node for row in rows.values()} == {ray.nodes()[0]["NodeName"]}
    with pytest.raises(DeviceError, match="libbroken"):
        executor.get_property("BROKEN", "FULL_DEVICE_NAME")


def test_query_and_properties(executor: RayExecutor) -> None:
    model = build([("Neg", "n", ("x",), "a"), ("Exp", "e", ("a",), "y")], ["y"])
    support = executor.query("TOY.2", model)
    assert support.devices == {"n": "TOY.2"}
    assert support.unsupported["e"]["TOY.2"].code == "no_kernel"
    assert executor.get_property("TWIN.1", "DEVICE_ID") == "1"


@pytest.mark.parametrize("size", [10, 300_000], ids=["inline", "in the object store"])
def test_inputs_that_several_stages_take(executor: RayExecutor, size: int) -> None:
    model = build(
        [("Neg", "n", ("x",), "a"), ("Add", "b", ("x", "a"), "c"), ("Add", "d", ("x", "c"), "y")],
        ["y", "x"],
    )
    deployment = executor.deploy(*cut(model, ("TOY.0", ["n"]), ("TOY.1", ["b"]), ("TOY.2", ["d"])))
    x = np.arange(size, dtype=np.float32)
    outputs = deployment.submit({"x": x}).future.result(300).outputs
    np.testing.assert_array_equal(outputs["y"], x)
    np.testing.assert_array_equal(outputs["x"], x)


def test_values_that_are_no_plain_tensors_cross(executor: RayExecutor) -> None:
    model = build(
        [("SequenceConstruct", "s", ("x", "x"), "q"), ("Identity", "i", ("q",), "y")], ["y"]
    )
    deployment = executor.deploy(*cut(model, ("TOY.0", ["s"]), ("TOY.1", ["i"])))
    values: list[Any] = [X.astype(ml_dtypes.bfloat16), np.array(["a", "ü"], object), None]
    for value in values:
        first, second = deployment.submit({"x": value}).future.result(300).outputs["y"]
        assert getattr(first, "dtype", None) == getattr(value, "dtype", None)
        assert np.array_equal(first, second)
        assert np.array_equal(first, value)


def test_a_weight_of_several_stages_is_stored_once(executor: RayExecutor) -> None:
    weights = {"w": np.full(200_000, 2, np.float32)}
    lines = [("Add", "n0", ("x", "w"), "a"), ("Mul", "n1", ("a", "w"), "y")]
    model = build(lines, ["y"], weights=weights)
    executor.query("TOY.0", model)
    deployment = executor.deploy(*cut(model, ("TOY.0", ["n0"]), ("TOY.1", ["n1"])))
    y = deployment.submit({"x": np.ones(1, np.float32)}).future.result(300).outputs["y"]
    np.testing.assert_array_equal(y, np.full(200_000, 6, np.float32))
    assert [c for c in executor._loader._weights if c.name == "w"] == [model.constants["w"]]


def test_a_model_is_taken_apart_once_however_often_devices_are_asked(
    executor: RayExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Model] = []

    def counted(model: Model) -> ModelParts:
        taken.append(model)
        return split_model(model)

    monkeypatch.setattr("hetero.scheduler.ray.loading.split_model", counted)
    model = build([("Neg", "n", ("x",), "y")], ["y"])
    for device in ("TOY.0", "TOY.1", "TOY.0"):
        assert executor.query(device, model).devices == {"n": device}
    assert taken == [model]


def test_an_import_reads_nothing_of_the_model_but_its_ports(executor: RayExecutor) -> None:
    plan, (source,) = chain("CPU")
    compiled = executor.deploy(plan, [source])
    payload, rows = compiled.export(0), compiled.executed_nodes(0)

    def read() -> Model:
        raise AssertionError("the model was read")

    model = source.model
    ports = LazyModel(model.name, model.inputs, model.outputs, read)
    imported = executor.deploy(plan, [StageSource(ports, payload)])
    assert imported.imported == {0}
    assert imported.executed_nodes(0) == rows
    np.testing.assert_array_equal(imported.submit({"x": X}).future.result(300).outputs["t0"], X + 1)


def test_devices_of_a_plan_share_the_nodes_cores(executor: RayExecutor) -> None:
    rows = {row.name: row for row in executor.devices()}
    cores = rows["TOY.0"].num_threads
    alone = executor.deploy(*chain("TOY.1"))
    assert alone.export(0).header["threads"] == cores
    both = executor.deploy(*chain("TOY.1", "TOY.2"))
    shares = [both.export(i).header["threads"] for i in (0, 1)]
    assert shares == [max(1, (cores + 1) // 2), max(1, cores // 2)]


def test_a_stage_that_does_not_compile_says_why(executor: RayExecutor) -> None:
    model = build([("Exp", "e", ("x",), "y")], ["y"])
    with pytest.raises(UnsupportedNodesError, match="no Exp"):
        executor.deploy(*cut(model, ("TOY.0", ["e"])))


def test_cancel_stops_what_runs_and_what_waits(executor: RayExecutor) -> None:
    deployment = executor.deploy(*chain("TOY.0", "TOY.1", name="sleep_60_"))
    submissions = [deployment.submit({"x": X}) for _ in range(3)]
    for submission in submissions:
        assert submission.cancel()
        with pytest.raises(RequestCancelledError):
            submission.future.result(300)
    other = executor.deploy(*chain("TOY.0"))
    assert other.submit({"x": X}, Request(timeout_s=300)).future.result()


def test_deadline_and_push_back(executor: RayExecutor) -> None:
    plan = chain("TOY.0", name="sleep_60_")
    deployment = executor.deploy(*plan, limits=Limits(requests=1))
    first = deployment.submit({"x": X})
    with pytest.raises(OverloadedError):
        deployment.submit({"x": X}, Request(waits=False))
    assert first.cancel()
    late = deployment.submit({"x": X}, Request(timeout_s=0.3))
    with pytest.raises(DeadlineError):
        late.future.result(300)


def test_streams(executor: RayExecutor, tmp_path: Path) -> None:
    plan, (source,) = chain("TWIN.0", names=[f"meet_2_{tmp_path}"])
    deployment = executor.deploy(plan, [StageSource(source.model, None, {"NUM_STREAMS": 2})])
    futures = [deployment.submit({"x": X}).future for _ in range(2)]
    assert all(future.result(300) for future in futures)


def test_what_a_killed_actor_had_is_replayed_on_the_one_that_follows(
    executor: RayExecutor, tmp_path: Path
) -> None:
    bystander = executor.deploy(*chain("TOY.0"))
    # The first run waits until it runs again.
    plan = chain("TOY.1", "TOY.2", names=[f"meet_2_{tmp_path}", "add"])
    deployment = executor.deploy(*plan)
    submissions = [deployment.submit({"x": X + i}) for i in range(4)]
    wait_for(lambda: any(tmp_path.iterdir()))
    kill(executor, "TOY.1")
    assert bystander.submit({"x": X}).future.result(300)
    late = deployment.submit({"x": X + 4})
    for i, submission in enumerate([*submissions, late]):
        answer = submission.future.result(300)
        np.testing.assert_array_equal(answer.outputs["t1"], X + i + 2)
    story = "\n".join(line.event for line in deployment.story(submissions[-1].request_id))
    assert "device TOY.1" in story
    assert "parked" in story
    assert story.endswith("answered")


def test_a_connection_that_breaks_is_no_death(executor: RayExecutor) -> None:
    deployment = executor.deploy(*chain("TOY.0", name="sleep_0.5_"))
    device = executor._devices.device("TOY.0")
    submission = deployment.submit({"x": X})
    broken = exceptions.ActorUnavailableError("Socket closed", bytes.fromhex(device.actor_id))
    executor._keeper.ended(device, broken)
    assert submission.future.result(300)
    assert executor._devices.device("TOY.0") is device
    assert [line.attempt for line in deployment.story(submission.request_id)][-1] == 1


def test_an_error_of_a_lost_device_names_it_and_what_helps(executor: RayExecutor) -> None:
    """Not the device that waited for it, nor Ray's words and colours."""
    plan = chain("TWIN.0", "TOY.0", name="sleep_60_")
    deployment = executor.deploy(*plan, limits=Limits(attempts=1))
    submission = deployment.submit({"x": X})
    pid = ray.get(executor._devices.device("TWIN.0").actor.ping.remote())
    kill(executor, "TWIN.0")
    with pytest.raises(DeviceLostError, match="attempt 1") as caught:
        submission.future.result(300)
    assert (caught.value.device, caught.value.attempt) == ("TWIN.0", 1)
    assert caught.value.node == ray.nodes()[0]["NodeName"]
    assert (
        f"device TWIN.0 on node {caught.value.node} is gone: its worker process has died "
        f"(pid {pid}). A device whose node is alive is restarted: send the request again."
    ) in str(caught.value)
    assert any("submitted" in line for line in caught.value.data["story"])
    deployment.close()


def test_a_node_that_is_slow_holds_nobody_up_and_comes_in_when_it_answers(
    executor: RayExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (fast,) = alive_nodes()
    slow = replace(fast, id="slow", name="slow", host="slow")
    monkeypatch.setattr("hetero.scheduler.ray.survey.alive_nodes", lambda: (fast, slow))
    gate = tmp_path / "open"

    def late(rows: Any) -> Any:
        wait_for(gate.exists)
        return rows

    def ask(self: NodeSurvey, node: ClusterNode, until_s: float) -> Any:
        asked = real(self, node, until_s)
        if node.id == "slow":
            asked.ref = ray.remote(num_cpus=0)(late).remote(asked.ref)
        return asked

    real = NodeSurvey._ask
    monkeypatch.setattr(NodeSurvey, "_ask", ask)
    patient = RayDevices(executor._session, (TOY,), {}, executor._keeper.ended, probe_timeout_s=600)
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(patient.descriptors)
        wait_for(lambda: patient.survey._probes or waiting.done())
        assert not waiting.done()
        threads.submit(patient.forget, "an actor").result(300)
        assert not waiting.done()
        hasty = RayDevices(executor._session, (TOY,), {}, executor._keeper.ended, probe_timeout_s=0)
        wait_for(lambda: hasty_rows(hasty))
        assert {row.node for row in hasty_rows(hasty)} == {fast.name}
        gate.touch()
        assert {row.node for row in waiting.result(300)} == {fast.name, "slow"}
    wait_for(lambda: "slow" in {row.node for row in hasty_rows(hasty)})


def hasty_rows(devices: RayDevices) -> tuple[DeviceDescriptor, ...]:
    """Return what has come, where no node is waited for."""
    try:
        return devices.descriptors()
    except ClusterError:
        return ()


@pytest.mark.slow
def test_an_actor_that_dies_while_idle_or_in_its_work(executor: RayExecutor) -> None:
    idle = executor.deploy(*chain("TWIN.1"))
    process = executor._devices.device("TWIN.1")
    kill(executor, "TWIN.1", signal.SIGTERM)
    wait_for(lambda: executor._devices._actors.get("TWIN.1") not in (None, process))
    np.testing.assert_array_equal(idle.submit({"x": X}).future.result(300).outputs["t0"], X + 1)
    suicide = executor.deploy(*chain("TWIN.0", name="die"), limits=Limits(attempts=2))
    with pytest.raises(DeviceLostError, match=r"attempt 4: device TWIN\.0"):
        suicide.submit({"x": X}).future.result(300)
    suicide.close()


def test_ended_requests_leave_nothing_behind(executor: RayExecutor) -> None:
    deployment = executor.deploy(*diamond(("TOY.0", "TOY.1", "TOY.2", "TOY.0")))
    for _ in range(20):
        deployment.submit({"x": X}).future.result(300)
    assert not executor._deployments.in_flight.num_running
    assert not deployment._runner._calls


@pytest.mark.slow
def test_a_process_that_is_stopped_is_found_and_replaced(executor: RayExecutor) -> None:
    deployment = executor.deploy(*chain("TOY.1", "TOY.2"))
    pid = ray.get(executor._devices.device("TOY.2").actor.ping.remote())
    os.kill(pid, signal.SIGSTOP)
    answer = deployment.submit({"x": X}, Request(timeout_s=300)).future.result()
    np.testing.assert_array_equal(answer.outputs["t1"], X + 2)
    assert ray.get(executor._devices.device("TOY.2").actor.ping.remote()) != pid


def test_a_process_that_is_silent_for_a_while_goes_on(executor: RayExecutor) -> None:
    deployment = executor.deploy(*chain("TOY.1", "TOY.2"))
    device = executor._devices.device("TOY.2")
    pid = ray.get(device.actor.ping.remote())
    lost = threading.Event()
    tell = deployment.tell
    deployment.tell = lambda event: (lost.set(), tell(event))  # type: ignore[method-assign, func-returns-value]  # to see it
    os.kill(pid, signal.SIGSTOP)
    submission = deployment.submit({"x": X}, Request(timeout_s=300))
    assert lost.wait(300)
    os.kill(pid, signal.SIGCONT)
    assert submission.future.result()
    assert executor._devices.device("TOY.2") is device


@pytest.mark.slow
def test_a_client_that_is_too_busy_to_be_heard_misses_no_answer(
    executor: RayExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = executor.deploy(*chain("TOY.1", "TOY.2"))
    assert deployment.submit({"x": X}, Request(timeout_s=300)).future.result()
    free, busy_s = threading.Event(), 4.0  # twice as long as a device may be silent

    def status() -> dict[str, float]:
        free.wait(300)
        return {}

    monkeypatch.setattr(executor._channel._control._callbacks, "status", status)
    end_s = time.monotonic() + busy_s
    while time.monotonic() < end_s:
        submission = deployment.submit({"x": X}, Request(timeout_s=300))
        with suppress(TimeoutError):
            submission.future.result(busy_s)
    free.set()
    assert submission.future.result(300)
    assert {line.attempt for line in submission.story()} <= {0, 1}


@pytest.mark.slow
def test_a_stage_that_hangs_is_ended_with_its_process(executor: RayExecutor) -> None:
    limits = Limits(attempts=1, stage_timeout_s=1.0)
    stuck = executor.deploy(*chain("TOY.0", name="sleep_60_"), limits=limits)
    bystander = executor.deploy(*chain("TOY.0", "TOY.1"))
    with pytest.raises(DeviceLostError, match="longer than its STAGE_TIMEOUT_S"):
        stuck.submit({"x": X}, Request(timeout_s=300)).future.result()
    assert bystander.submit({"x": X}, Request(timeout_s=300)).future.result()
    stuck.close()


def test_an_executor_that_cannot_be_made_lets_go_of_its_ray(
    executor: RayExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[Any] = []

    def connect_(*arguments: Any, **options: Any) -> Any:
        sessions.append(connect(*arguments, **options))
        return sessions[-1]

    def fails(*_: Any, **__: Any) -> None:
        raise ClusterError("cannot listen")

    monkeypatch.setattr("hetero.scheduler.ray.executor.connect", connect_)
    monkeypatch.setattr("hetero.scheduler.ray.executor.DirectChannel", fails)
    with pytest.raises(ClusterError, match="cannot listen"):
        create_executor("ray", devices={"TOY": 3}, plugins=(TOY,))
    assert [session.users for session in sessions] == [0]


@pytest.mark.slow
def test_what_is_closed_as_its_device_is_started_again_is_not_loaded_for_good(
    executor: RayExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, other = (executor.deploy(*chain("TOY.2")) for _ in range(2))
    load = executor._loader.load
    begun, go_on = threading.Event(), threading.Event()

    def late(deployment: Any, stages: Any) -> dict[int, int]:
        if deployment is closed:
            begun.set()
            assert go_on.wait(300)
        return load(deployment, stages)

    monkeypatch.setattr(executor._loader, "load", late)
    kill(executor, "TOY.2")
    assert begun.wait(300)
    closed.close()
    go_on.set()
    assert other.submit({"x": X}).future.result(300)
    actor = executor._devices.device("TOY.2").actor
    wait_for(lambda: not ray.get(actor.has_all.remote([closed.key])))
    assert ray.get(actor.has_all.remote([other.key]))
    other.close()
