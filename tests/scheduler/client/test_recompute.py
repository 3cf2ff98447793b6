"""Recomputation of states within one process: the stages that run again, results, and limits."""

from __future__ import annotations

import gc
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import DeviceLostError, TensorLostError
from hetero.devices.plugin.remote_memory import ResidentTensor
from hetero.devices.request.batch_rows import RowLayout
from hetero.devices.request.promise import Promise
from hetero.devices.request.request import Request
from hetero.devices.request.response import Response
from hetero.scheduler.channels.memory import Switchboard
from hetero.scheduler.client.deployment import Deployment
from hetero.scheduler.client.deployments import Deployments
from hetero.scheduler.client.lineage import RunNode
from hetero.scheduler.client.remote_tensors import RemoteMemory
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.device.loop import DeviceLoop
from hetero.scheduler.types import events
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.placement import single_placement
from tests.scheduler.models import Line, build, cut
from tests.scheduler.plugins import ToyPlugin
from tests.support.manual_clock import ManualClock

#: A computes h = -x, B computes sum = past + h, C computes y = -sum.
LINES: list[Line] = [
    ("Neg", "first", ["x"], "h"),
    ("Add", "second", ["past", "h"], "sum"),
    ("Neg", "third", ["sum"], "y"),
]
KEEP = Request(resident_outputs=("sum",), restore_s=60.0)


class Deployed(Deployment):
    """Deployment whose devices the test loads."""

    def executed_nodes(self, stage: int) -> Any: ...

    def export(self, stage: int) -> Any: ...

    def _unload(self) -> None: ...


class Cluster:
    """Devices of one process, which run their stages at once, and a deployment on them."""

    def __init__(self) -> None:
        self.board, self.clock = Switchboard(), ManualClock()
        self.lost: set[str] = set()
        #: Stage runs by device.
        self.runs: Counter[str] = Counter()
        memory = RemoteMemory(
            "memory", self.board.connect, self.clock, is_lost=self.lost.__contains__
        )
        self.deployments: Deployments[Any] = Deployments([], memory, self.clock)
        model = build(LINES, ["sum", "y"], inputs=["x", "past"])
        plan, self.sources = cut(model, ("A", ["first"]), ("B", ["second"]), ("C", ["third"]))
        self.deployment = Deployed(
            "key",
            single_placement(plan),
            {},
            Limits(),
            self.deployments,
            connect=partial(self.board.connect, "client"),
            addresses={name: name.lower() for name in "ABC"},
        )
        self.loops: dict[str, DeviceLoop] = {}
        for device in "ABC":
            self.start(device, device.lower())

    def start(self, device: str, address: str) -> None:
        """Start a device with its stage at an address."""
        host = DeviceHost(
            DeviceDescriptor(device, "TOY", "0", "here"), ToyPlugin(), self.clock.now_s
        )

        def run(loop: DeviceLoop, due: Any) -> None:
            self.runs[device] += 1
            loop.run(due)

        self.loops[device] = DeviceLoop(
            host,
            partial(self.board.connect, address),
            run,
            is_shared=False,
            now_s=self.clock.now_s,
        )
        host.load_stage("key", "ABC".index(device), self.sources["ABC".index(device)], 1)
        self.deployment.set_address(device, address)
        for number, name in enumerate("ABC"):
            if name in self.loops:
                self.loops[name].open_stage(self.deployment.stage_description(number, 1))

    def lose(self, *devices: str) -> None:
        """Lose devices with their tensors; each starts again elsewhere."""
        for device in devices:
            self.lost.add(self.loops[device].address)
            self.loops.pop(device).close()
        for device in devices:
            self.start(device, f"{device.lower()}{len(self.lost)}")
        self.runs.clear()

    def run(self, x: float, past: Any, request: Request = KEEP) -> Response:
        inputs = {"x": np.float32([x]), "past": past}
        return self.deployment.submit(inputs, request).future.result(0)

    def states(self, *inputs: float) -> list[Any]:
        """Run several requests, each with the state of the one before; return the states."""
        states = [np.float32([100])]
        for x in inputs:
            states.append(self.run(x, states[-1]).outputs["sum"])
        self.runs.clear()
        return states


@pytest.fixture
def cluster():
    cluster = Cluster()
    yield cluster
    cluster.deployment.close()


def value(state: Any) -> float:
    assert type(state) is ResidentTensor
    (number,) = state.tensor.to_host().tolist()
    return float(number)


def test_states_stay_on_their_device(cluster):
    _, *states = cluster.states(1, 2, 3)
    assert [state.bundle.device for state in states] == ["B"] * 3
    assert [value(state) for state in states] == [99, 97, 94]
    assert cluster.run(4, states[-1]).outputs["y"].tolist() == [-90]
    assert cluster.runs == {"A": 1, "B": 1, "C": 1}


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        # Each of the three states needs one run of B; A still has what it sent, C made no state.
        ("B", {"A": 1, "B": 3 + 1, "C": 1}),
        ("A", {"A": 1, "B": 1, "C": 1}),  # no state is lost
        ("C", {"A": 1, "B": 1, "C": 1}),
        ("AB", {"A": 3 + 1, "B": 3 + 1, "C": 1}),
        ("BC", {"A": 1, "B": 3 + 1, "C": 1}),
    ],
)
def test_lost_stages_alone_run_again(cluster, devices, expected):
    states = cluster.states(1, 2, 3)
    cluster.lose(*devices)
    response = cluster.run(4, states[-1])
    assert response.outputs["y"].tolist() == [-(100 - 1 - 2 - 3 - 4)]
    assert value(response.outputs["sum"]) == 90
    assert cluster.runs == expected
    # A second loss: four states, and the tensors that A sent again are still there.
    cluster.lose(*devices)
    assert cluster.run(5, response.outputs["sum"]).outputs["y"].tolist() == [-85]
    runs = 4 if "B" in devices else 0
    assert cluster.runs["B"] == runs + 1
    assert cluster.runs["A"] == 1 + runs * ("A" in devices)


def test_state_is_recomputed_although_a_later_one_was(cluster):
    states = cluster.states(1, 2)
    cluster.lose("B")
    assert value(states[2]) == 97  # without a request
    assert (states[2].bundle.address, states[1].bundle.address) == ("b1", "b")
    assert cluster.runs == {"B": 2}
    assert value(states[2]) == 97
    assert value(states[1]) == 99
    assert cluster.runs == {"B": 3}


def test_joined_states_are_joined_again(cluster):
    first, second = cluster.states(1)[1], cluster.states(5)[1]
    memory = cluster.deployments.memory
    joins: Any = {"past": ([(second.tensor, [0]), (first.tensor, [0])], RowLayout(0))}
    joined = memory.join(joins)["past"]
    response = cluster.run(1, joined)
    cluster.lose("B")
    after = cluster.run(2, response.outputs["sum"])
    assert after.outputs["y"].tolist() == [-(95 - 1 - 2), -(99 - 1 - 2)]
    assert cluster.runs == {"A": 1, "B": 2 + 1 + 1, "C": 1}


def test_copies_of_inputs_replace_later_changes(cluster):
    past, x = np.float32([100]), np.float32([1])
    state = cluster.deployment.submit({"x": x, "past": past}, KEEP).future.result(0).outputs["sum"]
    past[:], x[:] = -7, -7  # the caller's own
    cluster.lose("A", "B")
    assert value(state) == 99


def test_states_without_lineage_are_lost(cluster):
    state = cluster.run(1, np.float32([100]), KEEP._replace(restore_s=0.0)).outputs["sum"]
    cluster.lose("B")
    with pytest.raises(TensorLostError, match="lost with device B") as caught:
        cluster.run(2, state)
    assert (caught.value.data["port"], caught.value.data["device"]) == ("past", "B")
    with pytest.raises(DeviceLostError):
        value(state)


def test_recomputation_has_the_requests_time_limit(cluster, monkeypatch):
    states = cluster.states(1, 2, 3)
    monkeypatch.setattr(RunNode, "took_s", lambda self, plan, stages: 20.0 * len(stages))
    cluster.lose("B")
    with pytest.raises(TensorLostError, match=r"their runs take 60\.001 s.*limit of 60\.000 s"):
        cluster.run(4, states[-1])
    assert value(states[2]) == 97  # two runs take 40 s


def test_large_lineage_is_not_kept(cluster, monkeypatch):
    # Each run counts 2,048 bytes, 4 of x, and 4 that A sent; the first has 4 bytes of past.
    states = cluster.states(1, 2)
    nbytes = states[2].bundle.lineage.nbytes
    assert nbytes == (2048 + 4 + 4 + 4) + (2048 + 4 + 4)
    monkeypatch.setattr("hetero.scheduler.client.deployment.MOST_NBYTES", nbytes - 1)
    third = cluster.run(3, states[2]).outputs["sum"]
    assert third.bundle.lineage is None
    monkeypatch.setattr("hetero.scheduler.client.deployment.MOST_NBYTES", nbytes)
    fourth = cluster.run(3, states[2]).outputs["sum"]
    assert fourth.bundle.lineage is not None


def test_device_lost_during_recomputation_is_tried_again(cluster):
    states = cluster.states(1, 2)
    cluster.lose("B")
    restorer, calls = cluster.deployment._restorer, []
    run_stage = restorer._run_stage

    def run(*arguments: Any) -> Any:
        calls.append(arguments[0])
        if len(calls) <= 2:
            raise DeviceLostError("lost", device="B", node="", attempt=0)
        return run_stage(*arguments)

    restorer._run_stage = run  # type: ignore[method-assign]
    assert cluster.run(3, states[-1]).outputs["y"].tolist() == [-94]
    assert calls == [1, 1, 1, 1]  # two attempts fail at their first run
    cluster.lose("B")
    del calls[:]
    restorer._run_stage = lambda *arguments: run_stage(*arguments) if calls else lose()  # type: ignore[method-assign]

    def lose() -> Any:
        raise DeviceLostError("lost again", device="B", node="", attempt=0)

    with pytest.raises(TensorLostError, match="could not be recomputed: lost again") as caught:
        cluster.run(4, states[-1])
    assert caught.value.data["device"] == "B"


def test_closed_deployment_recomputes_no_idle_states(cluster):
    states = cluster.states(1)
    cluster.lose("B")
    runner = cluster.deployment._runner
    runner.handle(events.DeviceLost(0.0, "B", "n", "killed"))
    started_s = cluster.clock.time_s
    with pytest.raises(TensorLostError):
        value(states[1])  # no route is live for a minute
    assert cluster.clock.time_s - started_s == pytest.approx(60, abs=0.1)
    cluster.deployment._restorer.close()
    started_s = cluster.clock.time_s
    with pytest.raises(TensorLostError):
        value(states[1])
    assert cluster.clock.time_s == started_s
    runner.handle(events.DeviceReturned(0.0, "B"))


def test_tensors_of_ended_lineages_are_freed(cluster):
    states = cluster.states(1, 2, 3)
    cluster.lose("B")
    response = cluster.run(4, states[-1])
    assert cluster.loops["B"].status()["kept_nbytes"] > 0
    del response, states
    gc.collect()
    cluster.clock.pass_s(1.0)
    kept = {name: loop.status()["kept_nbytes"] for name, loop in cluster.loops.items()}
    assert kept == {"A": 0, "B": 0, "C": 0}
    memory = cluster.deployments.memory
    assert (memory.pending, memory.recomputations) == ({}, set())
    assert cluster.deployment._restorer._awaited == {}
    assert cluster.deployment._restorer._active_requests == set()


def test_device_that_dies_during_recomputation_ends_its_run(cluster):
    states = cluster.states(1, 2)
    cluster.lose("B")
    loop = cluster.loops["B"]
    tasks: list[Any] = []

    def die(loop: DeviceLoop, due: Any) -> None:
        tasks.append(due)
        cluster.lost.add(loop.address)

    loop._start = die
    with pytest.raises(TensorLostError, match="B was lost while it recomputed states") as caught:
        cluster.run(3, states[-1])
    assert len(tasks) == 1  # each of three attempts needs the same device
    cause = caught.value.__cause__
    assert isinstance(cause, DeviceLostError)
    assert cause.data == {"device": "B", "node": "", "attempt": 0}


def test_interruption_concerns_the_devices_of_a_run(cluster):
    restorer = cluster.deployment._restorer
    promises = {1: Promise[Any](), 2: Promise[Any]()}
    restorer._awaited.update({1: (promises[1], {"A", "B"}), 2: (promises[2], {"B"})})
    restorer.interrupt("C")
    assert not promises[1].done()
    restorer.interrupt("A")
    assert isinstance(promises[1].exception(0), DeviceLostError)
    assert list(restorer._awaited) == [2]
    restorer.received(KEEP._replace(id=1), {}, None)  # late
    restorer.received(KEEP._replace(id=2), {}, ValueError("bad"))
    assert isinstance(promises[2].exception(0), ValueError)
    assert restorer._awaited == {}
