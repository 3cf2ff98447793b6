"""The report as a JSON document, built from a survey and an optional plan.

Tables and HTML are rendered from the document alone. Its schema is ``report.schema.json`` in
this folder. `VERSION` increases when the meaning of a field changes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from hetero.affinity.affinity import Affinity
from hetero.affinity.request_dependence import request_dependent_positions
from hetero.devices.errors import AffinityError
from hetero.devices.model.model import Model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.partition.partition import Partition, partition
from hetero.planning.cost.estimation import with_input_shapes
from hetero.planning.plan_report import PlanReport
from hetero.query.survey import Survey
from hetero.report.alternatives import alternatives
from hetero.report.lints import lints
from hetero.report.support_matrix import support_matrix
from hetero.report.tensor_size import tensor_size
from hetero.report.verdict import fallback, verdict

NAME: Final = "hetero.report"
VERSION: Final = 3
#: Stands for the device of unsupported nodes during partitioning; null in the document.
NO_DEVICE: Final = ""
#: Fields copied from each device, stage and plan.
_DEVICE_FIELDS: Final = (
    "name",
    "plugin",
    "version",
    "fingerprint",
    "full_name",
    "node",
    "num_threads",
    "memory_nbytes",
)
_STAGE_FIELDS: Final = ("run_s", "transfer_s", "overhead_s")
_PLAN_FIELDS: Final = (
    "bottleneck_s",
    "latency_s",
    "bottleneck",
    "bound_s",
    "bound_name",
    "bound_scope",
    "planning_s",
    "cut_short",
    "basis",
)


def build_report(
    survey: Survey, plan: PlanReport | None = None, *, command: str = ""
) -> dict[str, Any]:
    """Build the document: plain values for JSON, valid against ``report.schema.json``.

    Times are in seconds, sizes in bytes. A size with ``open_dims`` counts open dimensions as 1.

    `plan`: a plan with its predictions; its first replica's affinity replaces the survey's.
    `command`: the command line that makes this report.
    """
    affinity = survey.affinity if plan is None else plan.affinity
    shapes = survey.shapes if plan is None else plan.shapes
    description = describe_model(survey.model)
    survey = replace(survey, model=with_input_shapes(survey.model, shapes))
    cut: Partition | None = None
    problem = None
    if plan is not None:
        cut = plan.replicas[0].partition
    else:
        try:
            cut = partition(
                survey.model, {n: affinity.get(n, NO_DEVICE) for n in survey.model.node_names}
            )
        except AffinityError as error:
            problem = str(error)
    model = survey.model if cut is None else with_input_shapes(cut.source, shapes)
    document: dict[str, Any] = {
        "schema": {"name": NAME, "version": VERSION},
        "kind": "query" if plan is None else "plan",
        "command": command,
        # Equal digests mean equal placements.
        "placement": hashlib.sha256(json.dumps(sorted(affinity.items())).encode()).hexdigest(),
        "model": description,
        "request": {
            "device": survey.request,
            "devices": list(survey.names),
            "config": {key: str(value) for key, value in survey.config.items()},
            "pins": dict(survey.pins.devices),
            "shapes": {name: list(shape) for name, shape in shapes.items()},
            "policy": "PRIORITY" if plan is None else plan.policy,
            "hint": None if plan is None else plan.hint,
        },
        "devices": _devices(survey, affinity, plan),
        "support_matrix": support_matrix(model, survey.results),
        "nodes": _nodes(model, survey, affinity, cut, plan),
        "subgraphs": [] if cut is None else _subgraphs(model, cut, plan),
        "wires": [] if cut is None else _wires(model, cut, plan),
        "uncut": problem,
        "replicas": [
            {"share": v.share, "devices": dict(Counter(v.affinity.values()))}
            for v in (plan.replicas if plan else ())
        ],
        "plan": None if plan is None else _plan(plan),
        "advice": [] if plan is None else list(plan.advice),
    }
    if plan is not None and plan.memory:
        document["memory"] = [device.to_dict() for device in plan.memory]
    document["fallback"] = fallback(document)
    document["counterfactuals"] = alternatives(survey, document, plan)
    document["lints"] = lints(document)
    document["verdict"] = verdict(document)
    return document


def describe_model(model: Model) -> dict[str, Any]:
    """Return a model's name, hash, size, opsets and ports."""
    return {
        "name": model.name,
        "hash": model.content_hash,
        "ir_version": model.header.ir_version,
        "opsets": {domain or "ai.onnx": v for domain, v in sorted(model.opset_imports.items())},
        "nodes": len(model.nodes),
        "parameters": sum(math.prod(c.array.shape) for c in model.constants.values()),
        "weight_nbytes": model.weight_nbytes,
        "inputs": [_port(port) for port in model.inputs],
        "outputs": [_port(port) for port in model.outputs],
    }


def _port(spec: TensorSpec) -> dict[str, Any]:
    shape = None if spec.shape is None else list(spec.shape)
    return {"name": spec.name, "type": spec.type, "shape": shape, **tensor_size(spec)}


def _devices(
    survey: Survey, affinity: Mapping[str, str], plan: PlanReport | None
) -> list[dict[str, Any]]:
    counts = Counter(affinity.values())
    shares: dict[str, float] = dict.fromkeys(counts, 1.0) if plan is None else {}
    for replica in plan.replicas if plan else ():
        for name, count in Counter(replica.affinity.values()).items():
            # A device that the first replica does not use gets the count of its first replica.
            counts.setdefault(name, count)
            shares[name] = shares.get(name, 0.0) + replica.share
    return [
        {
            **{name: getattr(d, name) for name in _DEVICE_FIELDS},
            "supported": len(survey.results[d.name]),
            "nodes": counts[d.name],
            "used": bool(counts[d.name]),
            "share": min(shares.get(d.name, 0.0), 1.0),
            "query_s": survey.query_s.get(d.name),
            **({"verification": text} if (text := survey.verification.get(d.name)) else {}),
            "load_s": None if plan is None else plan.loads_s.get(d.name, 0.0),
        }
        for d in survey.devices
    ]


def _nodes(
    model: Model, survey: Survey, affinity: Affinity, cut: Partition | None, plan: PlanReport | None
) -> list[dict[str, Any]]:
    request_dependent = set(request_dependent_positions(model))
    rows = []
    for position, node in enumerate(model.nodes):
        device = affinity.get(node.name)
        outputs = [_port(model.spec(value)) for value in node.writes]
        refusals = {
            name: refusal
            for name, support in survey.results.items()
            if (refusal := support.refusals.get(node.name, {}).get(name))
        }
        times = {} if plan is None else plan.node_times.get(node.name, {})
        row = {
            "name": node.name,
            "op_type": node.op_type,
            "domain": node.domain,
            "inputs": list(node.reads),
            "outputs": outputs,
            "nbytes": _total(outputs),
            "constant": position not in request_dependent,
            "supported_on": [name for name, a in survey.results.items() if node.name in a.devices],
            "device": device,
            "subgraph": None if cut is None else cut.subgraph_of.get(node.name),
            "why": affinity.reasons.get(node.name, "") if device else "no device supports it",
            "note": survey.results[device].notes.get(node.name) if device else None,
            "refusals": {
                name: {"code": r.code, "message": r.message} for name, r in refusals.items()
            },
            "times": {name: asdict(time) for name, time in times.items()},
        }
        rows.append(row | {"choice": _choice(row, survey, plan)})
    return rows


def _choice(node: Mapping[str, Any], survey: Survey, plan: PlanReport | None) -> str:
    """Return the kind of decision that placed a node."""
    if node["device"] is None:
        return "none"
    if node["name"] in survey.pins:
        return "pin"
    if node["why"].startswith("follows"):
        return "follows"
    if node["supported_on"] == [node["device"]]:
        return "only"
    return "priority" if plan is None or plan.policy == "PRIORITY" else "plan"


def _subgraphs(model: Model, cut: Partition, plan: PlanReport | None) -> list[dict[str, Any]]:
    stages = {s.index: s for s in plan.stages if s.replica == 0} if plan else {}
    rows = []
    for s in cut.subgraphs:
        weights = {v for p in s.positions for v in model.nodes[p].reads if v in model.constants}
        stage = stages.get(s.index)
        rows.append(
            {
                "index": s.index,
                "device": s.device or None,
                "nodes": list(s.node_names),
                "inputs": list(s.inputs),
                "outputs": list(s.outputs),
                "in_nbytes": _total(tensor_size(model.spec(value)) for value in s.inputs),
                "out_nbytes": _total(tensor_size(model.spec(value)) for value in s.outputs),
                "weight_nbytes": sum(model.constants[v].array.nbytes for v in weights),
                **{name: stage and getattr(stage, name) for name in _STAGE_FIELDS},
            }
        )
    return rows


def _total(sizes: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the total bytes of tensors; None if the rank of one is unknown."""
    nbytes = [row["nbytes"] for row in sizes]
    return None if None in nbytes else sum(nbytes)


def _wires(model: Model, cut: Partition, plan: PlanReport | None) -> list[dict[str, Any]]:
    plan_wires = plan.wires if plan else ()
    times = {(w.tensor, w.producer, w.consumer): w.seconds for w in plan_wires if w.replica == 0}
    return [
        {
            "tensor": w.tensor,
            "producer": w.producer,
            "consumer": w.consumer,
            "type": model.spec(w.tensor).type,
            **tensor_size(model.spec(w.tensor)),
            "seconds": times.get((w.tensor, w.producer, w.consumer)),
        }
        for w in cut.wires
    ]


def _plan(plan: PlanReport) -> dict[str, Any]:
    return {
        **{name: getattr(plan, name) for name in _PLAN_FIELDS},
        "throughput_per_s": 1 / plan.bottleneck_s if plan.bottleneck_s > 0 else None,
        "ratio": plan.ratio if math.isfinite(plan.ratio) else None,
        "sources": dict(plan.sources),
        "unmeasured": dict(plan.unmeasured),
        "sentence": plan.sentence(),
    }
