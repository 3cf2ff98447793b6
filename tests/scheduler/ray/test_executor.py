"""The Ray executor on one node: results, concurrency, failures, and lost actors."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
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
from hetero.scheduler.ray.node_discovery import NodeDiscovery
from hetero.scheduler.ray.nodes import ClusterNode, alive_nodes
from hetero.scheduler.ray.session import connect
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from tests.scheduler.endpoints import wait_for
from tests.scheduler.models import build, chain, cut, diamond
from tests.scheduler.on_any_executor import (  # noqa: F401  # also run on Ray
    test_branches_of_one_request_overlap,
    test_chain_adds_once_per_device,
    test_concurrent_requests_get_their_own_results,
    test_constant_stages_are_folded_into_their_readers,
    test_misbehaving_plugin_fails_its_request_only,
    test_plugin_that_fails_to_compile_is_named,
    test_raising_stage_is_named_and_deployment_continues,
)
from tests.scheduler.plugins import BrokenPlugin, TwinPlugin

pytestmark = pytest.mark.ray
X = np.arange(4, dtype=np.float32)
TOY = "tests.scheduler.plugins:ToyPlugin"


@pytest.fixture(scope="module")
def executor(local_ray):
    executor = create_executor("ray", devices={"TOY": 3}, plugins=(TOY, TwinPlugin, BrokenPlugin))
    yield executor
    executor.close()
    assert ray.is_initialized(), "the executor ended a Ray that it did not start"


def kill(executor: RayExecutor, device: str, number: int = signal.SIGKILL) -> None:
    pid = ray.get(executor._devices.device(device).actor.ping.remote())
    assert pid != os.getpid()
    os.kill(pid, number)


def test_devices_of_the_node_are_listed(executor):
    descriptors = {descriptor.name: descriptor for descriptor in executor.devices()}
    assert {"CPU", "TOY.0", "TOY.1", "TOY.2", "TWIN.0", "TWIN.1", "BROKEN"} <= set(descriptors)
    assert "libbroken.so is missing" in str(descriptors["BROKEN"].error)
    assert {descriptor.node for descriptor in descriptors.values()} == {ray.nodes()[0]["NodeName"]}
    with pytest.raises(DeviceError, match="libbroken"):
        executor.get_property("BROKEN", "FULL_DEVICE_NAME")


@pytest.mark.slow
def test_query_and_properties(executor):
    model = build([("Neg", "n", ("x",), "a"), ("Exp", "e", ("a",), "y")], ["y"])
    support = executor.query("TOY.2", model)
    assert support.devices == {"n": "TOY.2"}
    assert support.unsupported["e"]["TOY.2"].code == "no_kernel"
    assert executor.get_property("TWIN.1", "DEVICE_ID") == "1"


@pytest.mark.parametrize("size", [10, 300_000], ids=["inline", "in the object store"])
def test_input_is_read_by_several_stages(executor, size):
    model = build(
        [("Neg", "n", ("x",), "a"), ("Add", "b", ("x", "a"), "c"), ("Add", "d", ("x", "c"), "y")],
        ["y", "x"],
    )
    deployment = executor.deploy(*cut(model, ("TOY.0", ["n"]), ("TOY.1", ["b"]), ("TOY.2", ["d"])))
    x = np.arange(size, dtype=np.float32)
    outputs = deployment.submit({"x": x}).future.result(300).outputs
    np.testing.assert_array_equal(outputs["y"], x)
    np.testing.assert_array_equal(outputs["x"], x)


def test_sequences_cross_between_devices(executor):
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


def test_shared_weight_is_stored_once(executor):
    weights = {"w": np.full(200_000, 2, np.float32)}
    lines = [("Add", "n0", ("x", "w"), "a"), ("Mul", "n1", ("a", "w"), "y")]
    model = build(lines, ["y"], weights=weights)
    executor.query("TOY.0", model)
    deployment = executor.deploy(*cut(model, ("TOY.0", ["n0"]), ("TOY.1", ["n1"])))
    y = deployment.submit({"x": np.ones(1, np.float32)}).future.result(300).outputs["y"]
    np.testing.assert_array_equal(y, np.full(200_000, 6, np.float32))
    assert [c for c in executor._loader._weights if c.name == "w"] == [model.constants["w"]]


def test_queries_of_one_model_split_it_once(executor, monkeypatch):
    split_models: list[Model] = []

    def record_split(model: Model) -> ModelParts:
        split_models.append(model)
        return split_model(model)

    monkeypatch.setattr("hetero.scheduler.ray.loading.split_model", record_split)
    model = build([("Neg", "n", ("x",), "y")], ["y"])
    for device in ("TOY.0", "TOY.1", "TOY.0"):
        assert executor.query(device, model).devices == {"n": device}
    assert split_models == [model]


@pytest.mark.slow
def test_import_reads_only_the_ports(executor):
    plan, (source,) = chain("CPU")
    compiled = executor.deploy(plan, [source])
    payload, nodes = compiled.export(0), compiled.executed_nodes(0)

    def fail_to_read() -> Model:
        raise AssertionError("the model was read")

    model = source.model
    ports = LazyModel(model.name, model.inputs, model.outputs, fail_to_read)
    imported = executor.deploy(plan, [StageSource(ports, payload)])
    assert imported.imported == {0}
    assert imported.executed_nodes(0) == nodes
    np.testing.assert_array_equal(imported.submit({"x": X}).future.result(300).outputs["t0"], X + 1)


def test_devices_of_a_plan_share_cores(executor):
    descriptors = {descriptor.name: descriptor for descriptor in executor.devices()}
    num_threads = descriptors["TOY.0"].num_threads
    single = executor.deploy(*chain("TOY.1"))
    assert single.export(0).header["threads"] == num_threads
    pair = executor.deploy(*chain("TOY.1", "TOY.2"))
    threads = [pair.export(i).header["threads"] for i in (0, 1)]
    assert threads == [max(1, (num_threads + 1) // 2), max(1, num_threads // 2)]


def test_compile_failure_names_the_reason(executor):
    model = build([("Exp", "e", ("x",), "y")], ["y"])
    with pytest.raises(UnsupportedNodesError, match="no Exp"):
        executor.deploy(*cut(model, ("TOY.0", ["e"])))


def test_cancel_stops_running_and_waiting_requests(executor):
    deployment = executor.deploy(*chain("TOY.0", "TOY.1", name="sleep_60_"))
    submissions = [deployment.submit({"x": X}) for _ in range(3)]
    for submission in submissions:
        assert submission.cancel()
        with pytest.raises(RequestCancelledError):
            submission.future.result(300)
    other = executor.deploy(*chain("TOY.0"))
    assert other.submit({"x": X}, Request(timeout_s=300)).future.result()


def test_deadline_and_overload_raise(executor):
    plan = chain("TOY.0", name="sleep_60_")
    deployment = executor.deploy(*plan, limits=Limits(requests=1))
    first = deployment.submit({"x": X})
    with pytest.raises(OverloadedError):
        deployment.submit({"x": X}, Request(waits=False))
    assert first.cancel()
    late = deployment.submit({"x": X}, Request(timeout_s=0.3))
    with pytest.raises(DeadlineError):
        late.future.result(300)


@pytest.mark.slow
def test_streams_run_requests_concurrently(executor, tmp_path):
    plan, (source,) = chain("TWIN.0", names=[f"meet_2_{tmp_path}"])
    deployment = executor.deploy(plan, [StageSource(source.model, None, {"NUM_STREAMS": 2})])
    futures = [deployment.submit({"x": X}).future for _ in range(2)]
    assert all(future.result(300) for future in futures)


def test_requests_of_killed_actor_are_replayed(executor, tmp_path):
    bystander = executor.deploy(*chain("TOY.0"))
    # The first run ends only when it has been started a second time.
    plan = chain("TOY.1", "TOY.2", names=[f"meet_2_{tmp_path}", "add"])
    deployment = executor.deploy(*plan)
    submissions = [deployment.submit({"x": X + i}) for i in range(4)]
    wait_for(lambda: any(tmp_path.iterdir()))
    kill(executor, "TOY.1")
    assert bystander.submit({"x": X}).future.result(300)
    later = deployment.submit({"x": X + 4})
    for i, submission in enumerate([*submissions, later]):
        result = submission.future.result(300)
        np.testing.assert_array_equal(result.outputs["t1"], X + i + 2)
    history = "\n".join(line.event for line in deployment.story(submissions[-1].request_id))
    assert "device TOY.1" in history
    assert "parked" in history
    assert history.endswith("answered")


def test_device_restarted_between_two_lanes_receives_the_message(executor, tmp_path):
    names = [f"meet_2_{tmp_path}", "add"]
    deployment = executor.deploy(*chain("TOY.1", "TOY.2", names=names))
    submission = deployment.submit({"x": X})
    wait_for(lambda: any(tmp_path.iterdir()))
    before = deployment.devices["TOY.2"]
    kill(executor, "TOY.2")
    wait_for(lambda: not deployment.device_states.unavailable.isdisjoint({"TOY.2"}))
    wait_for(lambda: not deployment.device_states.unavailable)
    assert deployment.devices["TOY.2"].address != before.address
    (tmp_path / "another run").touch()  # the first stage sends its outputs only now
    np.testing.assert_array_equal(submission.future.result(300).outputs["t1"], X + 2)
    later = deployment.submit({"x": X + 1})
    np.testing.assert_array_equal(later.future.result(300).outputs["t1"], X + 3)
    assert {line.attempt for line in deployment.story(later.request_id)} <= {0, 1}


def test_copied_input_is_sent_from_its_slot(executor):
    deployment = executor.deploy(*chain("TOY.1", "TOY.2"))
    pool = executor._channel._pool
    for i in range(3):
        large = np.full(50_000, i, np.float32)
        copied = deployment.copy_input(large)
        (slot,) = pool._filled_slots()
        large[:] = 9
        result = deployment.submit({"x": copied}).future.result(300)
        np.testing.assert_array_equal(result.outputs["t1"], np.full(50_000, i + 2))
        assert slot.is_sent
        del copied
        wait_for(lambda: not pool._filled_slots())
    assert deployment.copy_input(X) is not X


def test_closed_deployment_leaves_lanes_of_others_open(executor):
    other = executor.deploy(*chain("TOY.1", "TOY.2"))
    closed = executor.deploy(*chain("TOY.1", "TOY.2", names=["sleep_60_", "add"]))
    submission = closed.submit({"x": X})
    closed.close()
    with pytest.raises(RequestCancelledError):
        submission.future.result(300)
    for i in range(3):
        result = other.submit({"x": X + i}).future.result(300)
        np.testing.assert_array_equal(result.outputs["t1"], X + i + 2)


def test_broken_connection_keeps_the_device(executor):
    deployment = executor.deploy(*chain("TOY.0", name="sleep_0.5_"))
    device = executor._devices.device("TOY.0")
    submission = deployment.submit({"x": X})
    error = exceptions.ActorUnavailableError("Socket closed", bytes.fromhex(device.actor_id))
    executor._supervisor.handle_end(device, error)
    assert submission.future.result(300)
    assert executor._devices.device("TOY.0") is device
    assert [line.attempt for line in deployment.story(submission.request_id)][-1] == 1


def test_lost_device_error_names_device_and_fix(executor):
    """The message has neither the waiting device nor the wording and colours of Ray."""
    plan = chain("TWIN.0", "TOY.0", name="sleep_60_")
    deployment = executor.deploy(*plan, limits=Limits(attempts=1))
    submission = deployment.submit({"x": X})
    pid = ray.get(executor._devices.device("TWIN.0").actor.ping.remote())
    kill(executor, "TWIN.0")
    with pytest.raises(DeviceLostError, match="attempt 1") as error:
        submission.future.result(300)
    assert (error.value.device, error.value.attempt) == ("TWIN.0", 1)
    assert error.value.node == ray.nodes()[0]["NodeName"]
    assert (
        f"device TWIN.0 on node {error.value.node} is gone: its worker process has died "
        f"(pid {pid}). A device whose node is alive is restarted: send the request again."
    ) in str(error.value)
    assert any("submitted" in line for line in error.value.data["story"])
    deployment.close()


@pytest.mark.slow
def test_slow_node_is_added_when_it_answers(executor, monkeypatch, tmp_path):
    (fast,) = alive_nodes()
    slow = replace(fast, id="slow", name="slow", host="slow")
    monkeypatch.setattr("hetero.scheduler.ray.node_discovery.alive_nodes", lambda: (fast, slow))
    gate = tmp_path / "open"

    def wait_for_gate(results: Any) -> Any:
        wait_for(gate.exists)
        return results

    def probe_with_gate(self: NodeDiscovery, node: ClusterNode, until_s: float) -> Any:
        probe = probe_node(self, node, until_s)
        if node.id == "slow":
            probe.ref = ray.remote(num_cpus=0)(wait_for_gate).remote(probe.ref)
        return probe

    probe_node = NodeDiscovery._query_node
    monkeypatch.setattr(NodeDiscovery, "_query_node", probe_with_gate)
    waiting_devices = RayDevices(
        executor._session, (TOY,), {}, executor._supervisor.handle_end, probe_timeout_s=600
    )
    with ThreadPoolExecutor(2) as threads:
        listing = threads.submit(waiting_devices.descriptors)
        wait_for(lambda: waiting_devices.discovery._probes or listing.done())
        assert not listing.done()
        threads.submit(waiting_devices.forget, "an actor").result(300)
        assert not listing.done()
        other_devices = RayDevices(
            executor._session, (TOY,), {}, executor._supervisor.handle_end, probe_timeout_s=0
        )
        wait_for(lambda: current_descriptors(other_devices))
        assert {descriptor.node for descriptor in current_descriptors(other_devices)} == {fast.name}
        gate.touch()
        assert {descriptor.node for descriptor in listing.result(300)} == {fast.name, "slow"}
    wait_for(
        lambda: "slow" in {descriptor.node for descriptor in current_descriptors(other_devices)}
    )


def current_descriptors(devices: RayDevices) -> tuple[DeviceDescriptor, ...]:
    """Return the devices of the nodes that have answered, without waiting for others."""
    try:
        return devices.descriptors()
    except ClusterError:
        return ()


@pytest.mark.slow
def test_actor_that_dies_is_restarted_or_reported(executor):
    idle = executor.deploy(*chain("TWIN.1"))
    process = executor._devices.device("TWIN.1")
    kill(executor, "TWIN.1", signal.SIGTERM)
    wait_for(lambda: executor._devices._actors.get("TWIN.1") not in (None, process))
    np.testing.assert_array_equal(idle.submit({"x": X}).future.result(300).outputs["t0"], X + 1)
    dying = executor.deploy(*chain("TWIN.0", name="die"), limits=Limits(attempts=2))
    with pytest.raises(DeviceLostError, match=r"attempt 4: device TWIN\.0"):
        dying.submit({"x": X}).future.result(300)
    dying.close()


def test_ended_requests_leave_no_state(executor):
    deployment = executor.deploy(*diamond(("TOY.0", "TOY.1", "TOY.2", "TOY.0")))
    for _ in range(20):
        deployment.submit({"x": X}).future.result(300)
    assert not executor._deployments.in_flight.num_running
    assert not deployment._runner._calls


@pytest.mark.slow
def test_stopped_process_is_replaced(executor):
    deployment = executor.deploy(*chain("TOY.1", "TOY.2"))
    pid = ray.get(executor._devices.device("TOY.2").actor.ping.remote())
    os.kill(pid, signal.SIGSTOP)
    result = deployment.submit({"x": X}, Request(timeout_s=300)).future.result()
    np.testing.assert_array_equal(result.outputs["t1"], X + 2)
    assert ray.get(executor._devices.device("TOY.2").actor.ping.remote()) != pid


@pytest.mark.slow
def test_process_that_resumes_is_kept(executor):
    deployment = executor.deploy(*chain("TOY.1", "TOY.2"))
    device = executor._devices.device("TOY.2")
    pid = ray.get(device.actor.ping.remote())
    is_suspected = threading.Event()
    notify = deployment.notify
    deployment.notify = lambda event: (is_suspected.set(), notify(event))  # type: ignore[method-assign, func-returns-value]
    os.kill(pid, signal.SIGSTOP)
    submission = deployment.submit({"x": X}, Request(timeout_s=300))
    assert is_suspected.wait(300)
    os.kill(pid, signal.SIGCONT)
    assert submission.future.result()
    assert executor._devices.device("TOY.2") is device


@pytest.mark.slow
def test_busy_client_receives_every_result(executor, monkeypatch):
    deployment = executor.deploy(*chain("TOY.1", "TOY.2"))
    assert deployment.submit({"x": X}, Request(timeout_s=300)).future.result()
    is_free, busy_s = threading.Event(), 4.0  # twice the silence after which a device is suspected

    def status() -> dict[str, float]:
        is_free.wait(300)
        return {}

    monkeypatch.setattr(executor._channel._control._callbacks, "status", status)
    end_s = time.monotonic() + busy_s
    while time.monotonic() < end_s:
        submission = deployment.submit({"x": X}, Request(timeout_s=300))
        with suppress(TimeoutError):
            submission.future.result(busy_s)
    is_free.set()
    assert submission.future.result(300)
    assert {line.attempt for line in submission.story()} <= {0, 1}


@pytest.mark.slow
def test_hanging_stage_is_killed_after_its_timeout(executor):
    limits = Limits(attempts=1, stage_timeout_s=1.0)
    hanging = executor.deploy(*chain("TOY.0", name="sleep_60_"), limits=limits)
    bystander = executor.deploy(*chain("TOY.0", "TOY.1"))
    with pytest.raises(DeviceLostError, match="longer than its STAGE_TIMEOUT_S"):
        hanging.submit({"x": X}, Request(timeout_s=300)).future.result()
    assert bystander.submit({"x": X}, Request(timeout_s=300)).future.result()
    hanging.close()


def test_failed_executor_releases_its_session(executor, monkeypatch):
    sessions: list[Any] = []

    def record_session(*arguments: Any, **options: Any) -> Any:
        sessions.append(connect(*arguments, **options))
        return sessions[-1]

    def fail(*_: Any, **__: Any) -> None:
        raise ClusterError("cannot listen")

    monkeypatch.setattr("hetero.scheduler.ray.executor.connect", record_session)
    monkeypatch.setattr("hetero.scheduler.ray.executor.DirectChannel", fail)
    with pytest.raises(ClusterError, match="cannot listen"):
        create_executor("ray", devices={"TOY": 3}, plugins=(TOY,))
    assert [session.users for session in sessions] == [0]


@pytest.mark.slow
def test_deployment_closed_during_restart_is_unloaded(executor, monkeypatch):
    closed, other = (executor.deploy(*chain("TOY.2")) for _ in range(2))
    load = executor._loader.load
    is_loading, may_load = threading.Event(), threading.Event()

    def load_later(deployment: Any, stages: Any) -> dict[int, int]:
        if deployment is closed:
            is_loading.set()
            assert may_load.wait(300)
        return load(deployment, stages)

    monkeypatch.setattr(executor._loader, "load", load_later)
    kill(executor, "TOY.2")
    assert is_loading.wait(300)
    closed.close()
    may_load.set()
    assert other.submit({"x": X}).future.result(300)
    actor = executor._devices.device("TOY.2").actor
    wait_for(lambda: not ray.get(actor.has_all.remote([closed.key])))
    assert ray.get(actor.has_all.remote([other.key]))
    other.close()
