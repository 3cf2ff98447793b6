"""The profile of requests: what nodes, stages and transfers took, beside what was expected.

All figures are medians over the requests, and only what was measured is among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from hetero.affinity.request_dependence import request_dependent_positions
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.request.response import RequestTimes, StageTiming
from hetero.measure.stage_times import StageTimes, median_of
from hetero.planning.report import PlanReport

#: Times of a request, and of a stage's run, of which the medians are told.
_OF_REQUESTS: Final = ("preprocess_s", "admission_s", "in_flight_s", "postprocess_s")
_OF_RUNS: Final = ("queued_s", "upload_s", "infer_s", "download_s")


class TimedRequest(NamedTuple):
    """A request that ran: when it was given inputs, by the monotonic clock, and how long."""

    began_s: float
    latency_s: float
    times: RequestTimes


def wire_links(compiled: CompiledModel) -> list[tuple[int, int]]:
    """Return the pairs of stages that tensors go between, each once, numbered as subgraphs are."""
    found: dict[tuple[int, int], None] = {}
    for cut, stages in zip(compiled.cuts, compiled.stage_numbers, strict=True):
        for wire in cut.partition.wires:
            found[stages[wire.producer], stages[wire.consumer]] = None
    return list(found)


def build_profile(
    compiled: CompiledModel, requests: Sequence[TimedRequest], plan: PlanReport | None = None
) -> dict[str, Any]:
    """Build the document: plain values for JSON, times in seconds; null is what nobody measured.

    `plan`: what was expected.
    """
    times = StageTimes(wire_links(compiled))
    for request in requests:
        sent_s = request.began_s + request.times.preprocess_s + request.times.admission_s
        times.add(sent_s, request.began_s + request.latency_s, request.times.stages)
    # Not those of devices that have been lost since.
    runs = {s.index: times.runs_of(s.index) for s in compiled.subgraphs}
    nodes = _nodes(compiled, runs, plan)
    return {
        "requests": len(requests),
        "request": {
            "latency_s": median_of(r.latency_s for r in requests),
            "infer_s": median_of(sum(run.infer_s for run in r.times.stages) for r in requests),
            **{name: median_of(getattr(r.times, name) for r in requests) for name in _OF_REQUESTS},
        },
        "stages": _stages(compiled, times, runs, nodes, plan),
        "nodes": nodes,
    }


def _stages(
    compiled: CompiledModel,
    times: StageTimes,
    runs: Mapping[int, Sequence[StageTiming]],
    nodes: Sequence[Mapping[str, Any]],
    plan: PlanReport | None,
) -> list[dict[str, Any]]:
    expected = _expected_stages_s(compiled, plan)
    rows = []
    for subgraph in compiled.subgraphs:
        mine = runs[subgraph.index]
        timed = [
            n["seconds"] for n in nodes if n["stage"] == subgraph.index and n["seconds"] is not None
        ]
        rows.append(
            {
                "stage": subgraph.index,
                "device": subgraph.device,
                "nodes": list(subgraph.node_names),
                "runs": len(mine),
                "arrives_s": median_of(times.on_way_s[subgraph.index]),
                **{name: median_of(getattr(run, name) for run in mine) for name in _OF_RUNS},
                "nodes_s": sum(timed) if timed else None,
                "output_nbytes": max((run.output_nbytes for run in mine), default=None),
                "predicted_s": expected.get(subgraph.index),
            }
        )
    return rows


def _nodes(
    compiled: CompiledModel, runs: Mapping[int, Sequence[StageTiming]], plan: PlanReport | None
) -> list[dict[str, Any]]:
    """Return a row for each executed node, in execution order."""
    target = compiled.target
    #: Name in the runtime model -> stage, and the name by which its device tells its times.
    found = {
        target.executed_name(stage, node.name): (stage, node.name)
        for stage in runs
        for node in compiled.deployment.executed_nodes(stage)
    }
    device_of = {subgraph.index: subgraph.device for subgraph in compiled.subgraphs}
    source = compiled.source
    moving = {source.nodes[position].name for position in request_dependent_positions(source)}
    rows = []
    for node in compiled.get_runtime_model().nodes:
        stage, name = found[node.name]
        told = [r.node_times_s[name] for r in runs[stage] if name in r.node_times_s]
        covers = node.covers if node.metadata["originalLayersNames"] else ()
        rows.append(
            {
                "name": name,
                "op_type": node.op_type,
                "implementation": node.metadata["implType"],
                "stage": stage,
                "device": device_of[stage],
                "covers": [name for name in covers if name in moving],
                "folded": [name for name in covers if name not in moving],
                # Who times nodes once, in a run apart, says the same each time.
                "readings": len(set(told)),
                "seconds": median_of(told),
                **_expected(covers, device_of[stage], plan),
            }
        )
    together = sum(row["seconds"] or 0.0 for row in rows)
    for row in rows:
        known = row["seconds"] is not None and together > 0
        row["share"] = row["seconds"] / together if known else None
    return rows


def _expected(covers: Sequence[str], device: str, plan: PlanReport | None) -> dict[str, Any]:
    """Return what was expected of nodes together, if it was of each that requests run."""
    planned = [plan.node_times[name] for name in covers if name in plan.node_times] if plan else []
    times = [on[device] for on in planned if device in on]
    if not times or len(times) < len(planned):
        return {"predicted_s": None, "source": None}
    sources = {time.source for time in times}
    worst = next(s for s in ("estimated", "calibrated", "measured") if s in sources)
    return {"predicted_s": sum(time.seconds for time in times), "source": worst}


def _expected_stages_s(compiled: CompiledModel, plan: PlanReport | None) -> dict[int, float]:
    """Return what was expected of each stage that is cut as the plan says."""
    names = {subgraph.index: subgraph.node_names for subgraph in compiled.subgraphs}
    found: dict[int, float] = {}
    if plan is None:
        return found
    for stage in plan.stages:
        if stage.variant < len(compiled.stage_numbers):
            number = compiled.stage_numbers[stage.variant][stage.index]
            cut = plan.variants[stage.variant].partition
            if cut.subgraphs[stage.index].node_names == names[number]:
                found[number] = stage.run_s
    return found
