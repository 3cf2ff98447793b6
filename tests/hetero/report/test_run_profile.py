"""The option `hetero run --profile`: times of nodes over all subgraphs."""

from __future__ import annotations

import json
import re
from importlib import resources

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import hetero
from tests.support.models import branches
from tests.support.plans import replica_config

SPLIT = ("-d", "HETERO:ORT,CPU", "-a", "op:Tanh=CPU")
SCHEMA = json.loads(
    resources.files("hetero.report").joinpath("report.schema.json").read_text(encoding="utf-8")
)


def model_with_fusion() -> onnx.ModelProto:
    """Build a model whose Conv and Relu ONNX Runtime fuses and whose weight it folds."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        fusing (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
            [negate] minus_w = Neg(w) [conv] c = Conv(x, minus_w) [relu] r = Relu(c)
            [tanh] y = Tanh(r)
        }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "w"))
    return model


def test_every_node_of_every_subgraph_is_timed(shell, model):
    result = shell("run --profile --json", model, *SPLIT)
    profile = result.document["profile"]
    node_names = [name for row in profile["nodes"] for name in row["covers"]]
    assert sorted(node_names) == sorted(n.name for n in branches().graph.node)
    assert {row["device"] for row in profile["nodes"]} == {"ORT", "CPU"}
    assert all(row["seconds"] > 0 and row["readings"] for row in profile["nodes"])
    assert sum(row["share"] for row in profile["nodes"]) == pytest.approx(1)
    assert [row["device"] for row in profile["stages"]] == ["ORT", "CPU", "ORT"]
    for row in profile["stages"]:
        assert row["runs"] == profile["requests"] == 10
        assert 0 < row["infer_s"] < profile["request"]["latency_s"]
        assert min(row["arrives_s"], row["queued_s"]) >= 0
        node_times = [n["seconds"] for n in profile["nodes"] if n["stage"] == row["stage"]]
        assert row["nodes_s"] == pytest.approx(sum(node_times))
        assert row["predicted_s"] is None


def test_fused_and_folded_nodes_are_named(shell, tmp_path):
    path = tmp_path / "fusing.onnx"
    onnx.save_model(model_with_fusion(), path)
    rows = shell("run --profile --json -d ORT", path).document["profile"]["nodes"]
    fused = next(row for row in rows if "relu" in row["covers"])
    assert fused["covers"] == ["conv", "relu"]
    assert [name for row in rows for name in row["folded"]] == ["negate"]
    text = shell("run --profile -d ORT", path).out
    assert re.search(r"conv \+ relu +\w*Conv +ORT +0 +\d+\.\d+ +\d", text)
    assert "ORT: each node was timed once" in text


def test_perf_count_off_gives_no_node_times(shell, model):
    options = ("-c", "CPU.PERF_COUNT=NO", *SPLIT)
    profile = shell("run --profile --json", model, *options).document["profile"]
    is_timed = {row["device"]: row["seconds"] is not None for row in profile["nodes"]}
    assert is_timed == {"ORT": True, "CPU": False}
    assert [row["nodes_s"] is None for row in profile["stages"]] == [False, True, False]


def test_profile_shows_predictions_of_a_cost_file(shell, model, tmp_path):
    with hetero.Core(executor="inprocess") as core:
        costs = replica_config(core, tmp_path, {"CPU": 1e-3, "ORT": 2e-3})["COST_FILE"]
    page = tmp_path / "page.html"
    line = ("run --profile --json -c PLAN_SECONDS=0.1", model, *SPLIT, "--costs", costs)
    profile = shell(*line, "--html", page).document["profile"]
    seconds_by_device = {"CPU": 1e-3, "ORT": 2e-3}
    for row in profile["nodes"]:
        assert row["predicted_s"] == pytest.approx(
            seconds_by_device[row["device"]] * len(row["covers"])
        )
        assert row["source"] == "measured"
    for row in profile["stages"]:
        assert row["predicted_s"] == pytest.approx(
            seconds_by_device[row["device"]] * len(row["nodes"])
        )
    data = re.search(r'id="data">(.*?)</script>', page.read_text(), re.S)
    assert data is not None
    report = json.loads(data[1])["report"]
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    assert report["measured"] == profile
    assert {row["name"] for row in report["nodes"]} == {
        name for row in report["measured"]["nodes"] for name in row["covers"]
    }


def test_html_and_costs_need_a_profile(shell, model, tmp_path):
    blob, page = tmp_path / "a.hetero", ("--html", tmp_path / "page.html")
    assert shell("compile", model, *SPLIT, "-o", blob).code == 0
    assert "--html needs --profile" in shell("run", model, *SPLIT, *page).err
    assert "a blob's placement is fixed" in shell("run --profile", blob, *page).err
    profile = shell("run --profile --json", blob).document["profile"]
    assert {row["device"] for row in profile["stages"]} == {"ORT", "CPU"}
    assert all(row["seconds"] > 0 for row in profile["nodes"])
