"""The device actor's threads, without the actor around them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from devices.errors import DeviceError, RequestCancelledError
from devices.request.request import Request
from scheduler.executor import DeviceDescriptor
from scheduler.formats.model_parts import split_model
from scheduler.ray.actor import REPORT, DeviceActor
from tests.scheduler.models import build, chain
from tests.scheduler.plugins import ToyPlugin

pytestmark = pytest.mark.ray
X = np.ones(1, np.float32)


def attempt(deployment: str, request_id: int) -> Request:
    return Request(deployment=deployment, id=request_id, attempt=1)


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda actor: actor.cancel(attempt("d", 2)), RequestCancelledError),
        (lambda actor: actor.unload("d"), DeviceError),
    ],
    ids=["cancelled", "unloaded"],
)
def test_a_run_that_waits_for_a_stream_ends_though_the_stream_stays_taken(
    end: Callable[[DeviceActor], None], error: type[Exception]
) -> None:
    actor = DeviceActor(DeviceDescriptor("TOY", "TOY", "0", "n"), [ToyPlugin])
    for deployment, node in (("busy", "sleep_60_"), ("d", "n")):
        parts = split_model(build([("Neg", node, ("x",), "y")], ["y"]))
        actor.load_stage(deployment, 0, list(parts), {}, None, {}, 1, (0,))
    with ThreadPoolExecutor(2) as threads:
        busy = threads.submit(actor.run_stage, [0, *attempt("busy", 1)], X)
        while not actor._num_running:
            assert not busy.done()
        waiting = threads.submit(actor.run_stage, [0, *attempt("d", 2)], X)
        end(actor)
        with pytest.raises(error):
            waiting.result(300)
        assert not busy.done()
        while not busy.done():
            actor.cancel(attempt("busy", 1))


def test_each_stage_keeps_to_its_own_streams() -> None:
    actor = DeviceActor(DeviceDescriptor("TOY", "TOY", "0", "n"), [ToyPlugin])
    _, (source,) = chain("TOY", name="sleep_0.01_")
    parts = split_model(source.model)
    for deployment, streams in (("wide", 4), ("narrow", 1)):
        rest = list(parts._replace(weights={}))
        actor.load_stage(deployment, 0, rest, parts.weights, None, {"NUM_STREAMS": streams}, 1, ())

    def run(request_id: int) -> dict[str, Any]:
        report = actor.run_stage([0, *attempt("narrow", request_id)], X)
        return dict(zip(REPORT, report, strict=True))

    with ThreadPoolExecutor(4) as pool:
        runs = sorted(pool.map(run, range(8)), key=lambda run: run["started_s"])
    assert all(a["ended_s"] <= b["started_s"] for a, b in itertools.pairwise(runs))
    actor.unload("wide")
    assert run(9)["device"] == "TOY"
