"""Placements in process: shared requests, replicated stages, one admission."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest

from hetero.devices.errors import DeviceMemoryError, OverloadedError
from hetero.devices.request.request import Request
from hetero.scheduler import Limits
from hetero.scheduler.executor import Deployment
from hetero.scheduler.types.placement import share, single_placement
from tests.scheduler.channel_kinds import KINDS, executor_on
from tests.scheduler.models import chain, diamond, replicate
from tests.scheduler.plugins import ToyPlugin

X = np.arange(4, dtype=np.float32)


@pytest.fixture(scope="module", params=KINDS)
def executor(request):
    with executor_on(request.param, devices={"TOY": 3}, plugins=(ToyPlugin,)) as executor:
        yield executor


def ways(deployment: Deployment, count: int) -> Counter[tuple[tuple[int, str], ...]]:
    """Check the results, and count the requests per route."""
    route_counts: Counter[tuple[tuple[int, str], ...]] = Counter()
    for _ in range(count):
        answer = deployment.submit({"x": X}).future.result(300)
        np.testing.assert_array_equal(answer.outputs["t1"], X + 2)
        route_counts[tuple((run.stage, run.device) for run in answer.stage_timings)] += 1
    return route_counts


def test_plans_share_requests_and_number_stages_consecutively(
    executor,
):
    (one, sources), (other, more) = chain("TOY.0", "TOY.1"), chain("TOY.2", "TOY.2")
    deployment = executor.deploy(share([one, other], [2, 1]), [*sources, *more])
    first, second = ((0, "TOY.0"), (1, "TOY.1")), ((2, "TOY.2"), (3, "TOY.2"))
    assert ways(deployment, 9) == {first: 6, second: 3}
    assert [route.stages for route in deployment.routes] == [(0, 1), (2, 3)]
    assert deployment.executed_nodes(3)
    deployment.close()


def test_replicated_stage_alternates_between_devices(executor):
    plan, sources = chain("TOY.0", "TOY.1")
    placed = replicate(plan, {1: {"TOY.1": 1.0, "TOY.2": 1.0}})
    deployment = executor.deploy(placed, [*sources, sources[1]])
    first, second = ((0, "TOY.0"), (1, "TOY.1")), ((0, "TOY.0"), (2, "TOY.2"))
    assert ways(deployment, 6) == {first: 3, second: 3}
    deployment.close()


def test_branches_of_a_request_run_on_one_route(executor):
    plan, sources = diamond(("TOY.0", "TOY.1", "TOY.2", "TOY.0"))
    both = {"TOY.1": 1.0, "TOY.2": 1.0}
    placed = replicate(plan, {1: both, 2: both})
    numbers = [
        next(i for i, s in enumerate(plan.stages) if s.outputs == placed.stages[n].outputs)
        for n in range(len(placed.stages))
    ]
    deployment = executor.deploy(placed, [sources[i] for i in numbers])
    submissions = [deployment.submit({"x": X + i}) for i in range(40)]
    for i, submission in enumerate(submissions):
        np.testing.assert_array_equal(submission.future.result(300).outputs["y"], 2 - 4 * (X + i))
    deployment.close()


def test_routes_have_one_admission(executor):
    (one, sources), (other, more) = chain("TOY.0", name="sleep_30_"), chain("TOY.1")
    placed = share([one, other], [1, 1])
    deployment = executor.deploy(placed, [*sources, *more], limits=Limits(requests=1))
    slow = deployment.submit({"x": X})
    with pytest.raises(OverloadedError):
        deployment.submit({"x": X}, Request(waits=False))
    slow.cancel()
    assert single_placement(placed) is placed
    deployment.close()


def test_results_are_delivered_in_order_if_configured(executor):
    (one, sources), (other, more) = chain("TOY.0", name="sleep_0.05_"), chain("TOY.1")
    placed = share([one, other], [1, 1])
    deployment = executor.deploy(placed, [*sources, *more], limits=Limits(in_order=True))
    order: list[int] = []
    done = threading.Event()
    submissions = [deployment.submit({"x": X}) for _ in range(8)]
    for number, submission in enumerate(submissions):
        submission.future.add_done_callback(lambda _, number=number: order.append(number))
    submissions[-1].future.add_done_callback(lambda _: done.set())
    assert done.wait(300)
    assert order == list(range(8))
    deployment.close()


def test_request_beyond_device_memory_runs_on_another_route(
    executor,
):
    (one, sources), (other, more) = chain("TOY.0", name="full"), chain("TOY.1")
    deployment = executor.deploy(share([one, other], [1, 1]), [*sources, *more])
    submissions = deployment.submit({"x": X})
    assert [run.device for run in submissions.future.result(300).stage_timings] == ["TOY.1"]
    events = [line.event for line in deployment.story(submissions.request_id)]
    assert any("MemoryError: by design" in line for line in events)
    deployment.close()
    alone = executor.deploy(one, sources)
    with pytest.raises(DeviceMemoryError, match=r"stage 0 on device TOY\.0"):
        alone.submit({"x": X}).future.result(300)
    alone.close()
