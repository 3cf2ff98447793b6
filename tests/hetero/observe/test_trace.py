"""Trace files of requests and stages in Google's Trace Event Format."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.devices.errors import ArgumentError
from hetero.devices.request.response import StageTiming
from hetero.observe.trace import Trace, trace_events
from hetero.scheduler.types.request_record import RequestState
from tests.scheduler.models import chain, replicate
from tests.support.command_line import start_endless_command
from tests.support.models import branches
from tests.support.observed_requests import ended
from tests.support.plans import replica_config

DEVICES = "HETERO:CPU,ORT"
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
#: Three subgraphs and three wires: 0 -> 1, 0 -> 2, 1 -> 2.
CUT = {"op:Tanh": "CPU"}
#: Phase -> fields that the format requires in addition to ``ph`` and ``pid``.
FIELDS = {
    "M": {"name", "args"},
    "X": {"name", "ts", "dur", "tid"},
    "b": {"name", "ts", "id", "cat"},
    "e": {"name", "ts", "id", "cat"},
    "s": {"name", "ts", "id", "cat", "tid"},
    "f": {"name", "ts", "id", "cat", "tid"},
    "i": {"name", "ts", "s", "tid"},
}
Event = dict[str, Any]
#: Events of requests, and stage timings by request id.
Traced = tuple[list[Event], dict[int, tuple[StageTiming, ...]]]


def events_of(path: Path) -> list[Event]:
    """Read the events of a trace; check their fields and that slices nest."""
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    slices: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        assert {"pid", *FIELDS[event["ph"]]} <= event.keys(), event
        assert event["ph"] == "M" or event["ts"] >= 0
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append(span_ns(event))
    for spans in slices.values():
        open_until: list[int] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1], "slices of a thread nest"
            open_until.append(end)
    return events


def span_ns(event: Event) -> tuple[int, int]:
    begin, length = round(event["ts"] * 1e3), round(event.get("dur", 0) * 1e3)
    return begin, begin + length


def events_of_category(events: list[Event], phase: str, category: str) -> list[Event]:
    return [e for e in events if e["ph"] == phase and e.get("cat") == category]


@pytest.fixture(scope="module")
def trace_of_requests(core, tmp_path_factory):
    """Trace five requests that are in flight together."""
    path = tmp_path_factory.mktemp("traced") / "trace.json"
    with (
        core.trace(path),
        core.compile_model(branches(), "HETERO:ORT,CPU", affinity=CUT) as compiled,
    ):
        submitted = [compiled.submit({"x": X}) for _ in range(5)]
        runs = {s.request_id: s.future.result(60).stage_timings for s in submitted}
    return events_of(path), runs


def test_stage_slices_have_the_requests_times(trace_of_requests):
    events, runs = trace_of_requests
    stages = {
        (e["args"]["request"], e["args"]["stage"]): e
        for e in events_of_category(events, "X", "stage")
    }
    assert stages.keys() == {(number, run.stage) for number in runs for run in runs[number]}
    first = min(run.started_s for each in runs.values() for run in each)
    origin_ns = min(span_ns(event)[0] for event in stages.values())
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events_named(events, "thread_name")}
    for (number, stage), event in stages.items():
        run = runs[number][stage]
        begin_ns, end_ns = span_ns(event)
        assert (begin_ns - origin_ns) / 1e9 == pytest.approx(run.started_s - first, abs=2e-9)
        assert (end_ns - begin_ns) / 1e9 == pytest.approx(run.run_s, abs=2e-9)
        assert event["name"] == f"branches, stage {stage}"
        assert threads[event["pid"], event["tid"]].split(",")[0] == run.device


def events_named(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event["name"] == name]


def test_stage_slices_lie_within_their_request(trace_of_requests):
    events, runs = trace_of_requests
    requests = {
        e["args"]["request"]: e for e in events_of_category(events, "X", "request") if "args" in e
    }
    assert requests.keys() == runs.keys()
    flights = {span_ns(e) for e in events_named(events, "in flight")}
    for stage in events_of_category(events, "X", "stage"):
        begin, end = span_ns(requests[stage["args"]["request"]])
        assert begin <= span_ns(stage)[0] <= span_ns(stage)[1] <= end
    assert len(flights) == len(runs)
    assert {e["args"]["state"] for e in requests.values()} == {"answered"}


def test_queue_wait_ends_with_the_stages_start(trace_of_requests):
    events, runs = trace_of_requests
    begins = {e["id"]: e for e in events_of_category(events, "b", "queue")}
    ends = {e["id"]: e for e in events_of_category(events, "e", "queue")}
    assert begins.keys() == ends.keys()
    starts = {
        (e["args"]["request"], e["name"]): span_ns(e)[0]
        for e in events_of_category(events, "X", "stage")
    }
    queued_runs = {
        (n, f"branches, stage {r.stage}"): r for n in runs for r in runs[n] if r.queued_s > 0
    }
    assert len(queued_runs) == len(begins)
    for key, begin in begins.items():
        stage_key = (begin["args"]["request"], begin["name"].removesuffix(" waits"))
        assert span_ns(ends[key])[0] == starts[stage_key]
        wait_s = (span_ns(ends[key])[0] - span_ns(begin)[0]) / 1e9
        assert wait_s == pytest.approx(queued_runs[stage_key].queued_s, abs=2e-9)


def test_flows_connect_slices_along_wires(trace_of_requests):
    events, runs = trace_of_requests
    arrivals = {(e["cat"], e["id"]): e for e in events if e["ph"] == "f"}
    departures = [e for e in events if e["ph"] == "s"]
    assert len(departures) == len(arrivals)
    slices = events_of_category(events, "X", "stage") + events_of_category(events, "X", "request")

    def slices_at(event: Event) -> list[Event]:
        at = span_ns(event)[0]
        return [
            s
            for s in slices
            if (s["pid"], s["tid"]) == (event["pid"], event["tid"])
            and span_ns(s)[0] <= at <= span_ns(s)[1]
        ]

    wires = set()
    for departure in departures:
        arrival = arrivals[departure["cat"], departure["id"]]
        assert arrival["bp"] == "e"
        args = departure["args"]
        target_stages = [(s["args"]["request"], s["args"]["stage"]) for s in slices_at(arrival)]
        assert (args["request"], args["consumer"]) in target_stages
        if departure["cat"] == "inputs":
            assert args["consumer"] == 0
            assert departure["pid"] == 1
            continue
        source_stages = [(s["args"]["request"], s["args"]["stage"]) for s in slices_at(departure)]
        assert (args["request"], args["producer"]) in source_stages
        wires.add((args["request"], args["producer"], args["consumer"], *args["tensors"]))
    expected = ((0, 1, "positive"), (0, 2, "right"), (1, 2, "left"))
    assert wires == {(number, *wire) for number in runs for wire in expected}


def interrupt_block(block: Trace, run: Callable[[], object]) -> None:
    with block:
        run()
        raise KeyboardInterrupt


def test_interrupted_block_writes_a_complete_trace(core, tmp_path):
    path = tmp_path / "trace.json"
    with pytest.raises(KeyboardInterrupt):
        interrupt_block(core.trace(path), lambda: core.compile_model(branches(), "CPU")(X))
    assert len(events_of_category(events_of(path), "X", "stage")) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]


def test_unfinished_requests_are_traced(core, tmp_path):
    path = tmp_path / "trace.json"
    with core.compile_model(branches(), "NULL", {"NULL_FAULT": "hang@1"}) as compiled:
        with pytest.raises(KeyboardInterrupt):
            interrupt_block(core.trace(path), lambda: compiled.submit({"x": X}))
        events = events_of(path)
    (request,) = [e for e in events_of_category(events, "X", "request") if "args" in e]
    assert request["args"]["state"] == "running"
    assert [e["name"] for e in events_of_category(events, "i", "request")] == [
        "submitted with 24 bytes",
        "started",
    ]


def test_trace_keeps_the_latest_requests(core, tmp_path):
    path = tmp_path / "trace.json"
    with core.compile_model(branches(), "CPU") as compiled:
        compiled(X)  # before the block, so not traced
        with core.trace(path, requests=2) as trace:
            submitted = [compiled.submit({"x": X}) for _ in range(5)]
            request_ids = [s.request_id for s in submitted if s.future.result(60)]
    assert trace.num_left_out == 3
    recorded = {e["args"]["request"] for e in events_of_category(events_of(path), "X", "stage")}
    assert len(recorded) == 2
    assert recorded < set(request_ids)
    assert json.loads(path.read_text())["otherData"] == {"requests": 2, "left_out": 3}
    with pytest.raises(ValueError, match="at least 1"):
        core.trace(path, requests=0)


def test_failed_request_has_its_story(core, tmp_path):
    path = tmp_path / "trace.json"
    config = {"NULL_FAULT": "fail@1"}
    with (
        core.trace(path),
        core.compile_model(branches(), "NULL", config) as compiled,
        pytest.raises(hetero.InferenceError),
    ):
        compiled(X)
    events = events_of(path)
    (request,) = [e for e in events_of_category(events, "X", "request") if "args" in e]
    assert request["args"]["state"] == "failed"
    assert [e["name"].partition(":")[0] for e in events_of_category(events, "i", "request")] == [
        "submitted with 24 bytes",
        "started",
        "failed",
    ]


@pytest.mark.parametrize("command", [pytest.param("run", marks=pytest.mark.slow), "bench"])
def test_interrupted_command_writes_a_complete_trace(command, tmp_path):
    path = tmp_path / "trace.json"
    process = start_endless_command(command, tmp_path, "--trace", path)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    (request,) = [e for e in events_of_category(events_of(path), "X", "request") if "args" in e]
    assert request["args"]["state"] in ("cancelled", "running")


@pytest.mark.parametrize("command", ["run", "bench -n 3 -t 1"])
def test_commands_write_traces(shell, model, tmp_path, command):
    path = tmp_path / "trace.json"
    result = shell(command, model, "-d", "HETERO:ORT,CPU", "-a", "op:Tanh=CPU", "--trace", path)
    assert result.code == 0
    assert f"wrote {path}" in result.err
    stages = events_of_category(events_of(path), "X", "stage")
    assert {e["args"]["device"] for e in stages} == {"ORT", "CPU"}
    result = shell(command, model, "--trace", model)
    assert result.code == 2
    assert "--trace" in result.err


def test_runs_by_an_unknown_clock_are_omitted():
    runs = (StageTiming(0, "A", 0.5, 11.0, 12.0), StageTiming(1, "B", 0.5, 90011.0, 90012.0))
    request = ended(RequestState.ANSWERED, 3.0, runs=runs)
    events = list(trace_events([request], {"A": "here", "B": "there"}, now_s=20.0))
    assert [e["args"]["stage"] for e in events_of_category(events, "X", "stage")] == [0]
    assert {e["ph"]: e["cat"] for e in events if e["ph"] in "sf"} == {"s": "inputs", "f": "inputs"}
    assert max(e.get("ts", 0) for e in events) < 3e6


def test_replicas_are_traced_by_their_stages(core, tmp_path):
    config = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 2e-3})
    path = tmp_path / "trace.json"
    with core.trace(path), core.compile_model(branches(), DEVICES, config) as compiled:
        submitted = [compiled.submit({"x": X}) for _ in range(6)]
        runs = {s.request_id: s.future.result(60).stage_timings for s in submitted}
        devices = {s.index: s.device for s in compiled.subgraphs}
    stages = events_of_category(events_of(path), "X", "stage")
    assert {(e["args"]["request"], e["args"]["stage"]) for e in stages} == {
        (number, run.stage) for number in runs for run in runs[number]
    }
    assert {e["args"]["stage"]: e["args"]["device"] for e in stages} == devices


def test_wires_follow_the_requests_route():
    placement = replicate(chain("A", "B", "A")[0], {1: {"B": 1.0, "C": 1.0}})
    requests = [
        ended(
            RequestState.ANSWERED,
            10.0,
            runs=tuple(
                StageTiming(stage, placement.stages[stage].device, 0.0, 11.0 + i, 12.0 + i)
                for i, stage in enumerate(route.stages)
            ),
        )._replace(route=route)
        for route in placement.routes
    ]
    events = list(trace_events(requests, {}, now_s=30.0))
    wires = [
        (e["args"]["producer"], e["args"]["consumer"])
        for e in events_of_category(events, "s", "wire")
    ]
    assert wires == [pair for route in placement.routes for pair in pairwise(route.stages)]
    assert len(set(wires)) == 4


def test_close_writes_trace_and_refuses_unwritable_path(
    tmp_path,
):
    core = hetero.Core(executor="inprocess")
    with pytest.raises(ArgumentError, match="expected a file in a writable folder"):
        core.trace(tmp_path / "none" / "t.json")
    trace, server = core.trace(tmp_path / "t.json"), core.serve_metrics()
    core.compile_model(branches(), "CPU")(X)
    with urllib.request.urlopen(server.url, timeout=60) as answer:
        assert 'state="answered"} 1' in answer.read().decode()
    assert server.url in repr(server)
    core.close()
    assert trace.is_written
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["requests"] == 1
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(server.url, timeout=60)
    trace.close()
    server.close()
