"""In-process executor: the whole request path without Ray."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import (
    ClusterError,
    DeadlineError,
    DeviceError,
    InferenceError,
    OverloadedError,
    PlanError,
    RequestCancelledError,
    TensorNameError,
    UnknownDeviceError,
    UnsupportedNodesError,
)
from hetero.devices.request.request import Request
from hetero.scheduler import InProcessExecutor, Limits, Plan, StageSource
from hetero.scheduler.client.deployment import Deployment
from hetero.scheduler.types.messages import Message, Outputs, Values
from tests.scheduler.channel_kinds import KINDS, executor_on
from tests.scheduler.endpoints import wait_for
from tests.scheduler.models import build, chain, cut, diamond
from tests.scheduler.on_any_executor import (  # noqa: F401  # run here as well
    test_branches_of_one_request_overlap,
    test_chain_adds_once_per_device,
    test_concurrent_requests_get_their_own_results,
    test_constant_stages_are_folded_into_their_readers,
    test_misbehaving_plugin_fails_its_request_only,
    test_plugin_that_fails_to_compile_is_named,
    test_raising_stage_is_named_and_deployment_continues,
)
from tests.scheduler.plugins import BrokenPlugin, ToyPlugin, TwinPlugin

X = np.arange(4, dtype=np.float32)


@pytest.fixture(scope="module", params=KINDS)
def executor(request):
    plugins = (ToyPlugin, TwinPlugin, BrokenPlugin)
    with executor_on(request.param, devices={"TOY": 3}, plugins=plugins) as executor:
        yield executor


def test_devices_are_named_and_broken_ones_listed(executor):
    rows = {row.name: row for row in executor.devices()}
    assert {"TOY.0", "TOY.1", "TOY.2", "TWIN.0", "TWIN.1", "BROKEN"} <= set(rows)
    assert [rows[f"TWIN.{i}"].device_id for i in (0, 1)] == ["0", "1"]
    assert [rows[f"TOY.{i}"].device_id for i in (0, 1, 2)] == ["0", "0", "0"]
    assert "libbroken.so is missing" in str(rows["BROKEN"].error)
    with pytest.raises(DeviceError, match="libbroken"):
        executor.query("BROKEN", build([("Neg", "n", ("x",), "y")], ["y"]))
    with pytest.raises(UnknownDeviceError, match=r"TOY\.0, TOY\.1"):
        executor.query("TOY.9", build([("Neg", "n", ("x",), "y")], ["y"]))


def test_query_names_the_device_of_the_cluster(executor):
    model = build([("Neg", "n", ("x",), "a"), ("Exp", "e", ("a",), "y")], ["y"])
    support = executor.query("TOY.2", model)
    assert support.devices == {"n": "TOY.2"}
    assert support.unsupported["e"]["TOY.2"].code == "no_kernel"
    assert executor.get_property("TWIN.1", "DEVICE_ID") == "1"


def test_result_waits_for_a_late_output_of_early_stage(executor, monkeypatch):
    came: list[Message] = []
    take = Deployment._receive

    def late(deployment: Deployment, message: Message) -> None:
        came.insert(0, message)
        if len(came) == 2:
            for each in came:
                take(deployment, each)

    monkeypatch.setattr(Deployment, "_receive", late)
    model = build([("Neg", "n", ("x",), "a"), ("Add", "d", ("a", "a"), "y")], ["a", "y"])
    deployment = executor.deploy(*cut(model, ("TOY.0", ["n"]), ("TOY.1", ["d"])))
    answer = deployment.submit({"x": X}).future.result(300)
    np.testing.assert_array_equal(answer.outputs["a"], -X)
    np.testing.assert_array_equal(answer.outputs["y"], -2 * X)
    deployment.close()


def test_repeated_passthrough_constant_and_unused_values_are_returned(
    executor,
):
    model = build(
        [("Neg", "n", ("x",), "y")],
        ["y", "x", "w", "y"],
        inputs=("x", "unused"),
        weights={"w": np.ones(2, np.float32)},
    )
    plan, sources = cut(model, ("TOY.0", ["n"]))
    deployment = executor.deploy(plan, sources, {"w": model.constants["w"].array})
    mine = X.copy()
    outputs = deployment.submit({"x": mine, "unused": X}).future.result(300).outputs
    mine[:] = 9
    assert {name: list(value) for name, value in outputs.items()} == {
        "y": [0, -1, -2, -3],
        "x": [0, 1, 2, 3],
        "w": [1, 1],
    }
    with pytest.raises(PlanError, match="no values for constant"):
        executor.deploy(plan, sources)


def test_plan_without_stages_runs(executor):
    model = build([], ["x"])
    deployment = executor.deploy(Plan("p", model.inputs, model.outputs, (), ("x",)), [])
    np.testing.assert_array_equal(deployment.submit({"x": X}).future.result(300).outputs["x"], X)


def test_sequences_cross_between_stages(executor):
    model = build(
        [("SequenceConstruct", "s", ("x", "x"), "q"), ("Identity", "i", ("q",), "y")], ["y"]
    )
    deployment = executor.deploy(*cut(model, ("TOY.0", ["s"]), ("TOY.1", ["i"])))
    y = deployment.submit({"x": X}).future.result(300).outputs["y"]
    assert [list(item) for item in y] == [list(X), list(X)]


def test_cancel_stops_the_running_stage(executor):
    deployment = executor.deploy(*chain("TOY.0", "TOY.1", name="sleep_30_"))
    submission = deployment.submit({"x": X})
    assert submission.cancel()
    with pytest.raises(RequestCancelledError):
        submission.future.result(300)
    assert not submission.cancel()
    # The device is free, because the sleeping stage was cancelled.
    other = executor.deploy(*chain("TOY.0"))
    assert other.submit({"x": X}, Request(timeout_s=300)).future.result()


def test_deadline_ends_a_request(executor):
    deployment = executor.deploy(*chain("TOY.0", name="sleep_30_"))
    submission = deployment.submit({"x": X}, Request(timeout_s=0.05))
    with pytest.raises(DeadlineError, match="in flight"):
        submission.future.result(300)


def test_full_pipeline_applies_backpressure(executor):
    plan = chain("TOY.0", name="sleep_30_")
    deployment = executor.deploy(*plan, limits=Limits(requests=1))
    first = deployment.submit({"x": X})
    with pytest.raises(OverloadedError):
        deployment.submit({"x": X}, Request(waits=False))
    with pytest.raises(DeadlineError, match="waiting for admission"):
        deployment.submit({"x": X}, Request(timeout_s=0.02))
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(deployment.submit, {"x": X})
        wait_for(lambda: len(deployment.story(first.request_id + 3)) >= 2)
        assert not second.done()
        assert first.cancel()
        assert second.result(300).cancel()


def test_caller_continues_while_its_request_waits_for_room(executor):
    plan, aside = chain("TOY.0"), Request(waits=None)
    limits = Limits(requests=1, waiting=3)
    slow = executor.deploy(*chain("TOY.0", name="sleep_30_"), limits=limits)
    first = slow.submit({"x": X}, aside)
    left, late = (slow.submit({"x": X}, Request(waits=None, timeout_s=t)) for t in (None, 0.02))
    urgent = slow.submit({"x": X}, Request(waits=None, priority=1))
    with pytest.raises(OverloadedError, match="3 of 3 callers"):
        slow.submit({"x": X}, aside)
    with pytest.raises(DeadlineError, match="waiting for admission"):
        late.future.result(300)
    assert first.cancel()
    wait_for(lambda: any("started" in line.event for line in slow.story(urgent.request_id)))
    assert left.cancel()
    with pytest.raises(RequestCancelledError):
        left.future.result(300)
    slow.close()
    with pytest.raises(RequestCancelledError):
        urgent.future.result(300)
    quick = executor.deploy(*plan, limits=limits)
    for submission in [quick.submit({"x": X}, aside) for _ in range(3)]:
        np.testing.assert_array_equal(submission.future.result(300).outputs["t0"], X + 1)


def test_close_cancels_running_and_waiting_requests(executor):
    plan = chain("TOY.0", name="sleep_30_")
    deployment = executor.deploy(*plan, limits=Limits(requests=1))
    first = deployment.submit({"x": X})
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            deployment.submit({"x": X})
        except RequestCancelledError as error:
            caught.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_for(lambda: len(deployment.story(first.request_id + 1)) >= 2)
    deployment.close()
    waiter.join(300)
    assert len(caught) == 1
    with pytest.raises(RequestCancelledError):
        first.future.result(300)
    with pytest.raises(RequestCancelledError, match="closed"):
        deployment.submit({"x": X})


def test_oversized_request_is_refused_before_its_run(executor):
    plan, sources = chain("TOY.0", "TOY.1")
    with pytest.raises(TensorNameError, match=r"missing \['x'\], unknown \['y'\]"):
        executor.deploy(plan, sources).submit({"y": X})
    with pytest.raises(PlanError, match="stage 0 has inputs"):
        executor.deploy(plan, sources[::-1])
    with pytest.raises(PlanError, match="2 stages, 1 sources"):
        executor.deploy(plan, sources[:1])
    model = build([("Exp", "e", ("x",), "y")], ["y"])
    with pytest.raises(UnsupportedNodesError, match="no Exp"):
        executor.deploy(*cut(model, ("TOY.0", ["e"])))


def test_many_streams_run_many_requests_at_once(tmp_path):
    executor = InProcessExecutor(plugins=(ToyPlugin,))
    plan, (source,) = chain("TOY", names=[f"meet_2_{tmp_path}"])
    deployment = executor.deploy(plan, [StageSource(source.model, None, {"NUM_STREAMS": 2})])
    futures = [deployment.submit({"x": X}).future for _ in range(2)]
    assert all(future.result(300) for future in futures)
    executor.close()
    executor.close()
    with pytest.raises(ClusterError, match="closed"):
        executor.deploy(plan, [source])


def test_streams_of_models_are_separate(executor):
    plan, (source,) = chain("TOY.0", name="sleep_0.01_")
    wide = executor.deploy(plan, [StageSource(source.model, None, {"NUM_STREAMS": 4})])
    narrow = executor.deploy(plan, [source])
    futures = [narrow.submit({"x": X}).future for _ in range(8)]
    runs = sorted((f.result(300).stage_timings[0] for f in futures), key=lambda run: run.started_s)
    assert all(a.ended_s <= b.started_s for a, b in itertools.pairwise(runs))
    assert executor._loops["TOY.0"].num_streams == 4
    threads = executor._workers.count
    wide.close()
    assert executor._loops["TOY.0"].num_streams == 1
    assert executor._workers.count == threads - 3
    assert narrow.submit({"x": X}).future.result(300)


def test_error_after_a_run_fails_the_request_only(executor, monkeypatch):
    deployment = executor.deploy(*chain("TOY.0", "TOY.1"))
    for stage, kind in enumerate((Values, Outputs)):
        loop = executor._loops[f"TOY.{stage}"]
        channel = loop._channel

        def fail(
            address: str, message: Message, kind: type = kind, send: Any = channel.send
        ) -> None:
            if isinstance(message, kind):
                raise KeyError(kind)
            send(address, message)

        with monkeypatch.context() as patched:
            patched.setattr(channel, "send", fail)
            patched.setattr(loop, "_send", fail)
            with pytest.raises(InferenceError, match="KeyError") as caught:
                deployment.submit({"x": X}, Request(timeout_s=300)).future.result()
        assert (caught.value.stage, caught.value.device) == (stage, f"TOY.{stage}")
    assert deployment.submit({"x": X}, Request(timeout_s=300)).future.result()


def test_values_of_running_and_ended_requests_are_freed(executor):
    deployment = executor.deploy(*diamond(("TOY.0", "TOY.1", "TOY.2", "TOY.0")))
    for _ in range(50):
        deployment.submit({"x": X}).future.result(300)
    assert all(not loop.status()["tasks"] for loop in executor._loops.values())
    assert not executor._deployments.in_flight.num_running
    assert not deployment._runner._calls
