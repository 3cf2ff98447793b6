"""Profile of requests: measured times of nodes, stages and transfers, compared with a prediction.

All times are medians over the requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from hetero.affinity.request_dependence import request_dependent_positions
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.request.response import RequestTimes, StageTiming
from hetero.measure.stage_times import StageTimes, median_of
from hetero.planning.plan_report import PlanReport

#: Times of a request, and of a stage's run, whose medians are in the profile.
_REQUEST_TIMES: Final = ("preprocess_s", "admission_s", "in_flight_s", "postprocess_s")
_RUN_TIMES: Final = ("queued_s", "upload_s", "infer_s", "download_s")


class TimedRequest(NamedTuple):
    """A finished request: its start by the monotonic clock, its latency, and its stages' times."""

    began_s: float
    latency_s: float
    times: RequestTimes


def wire_links(compiled: CompiledModel) -> list[tuple[int, int]]:
    """Return the distinct (producer, consumer) stages of all wires, numbered like subgraphs."""
    links: dict[tuple[int, int], None] = {}
    for cut, stages in zip(compiled.placements, compiled.stage_numbers, strict=True):
        for wire in cut.partition.wires:
            links[stages[wire.producer], stages[wire.consumer]] = None
    return list(links)


def build_profile(
    compiled: CompiledModel, requests: Sequence[TimedRequest], plan: PlanReport | None = None
) -> dict[str, Any]:
    """Build the profile: plain values for JSON, times in seconds, null for missing measurements.

    `plan`: the prediction.
    """
    times = StageTimes(wire_links(compiled))
    for request in requests:
        sent_s = request.began_s + request.times.preprocess_s + request.times.admission_s
        times.add(sent_s, request.began_s + request.latency_s, request.times.stages)
    # Only current subgraphs: the stages of lost devices are no longer among them.
    runs = {s.index: times.runs_of(s.index) for s in compiled.subgraphs}
    nodes = _nodes(compiled, runs, plan)
    return {
        "requests": len(requests),
        "request": {
            "latency_s": median_of(r.latency_s for r in requests),
            "infer_s": median_of(sum(run.infer_s for run in r.times.stages) for r in requests),
            **{
                name: median_of(getattr(r.times, name) for r in requests) for name in _REQUEST_TIMES
            },
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
    predicted_s = _predicted_stages_s(compiled, plan)
    rows = []
    for subgraph in compiled.subgraphs:
        stage_runs = runs[subgraph.index]
        node_times_s = [
            n["seconds"] for n in nodes if n["stage"] == subgraph.index and n["seconds"] is not None
        ]
        rows.append(
            {
                "stage": subgraph.index,
                "device": subgraph.device,
                "nodes": list(subgraph.node_names),
                "runs": len(stage_runs),
                "arrives_s": median_of(times.transfers_s[subgraph.index]),
                **{
                    name: median_of(getattr(run, name) for run in stage_runs) for name in _RUN_TIMES
                },
                "nodes_s": sum(node_times_s) if node_times_s else None,
                "output_nbytes": max((run.output_nbytes for run in stage_runs), default=None),
                "predicted_s": predicted_s.get(subgraph.index),
            }
        )
    return rows


def _nodes(
    compiled: CompiledModel, runs: Mapping[int, Sequence[StageTiming]], plan: PlanReport | None
) -> list[dict[str, Any]]:
    """Return a row for each executed node, in execution order."""
    target = compiled.target
    #: Name in the runtime model -> stage, and the name under which the device reports its times.
    stage_nodes = {
        target.executed_name(stage, node.name): (stage, node.name)
        for stage in runs
        for node in compiled.deployment.executed_nodes(stage)
    }
    device_of = {subgraph.index: subgraph.device for subgraph in compiled.subgraphs}
    source = compiled.source
    request_dependent = {
        source.nodes[position].name for position in request_dependent_positions(source)
    }
    rows = []
    for node in compiled.get_runtime_model().nodes:
        stage, name = stage_nodes[node.name]
        times_s = [r.node_times_s[name] for r in runs[stage] if name in r.node_times_s]
        covers = node.covers if node.metadata["originalLayersNames"] else ()
        rows.append(
            {
                "name": name,
                "op_type": node.op_type,
                "implementation": node.metadata["implType"],
                "stage": stage,
                "device": device_of[stage],
                "covers": [name for name in covers if name in request_dependent],
                "folded": [name for name in covers if name not in request_dependent],
                # A device that times its nodes once, in a separate run, reports one time each.
                "readings": len(set(times_s)),
                "seconds": median_of(times_s),
                **_prediction(covers, device_of[stage], plan),
            }
        )
    total_s = sum(row["seconds"] or 0.0 for row in rows)
    for row in rows:
        is_timed = row["seconds"] is not None and total_s > 0
        row["share"] = row["seconds"] / total_s if is_timed else None
    return rows


def _prediction(covers: Sequence[str], device: str, plan: PlanReport | None) -> dict[str, Any]:
    """Return the predicted total time of nodes; None unless each node has a prediction."""
    predictions = (
        [plan.node_times[name] for name in covers if name in plan.node_times] if plan else []
    )
    times = [on[device] for on in predictions if device in on]
    if not times or len(times) < len(predictions):
        return {"predicted_s": None, "source": None}
    sources = {time.source for time in times}
    least_exact = next(s for s in ("estimated", "calibrated", "measured") if s in sources)
    return {"predicted_s": sum(time.seconds for time in times), "source": least_exact}


def _predicted_stages_s(compiled: CompiledModel, plan: PlanReport | None) -> dict[int, float]:
    """Return the predicted time of each stage that has the same nodes in the plan."""
    names = {subgraph.index: subgraph.node_names for subgraph in compiled.subgraphs}
    predicted_s: dict[int, float] = {}
    if plan is None:
        return predicted_s
    for stage in plan.stages:
        if stage.replica < len(compiled.stage_numbers):
            number = compiled.stage_numbers[stage.replica][stage.index]
            cut = plan.replicas[stage.replica].partition
            if cut.subgraphs[stage.index].node_names == names[number]:
                predicted_s[number] = stage.run_s
    return predicted_s
