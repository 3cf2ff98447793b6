"""The report document: schema, counts, lints, annotated model and terminal output."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from importlib import resources
from typing import Any

import jsonschema
import onnx
import pytest
from onnx import TensorProto
from rich.console import Console

from hetero.affinity.affinity import Affinity
from hetero.affinity.metadata import metadata_pins
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.support import Refusal
from hetero.formatting import nbytes_text, seconds_text
from hetero.partition.partition import PlacedPartition, partition
from hetero.report import (
    annotated_model,
    build_report,
    report_table,
    strict_problems,
)
from hetero.report.support_matrix import count_causes
from tests.support.models import branches, unknown_ops
from tests.support.report_cases import (
    GOLDEN,
    branches_plan,
    branches_survey,
    chain,
    golden_documents,
    repeated,
    survey_of,
)

SCHEMA = json.loads(
    resources.files("hetero.report").joinpath("report.schema.json").read_text(encoding="utf-8")
)
CODES = SCHEMA["properties"]["lints"]["items"]["properties"]["code"]["enum"]


def validate(document: dict[str, Any]) -> None:
    """Check a document after a JSON round trip against the schema."""
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(document)))


@pytest.fixture
def document():
    return build_report(branches_survey())


def lint_codes(document: dict[str, Any]) -> list[str]:
    return [lint["code"] for lint in document["lints"]]


# The schema.


@pytest.mark.parametrize("name", list(golden_documents()))
def test_documents_equal_the_golden_files(name):
    expected = json.loads((GOLDEN / name).read_text())
    assert json.loads(json.dumps(golden_documents()[name])) == expected


@pytest.mark.parametrize("name", list(golden_documents()))
def test_golden_documents_fit_the_schema(name):
    validate(json.loads((GOLDEN / name).read_text()))


def test_schema_refuses_unknown_and_missing_fields(document):
    with pytest.raises(jsonschema.ValidationError, match="surprise"):
        validate(document | {"surprise": 1})
    with pytest.raises(jsonschema.ValidationError, match="verdict"):
        validate({key: value for key, value in document.items() if key != "verdict"})


# Counts.


def test_every_node_is_in_one_subgraph(document):
    names = [node["name"] for node in document["nodes"]]
    assert names == ["matmul", "relu", "tanh", "neg", "abs", "add"]
    nodes_of_subgraphs = [name for subgraph in document["subgraphs"] for name in subgraph["nodes"]]
    assert sorted(nodes_of_subgraphs) == sorted(names)
    for node in document["nodes"]:
        subgraph = document["subgraphs"][node["subgraph"]]
        assert node["name"] in subgraph["nodes"]
        assert node["device"] == subgraph["device"]


def test_sizes_count_open_dimensions_as_one(document):
    # Three tensors of N x 4 float32 cross, which is 16 bytes for each row.
    assert [(w["tensor"], w["nbytes"], w["open_dims"]) for w in document["wires"]] == [
        ("positive", 16, True),
        ("negative", 16, True),
        ("left", 16, True),
    ]
    assert document["verdict"]["crossing_nbytes"] == 48
    assert document["model"]["parameters"] == 12
    assert document["model"]["weight_nbytes"] == 48
    assert "48 B per request plus open dimensions" in document["verdict"]["sentence"]


def test_support_matrix_counts_every_node_on_every_device(document):
    rows = {row["op_type"]: row for row in document["support_matrix"]}
    assert sum(row["total"] for row in rows.values()) == 6
    for device in document["devices"]:
        total = sum(row["devices"][device["name"]]["supported"] for row in rows.values())
        assert total == device["supported"]
    assert rows["Tanh"]["devices"] == {
        "ORT": {
            "supported": 0,
            "refusals": [{"code": "no_kernel", "message": "no Tanh here", "count": 1}],
        },
        "CPU": {"supported": 1, "refusals": []},
        "NULL": {
            "supported": 0,
            "refusals": [{"code": "no_kernel", "message": "no Tanh here", "count": 1}],
        },
    }


def test_refusals_that_differ_in_names_have_one_cause():
    refusals = [
        *(("dynamic_shape", f"'{name}' has an open shape") for name in "abc"),
        ("dynamic_shape", "'d' has no shape"),
        ("dtype", "'e' has an open shape"),
        ("dtype", "'e' has an open shape"),
    ]
    assert [tuple(row.values()) for row in count_causes(refusals)] == [
        ("dynamic_shape", "… has an open shape", 3),
        ("dtype", "'e' has an open shape", 2),
        ("dynamic_shape", "'d' has no shape", 1),
    ]
    takes = {"ORT": ["Relu"], "CPU": None}
    survey = survey_of(branches(), takes)
    results = {
        "ORT": replace(
            survey.results["ORT"],
            refusals={
                name: {"ORT": Refusal("dynamic_shape", f"'{name}' has an open shape")}
                for name in survey.results["ORT"].refusals
            },
        )
    }
    document = build_report(replace(survey, results=dict(survey.results) | results))
    (reason,) = document["fallback"]["reasons"]
    assert reason["count"] == len(document["fallback"]["nodes"]) > 1
    (lint,) = [lint for lint in document["lints"] if lint["code"] == "fallback"]
    assert sorted(lint["nodes"]) == sorted(document["fallback"]["nodes"])


def test_every_device_is_queried_about_every_node(document):
    relu = document["nodes"][1]
    assert (relu["device"], relu["supported_on"]) == ("ORT", ["ORT", "CPU"])
    assert list(relu["refusals"]) == ["NULL"]


def test_verdict_names_requested_and_used_devices(document):
    assert document["verdict"]["sentence"].startswith(
        "REQUESTED ORT,CPU,NULL | USED ORT (4 nodes) CPU (2 nodes) | FALLBACK 1 node, 1 reason | "
        "3 cuts, "
    )
    assert document["verdict"]["unused"] == ["NULL"]
    assert {n["name"]: n["choice"] for n in document["nodes"]} == {
        "matmul": "priority",
        "relu": "priority",
        "tanh": "only",
        "neg": "pin",
        "abs": "priority",
        "add": "priority",
    }


def test_plan_adds_affinity_times_and_alternatives():
    survey = branches_survey()
    document = build_report(survey, branches_plan(survey))
    assert document["kind"] == "plan"
    assert [s["nodes"] for s in document["subgraphs"]] == [
        ["matmul", "relu"],
        ["tanh", "neg", "abs"],
        ["add"],
    ]
    assert [s["run_s"] for s in document["subgraphs"]] == [0.002, 0.001, 0.00005]
    assert [w["seconds"] for w in document["wires"]] == [0.0005, None, None]
    rows = {row["name"]: row for row in document["counterfactuals"]}
    assert rows["single CPU"]["relative"] == pytest.approx(0.875)
    assert rows["chosen: annealing"]["chosen"]
    assert rows["chosen: annealing"]["cuts"] == 3
    assert rows["bound: work"]["bottleneck_s"] == 0.003
    assert "250 requests/s, bottleneck ORT" in document["verdict"]["sentence"]
    assert "ORT (3 nodes, 75 % of the time)" in document["verdict"]["sentence"]


def test_placement_digest_depends_on_the_placement():
    survey = branches_survey()
    one, same = build_report(survey), build_report(branches_survey(), command="again")
    other = build_report(survey, branches_plan(survey))
    assert one["placement"] == same["placement"] != other["placement"]


def test_devices_of_all_replicas_count_as_used():
    survey = branches_survey()
    plan = branches_plan(survey)
    single_device = Affinity(dict.fromkeys(survey.model.node_names, "CPU"))
    (first,) = plan.replicas
    replicas = (
        PlacedPartition(partition(survey.model, single_device), single_device, 0.6),
        replace(first, share=0.4),
    )
    replicated_plan = replace(plan, replicas=replicas)
    document = build_report(survey, replicated_plan)
    validate(document)
    assert {s["device"] for s in document["subgraphs"]} == {"CPU"}
    devices = {d["name"]: (d["nodes"], d["used"], d["share"]) for d in document["devices"]}
    assert devices == {"ORT": (3, True, 0.4), "CPU": (6, True, 1.0), "NULL": (0, False, 0.0)}
    assert "2 replicas share the requests: 60 %, 40 %" in document["verdict"]["sentence"]


def test_impossible_alternatives_are_marked():
    rows = {r["name"]: r for r in build_report(branches_survey())["counterfactuals"]}
    unpinned_ort = rows["single ORT, unpinned"]
    assert (unpinned_ort["possible"], unpinned_ort["missing"]) == (False, 1)
    assert (rows["single CPU"]["possible"], rows["single CPU"]["cuts"]) == (True, 0)
    # Without the pin only Tanh runs elsewhere: one tensor to it, one from it, and one from
    # the first subgraph on ORT to the last.
    unpinned = rows["priority, unpinned"]
    assert (unpinned["cuts"], unpinned["nbytes"]) == (3, 48)
    assert rows["chosen"]["cuts"] == 3


def test_model_that_cannot_be_partitioned_is_reported():
    proto = unknown_ops()
    document = build_report(survey_of(proto, {"CPU": ["Relu", "Frobnicate"], "ORT": ["Relu"]}))
    validate(document)
    assert document["subgraphs"] == []
    assert "not-cut" in lint_codes(document)
    assert len(document["nodes"]) == 3
    assert "UNSUPPORTED 1 node" in document["verdict"]["sentence"]
    assert "cannot be partitioned" in document["verdict"]["sentence"]


def test_model_without_nodes_is_reported():
    text = '<ir_version: 8, opset_import: ["" : 17]> nothing (float[1] x) => (float[1] x) {}'
    document = build_report(survey_of(onnx.parser.parse_model(text), {"CPU": None}))
    validate(document)
    assert document["nodes"] == []


# Lints.


def test_ping_pong_lint_needs_a_round_trip():
    model = chain("Abs", "Abs", "Neg", "Abs", "Abs", "Abs", "Abs")
    lints = build_report(survey_of(model, {"ORT": ["Abs"], "CPU": None}))["lints"]
    (lint,) = [lint for lint in lints if lint["code"] == "ping-pong"]
    assert lint["message"] == "ORT sends 16 B to subgraph 1 on CPU (1 node) and gets 16 B back."
    assert lint["subgraphs"] == [1]
    document = build_report(survey_of(chain("Abs", "Neg"), {"ORT": ["Abs"], "CPU": None}))
    assert "ping-pong" not in lint_codes(document)


def test_unused_device_lint_names_the_devices_before_it():
    document = build_report(survey_of(chain("Abs"), {"ORT": None, "CPU": None}))
    (lint,) = [lint for lint in document["lints"] if lint["code"] == "unused-device"]
    assert lint["devices"] == ["CPU"]
    assert "put it first" in lint["message"]


def test_unused_fallback_is_information_and_useless_device_a_warning():
    document = build_report(survey_of(chain("Abs"), {"ORT": None, "CPU": None, "NULL": []}))
    severities = {
        lint["devices"][0]: lint["severity"]
        for lint in document["lints"]
        if lint["code"] == "unused-device"
    }
    assert severities == {"CPU": "info", "NULL": "warning"}


def test_single_device_lint_names_the_sufficient_device():
    model = chain("Abs", "Neg", "Abs")
    document = build_report(survey_of(model, {"ORT": ["Abs"], "CPU": None}))
    (lint,) = [lint for lint in document["lints"] if lint["code"] == "single-device"]
    assert lint["devices"] == ["CPU"]
    assert lint["message"].startswith("CPU runs all 3 nodes.")
    document = build_report(survey_of(model, {"ORT": ["Abs"], "CPU": ["Neg"]}))
    assert "single-device" not in lint_codes(document)


def test_lints_of_a_plan():
    survey = branches_survey()
    document = build_report(survey, branches_plan(survey))
    messages = {lint["code"]: lint["message"] for lint in document["lints"]}
    assert messages["transfer-above-compute"].startswith("subgraph 1 on CPU runs for 1 ms")
    assert messages["tiny-subgraph"] == "subgraph 2 on ORT runs for 50 µs; calling it takes 100 µs."
    assert messages["slower-than-single"] == (
        "CPU alone takes 3.5 ms, the chosen placement 4 ms (bottleneck)."
    )


def test_wide_wire_lint_for_a_widening_cast():
    half, single = TensorProto.FLOAT16, TensorProto.FLOAT
    model = chain("Abs", "Cast", "Neg", cast={"Cast1": single}, dtype=half)
    document = build_report(survey_of(model, {"ORT": ["Abs", "Cast"], "CPU": None}))
    (lint,) = [lint for lint in document["lints"] if lint["code"] == "wide-wire"]
    assert lint["nodes"] == ["Cast1"]
    assert "float16" in lint["message"]
    document = build_report(survey_of(model, {"ORT": ["Abs"], "CPU": None}))
    assert "wide-wire" not in lint_codes(document)
    narrowing = chain("Abs", "Cast", "Neg", cast={"Cast1": half}, dtype=single)
    document = build_report(survey_of(narrowing, {"ORT": ["Abs"], "CPU": None}))
    assert "wide-wire" in lint_codes(document)


def test_double_wire_lint_for_crossing_doubles():
    model = chain("Abs", "Neg", dtype=TensorProto.DOUBLE)
    document = build_report(survey_of(model, {"ORT": ["Abs"], "CPU": None}))
    assert "double-wire" in lint_codes(document)


def test_many_lints_of_one_code_are_counted():
    model = chain(*["Abs", "Neg"] * 40, "Abs")
    document = build_report(survey_of(model, {"ORT": ["Abs"], "CPU": None}))
    assert Counter(lint_codes(document))["ping-pong"] == 13
    ping_pongs = [lint for lint in document["lints"] if lint["code"] == "ping-pong"]
    assert ping_pongs[-1]["message"] == "28 more of ping-pong."
    # Each of the 40 inner subgraphs on CPU gets its data from ORT and sends it back.
    assert sum(lint["count"] for lint in ping_pongs) == 40
    console = Console(width=200, record=True)
    console.print(report_table(document))
    assert "and 38 more of ping-pong" in console.export_text()


def test_lint_codes_are_in_schema_and_docstring():
    from hetero.report import lints

    assert lints.__doc__ is not None
    documented_codes = re.findall(r"^([a-z-]{6,})  ", lints.__doc__, re.MULTILINE)
    assert sorted(documented_codes) == sorted(CODES)


def test_strict_passes_clean_placements():
    assert strict_problems(build_report(survey_of(chain("Abs"), {"CPU": None}))) == []
    problems = strict_problems(build_report(branches_survey()))
    assert {p["code"] for p in problems} == {"fallback", "unused-device"}


# Annotated model and terminal output.


def test_annotated_model_compiles_to_the_same_placement():
    survey = branches_survey()
    document = build_report(survey)
    model = annotated_model(survey.model, document)
    proto = model.to_proto()
    onnx.checker.check_model(proto, full_check=True)
    assert proto.ir_version >= 10
    metadata = {
        node.name: {e.key: e.value for e in node.metadata_props} for node in proto.graph.node
    }
    assert metadata["tanh"] == {
        "hetero.affinity": "CPU",
        "hetero.device": "CPU",
        "layer_ann": "CPU",
        "hetero.reason": "priority, after ORT: no Tanh here [no_kernel]",
        "hetero.subgraph": "1",
    }
    assert {n: w["hetero.subgraph"] for n, w in metadata.items()} == {
        "matmul": "0",
        "relu": "0",
        "tanh": "1",
        "neg": "1",
        "abs": "2",
        "add": "2",
    }
    assert dict(metadata_pins(model, survey.names)) == dict(survey.affinity)
    assert model.metadata["hetero.verdict"] == document["verdict"]["sentence"]
    annotated_twice = annotated_model(model, document).to_proto()
    assert annotated_twice.SerializeToString() == proto.SerializeToString()


def test_terminal_report_has_every_part():
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    document = build_report(branches_survey())
    console.print(report_table(document, nodes=True))
    console.file.close()
    text = console.export_text()
    assert document["verdict"]["sentence"] in text
    assert "no Tanh here [no_kernel]" in text
    for node in document["nodes"]:
        assert node["name"] in text
    assert "warning [ping-pong]" in text


def test_sizes_and_times_have_units():
    assert [nbytes_text(n) for n in (None, 0, 999, 1500, 999_999, 5 * 10**9, 1.5e12)] == [
        "?",
        "0 B",
        "999 B",
        "1.5 kB",
        "1 MB",
        "5 GB",
        "1.5 TB",
    ]
    assert [seconds_text(s) for s in (None, 0.0, 2e-7, 1.5e-3, 0.9999, 2.0, 90.0, 3600.0, 1e6)] == [
        "?",
        "0",
        "0.2 µs",
        "1.5 ms",
        "1 s",
        "2 s",
        "1.5 min",
        "1 h",
        "11.6 d",
    ]


# The command line.


def test_query_prints_json_and_writes_every_format(shell, model, tmp_path):
    files = {"--html": "r.html", "--annotate": "a.onnx"}
    paths = [part for option, name in files.items() for part in (option, tmp_path / name)]
    result = shell("query -d HETERO:ORT,CPU -a neg=CPU --json", model, *paths)
    assert result.code == 0, result.err
    document = result.document
    validate(document)
    assert document["request"]["pins"] == {"neg": "CPU"}
    assert {n["name"]: n["device"] for n in document["nodes"]}["neg"] == "CPU"
    assert "matmul" in (tmp_path / "r.html").read_text()
    annotated = read_model(tmp_path / "a.onnx")
    assert annotated.nodes[annotated.index_of["neg"]].metadata["hetero.device"] == "CPU"


def test_strict_prints_the_lint_and_fails(shell, model):
    assert shell("query -d HETERO:CPU,ORT", model).code == 0
    result = shell("query -d HETERO:CPU,ORT --strict", model)
    assert result.code == 1
    assert "strict: [unused-device] ORT was requested but is not used" in result.err
    assert shell("query -d CPU --strict", model).code == 0


def test_unsupported_node_exits_with_one(shell, tmp_path):
    path = tmp_path / "unknown.onnx"
    onnx.save(unknown_ops(), str(path))
    result = shell("query -d CPU --json", path)
    assert result.code == 1
    document = result.document
    assert document["verdict"]["unsupported"] == 2
    assert [n["refusals"]["CPU"]["code"] for n in document["nodes"][1:]] == ["no_kernel"] * 2


def test_repeated_blocks_keep_their_nodes_in_the_document():
    document = build_report(survey_of(repeated(10), {"CPU": None}))
    assert len(document["nodes"]) == 42


@pytest.mark.parametrize("maker", ["RandomNormal <shape = [2]> ()", "Bernoulli (k)"])
def test_random_nodes_are_not_constant(maker):
    model = read_model(
        onnx.parser.parse_model(
            f"""<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y)
            <float[2] k = {{0.5, 0.5}}> {{ [draw] r = {maker} [add] y = Add(x, r) }}"""
        )
    )
    document = build_report(survey_of(model, {"CPU": None}, {}))
    assert {n["name"]: n["constant"] for n in document["nodes"]} == {"draw": False, "add": False}
