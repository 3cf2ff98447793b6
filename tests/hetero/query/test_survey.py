"""Survey of a model: its text, its table and its deprecated name."""

from __future__ import annotations

import json
import re

import pytest

import hetero
from hetero.affinity.affinity import Affinity
from hetero.devices.errors import ArgumentError
from hetero.devices.plugin.support import Refusal, Support
from hetero.query.survey import Survey
from tests.support.compile_requests import descriptor
from tests.support.graphs import build
from tests.support.models import branches


@pytest.fixture
def survey():
    model = build("a: v = Neg(x)\nb: y = Abs(v)", outputs="y")
    refusals = {"b": {"X.0": Refusal("no_kernel", "no Abs")}}
    results = {"X.0": Support({"a": "X.0"}, refusals), "Y.0": Support({"a": "Y.0"}, refusals)}
    devices = (descriptor("X.0"), descriptor("Y.0"))
    joint = Support({"a": "X.0"}, refusals)
    return Survey(model, "HETERO:X.0,Y.0", devices, results, joint, Affinity({"a": "X.0"}))


def test_table_has_device_and_support_of_each_node(survey):
    html = survey._repr_html_()
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in html.split("<tr>")[1:]]
    refusal = "no Abs [no_kernel]"
    assert rows == [
        ["node", "operator", "gets", "X.0", "Y.0"],
        ["a", "Neg", "X.0", "yes", "yes"],
        ["b", "Abs", "none", refusal, refusal],
    ]
    assert "g on HETERO:X.0,Y.0" in html


def test_names_are_in_order_of_priority(survey):
    assert survey.names == ("X.0", "Y.0")
    assert repr(survey).startswith("<Survey of 'g' on HETERO:X.0,Y.0: ")


def test_deprecated_name_of_the_results(survey):
    with pytest.warns(DeprecationWarning, match="Survey.results"):
        assert survey.answers is survey.results


def test_save_writes_the_format_of_the_suffix(tmp_path):
    with hetero.Core("inprocess") as core:
        survey = core.survey_model(branches(), "HETERO:ORT,CPU", affinity={"tanh": "CPU"})
        for suffix in ("html", "json", "onnx"):
            survey.save(tmp_path / f"report.{suffix}")
        annotated = core.read_model(tmp_path / "report.onnx")
        assert dict(core.query_model(annotated, "HETERO:ORT,CPU")) == dict(survey.support)
    document = json.loads((tmp_path / "report.json").read_text())
    devices = {row["name"]: row["device"] for row in document["nodes"]}
    assert devices == dict(survey.affinity)
    assert "<html" in (tmp_path / "report.html").read_text()


def test_save_refuses_other_suffixes(survey, tmp_path):
    with pytest.raises(ArgumentError, match=r"ends in \.html, \.json or \.onnx, got '\.pdf'"):
        survey.save(tmp_path / "report.pdf")
