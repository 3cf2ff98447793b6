"""Tests for every executor; modules with a fixture `executor` import them."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.devices.errors import (
    DeviceError,
    DeviceMemoryError,
    HeteroError,
    InferenceError,
    KernelError,
)
from hetero.devices.request.request import Request
from tests.scheduler.models import build, chain, cut, diamond
from tests.scheduler.plugins import EXCEPTIONS

X = np.arange(4, dtype=np.float32)


def test_chain_adds_once_per_device(executor):
    deployment = executor.deploy(*chain("TOY.0", "TOY.1", "TOY.2"))
    submission = deployment.submit({"x": X}, Request(profile=True))
    answer = submission.future.result(300)
    np.testing.assert_array_equal(answer.outputs["t2"], X + 3)
    assert [(r.stage, r.device) for r in answer.stage_timings] == [
        (i, f"TOY.{i}") for i in range(3)
    ]
    assert [set(run.node_times_s) for run in answer.stage_timings] == [{"add0"}, {"add1"}, {"add2"}]
    assert [line.event for line in deployment.story(submission.request_id)][-1] == "answered"
    assert deployment.executed_nodes(1)[0].original_names == ("add1",)
    np.testing.assert_array_equal(deployment.export(2).tensors["one"], [1])
    deployment.close()
    deployment.close()


def test_branches_of_one_request_overlap(executor, tmp_path):
    left, right = (f"meet_2_{tmp_path}?{branch}" for branch in "lr")
    plan = diamond(("TOY.0", "TOY.1", "TOY.2", "TOY.0"), left=left, right=right)
    answer = executor.deploy(*plan).submit({"x": X}).future.result(300)
    np.testing.assert_array_equal(answer.outputs["y"], 2 - 4 * X)
    _, one, other, join = answer.stage_timings
    assert join.started_s >= max(one.ended_s, other.ended_s)


def test_concurrent_requests_get_their_own_results(executor, tmp_path):
    # The first request's second stage waits until the second one is in the first stage.
    plan = chain("TOY.0", "TOY.1", names=[f"meet_{number}_{tmp_path}" for number in (1, 3)])
    deployment = executor.deploy(*plan)
    futures = [deployment.submit({"x": X + i}).future for i in range(20)]
    for i, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(300).outputs["t1"], X + i + 2)


def test_raising_stage_is_named_and_deployment_continues(executor):
    bad = executor.deploy(*chain("TOY.0", "TOY.1", "TOY.2", name="fail"))
    for _ in range(2):
        with pytest.raises(InferenceError, match="by design") as caught:
            bad.submit({"x": X}).future.result(300)
        assert (caught.value.stage, caught.value.device) == (0, "TOY.0")
        assert "ZeroDivisionError" in caught.value.cause
    typed = executor.deploy(*chain("TOY.0", "TOY.1", name="refuse"))
    with pytest.raises(KernelError, match="by design") as kernel:
        typed.submit({"x": X}).future.result(300)
    assert (kernel.value.device, kernel.value.stage, kernel.value.node) == ("TOY.0", 0, "refuse0")
    good = executor.deploy(*chain("TOY.0"))
    assert good.submit({"x": X}).future.result(300)


@pytest.mark.parametrize(
    ("name", "message"),
    [("odd", "lock"), *((name, type(error).__name__) for name, error in EXCEPTIONS.items())],
)
def test_misbehaving_plugin_fails_its_request_only(executor, name, message):
    bad = executor.deploy(*chain("TOY.0", "TOY.1", name=name))
    for _ in range(2):
        with pytest.raises(InferenceError, match=message) as caught:
            bad.submit({"x": X}, Request(timeout_s=300)).future.result()
        assert caught.value.device == "TOY.0"
        assert caught.value.node
        assert len(caught.value.message.encode()) < 20_000


@pytest.mark.parametrize(
    "name", sorted(EXCEPTIONS.keys() - {"interrupt"})
)  # in this thread it is the user's Ctrl-C
def test_plugin_that_fails_to_compile_is_named(executor, name):
    kind: type[HeteroError] = DeviceError
    message = type(EXCEPTIONS[name]).__name__
    if isinstance(EXCEPTIONS[name], MemoryError):
        kind, message = DeviceMemoryError, "out of memory"
    with pytest.raises(kind, match=message) as caught:
        executor.deploy(*chain("TOY.0", "TOY.1", name=f"unbuilt_{name}"))
    assert caught.value.device == "TOY.0"
    assert len(caught.value.message.encode()) < 20_000


def test_constant_stages_are_folded_into_their_readers(executor):
    model = build(
        [
            ("Neg", "first", ("k",), "c"),
            ("Add", "second", ("c", "c"), "d"),
            ("Add", "third", ("x", "d"), "y"),
        ],
        ["y", "c"],
        weights={"k": np.arange(50_000, dtype=np.float32)},
    )
    plan = cut(model, ("TOY.0", ["first"]), ("TOY.1", ["second"]), ("TOY.2", ["third"]))
    deployment = executor.deploy(*plan)
    for profile, constant_count in ((False, 2), (False, 2), (True, 0)):
        answer = deployment.submit({"x": X[:1]}, Request(profile=profile)).future.result(300)
        np.testing.assert_array_equal(answer.outputs["y"], X[0] - 2 * np.arange(50_000.0))
        np.testing.assert_array_equal(answer.outputs["c"], -np.arange(50_000.0))
        runs = answer.stage_timings
        assert [(run.stage, run.device) for run in runs] == [(i, f"TOY.{i}") for i in range(3)]
        # Folded stages have runs without a duration.
        assert sum(run.started_s == run.ended_s for run in runs) == constant_count
