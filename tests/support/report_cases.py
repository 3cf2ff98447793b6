"""Surveys and plans with fixed values, for tests of reports.

``python -m tests.support.report_cases`` rewrites the golden files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from hetero.affinity.affinity import Affinity, assign
from hetero.affinity.pins import collect_pins
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.support import Refusal, Support
from hetero.partition.partition import PlacedPartition, partition
from hetero.planning.cost.costs import Time
from hetero.planning.plan_report import Alternative, PlanReport, StagePrediction, WirePrediction
from hetero.query.priority import query_priority
from hetero.query.survey import Survey
from hetero.report import build_report
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from tests.support.models import branches, unknown_ops

GOLDEN = Path(__file__).parents[1] / "golden"


def survey_of(
    model: onnx.ModelProto | Model,
    takes: Mapping[str, Sequence[str] | None],
    pins: Mapping[str, str] | None = None,
) -> Survey:
    """Return a survey of devices that support the types in `takes`; None stands for all."""
    source = read_model(model)

    def ask(device: str, part: Model) -> Support:
        types = takes[device]
        supported = {
            n.name: device
            for n in part.nodes
            if (not n.domain if types is None else n.op_type in types)
        }
        refusals = {
            n.name: {device: Refusal("no_kernel", f"no {n.op_type} here")}
            for n in part.nodes
            if n.name not in supported
        }
        return Support(supported, refusals, refusals)

    devices = list(takes)
    affinity_pins = collect_pins(source, devices, pins or {})
    support = query_priority(source, devices, ask, affinity_pins)
    return Survey(
        source,
        "HETERO:" + ",".join(devices),
        tuple(
            DeviceDescriptor(name, name.partition(".")[0], "0", "local", f"{name} of the test", "1")
            for name in devices
        ),
        {name: ask(name, source) for name in devices},
        support,
        assign(source, support, affinity_pins),
        affinity_pins,
        dict.fromkeys(devices, 0.25),
    )


def branches_survey() -> Survey:
    """Return a survey of `branches`: device 1 refuses Tanh, and Neg is pinned to device 2."""
    takes = {"ORT": ["MatMul", "Relu", "Neg", "Abs", "Add"], "CPU": None, "NULL": []}
    return survey_of(branches(), takes, {"neg": "CPU"})


def branches_plan(survey: Survey) -> PlanReport:
    """Return a plan for `branches_survey` with round numbers."""
    placed = Affinity(
        {**survey.affinity.devices, "abs": "CPU"}, {**survey.affinity.reasons, "abs": "plan"}
    )
    return PlanReport(
        model=survey.model.name,
        model_hash=survey.model.content_hash,
        devices=survey.names,
        policy="AUTO",
        hint="THROUGHPUT",
        replicas=(PlacedPartition(partition(survey.model, placed), placed),),
        bottleneck_s=0.004,
        latency_s=0.009,
        loads_s={"ORT": 0.003, "CPU": 0.001, "NULL": 0.0},
        bottleneck="ORT",
        bound_s=0.003,
        bound_name="work",
        bound_scope="any plan",
        ratio=4 / 3,
        advice=("a second ORT",),
        alternatives=(
            Alternative("annealing", 0.004, 0.009, ("ORT", "CPU"), 3, 3, 48, chosen=True),
            Alternative("single CPU", 0.0035, 0.0035, ("CPU",), 1),
            Alternative("priority", 0.005, 0.01, ("ORT", "CPU"), 3, 3, 48),
        ),
        stages=(
            StagePrediction(0, "ORT", 2, 0.002, 0.0005, 0.0001),
            StagePrediction(1, "CPU", 3, 0.001, 0.002, 0.0001),
            StagePrediction(2, "ORT", 1, 0.00005, 0.0, 0.0001),
        ),
        wires=(WirePrediction("positive", 0, 1, 16, 0.0005),),
        node_times={"relu": {"ORT": Time(0.001, "measured"), "CPU": Time(0.002, "estimated")}},
        sources={"measured": 1, "estimated": 1},
        planning_s=1.5,
        basis="costs in process at 2026-11-22T10:00:00+00:00: 1 node times measured, 1 estimated",
    )


def chain(*types: str, cast: dict[str, int] | None = None, dtype: int = 1) -> onnx.ModelProto:
    """Return a chain of unary nodes, named by type and position."""
    casts = cast or {}
    nodes = []
    for i, op_type in enumerate(types):
        name = f"{op_type}{i}"
        attributes = {"to": casts[name]} if op_type == "Cast" else {}
        nodes.append(helper.make_node(op_type, [f"v{i}"], [f"v{i + 1}"], name, **attributes))
    last = list(casts.values())[-1] if casts else dtype
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("v0", dtype, [4])],
        [helper.make_tensor_value_info(f"v{len(types)}", last, [4])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def repeated(blocks: int) -> onnx.ModelProto:
    """Return a stem, `blocks` equal residual blocks, and a head."""
    nodes = [helper.make_node("Conv", ["x", "k"], ["v0"], "stem")]
    for i in range(blocks):
        nodes += [
            helper.make_node("Conv", [f"v{i}", "k"], [f"a{i}"], f"conv_a{i}"),
            helper.make_node("Relu", [f"a{i}"], [f"b{i}"], f"relu{i}"),
            helper.make_node("Conv", [f"b{i}", "k"], [f"c{i}"], f"conv_b{i}"),
            helper.make_node("Add", [f"v{i}", f"c{i}"], [f"v{i + 1}"], f"add{i}"),
        ]
    nodes.append(helper.make_node("GlobalAveragePool", [f"v{blocks}"], ["y"], "head"))
    weight = helper.make_tensor("k", TensorProto.FLOAT, [4, 4, 1, 1], [0.0] * 16)
    graph = helper.make_graph(
        nodes,
        "repeated",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 1, 1])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def golden_documents() -> dict[str, dict[str, Any]]:
    """Return the documents of the golden files by file name."""
    survey = branches_survey()
    return {
        "report_query_v3.json": build_report(survey, command="hetero query branches.onnx"),
        "report_plan_v3.json": build_report(survey, branches_plan(survey)),
        "report_unsupported_v3.json": build_report(
            survey_of(unknown_ops(), {"ORT": None, "CPU": None})
        ),
    }


if __name__ == "__main__":
    for name, document in golden_documents().items():
        (GOLDEN / name).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
