"""Representations of objects: `repr` and HTML tables for notebooks."""

from __future__ import annotations

import numpy as np
import pytest

import hetero
from tests.support.models import branches

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


@pytest.mark.slow
def test_repr_is_one_short_line(core):
    compiled = core.compile_model(branches(), "HETERO:ORT,CPU", affinity={"tanh": "CPU"})
    request = compiled.create_infer_request()
    results = request.infer(X)
    report = core.plan_model(branches(), "HETERO:ORT,CPU", {"PROFILE_SECONDS": 0.5})
    survey = core.survey_model(branches(), "HETERO:ORT,CPU")
    support = core.query_model(branches(), "HETERO:ORT,CPU")
    for object_ in (core, compiled, request, results, report, survey, support):
        text = repr(object_)
        assert "\n" not in text
        assert len(text) < 200
        assert "object at 0x" not in text
    assert repr(core).startswith("<Core inprocess: CPU, ORT")
    assert repr(request) == "<InferRequest idle: takes 'x' tensor(float)[N, 3]>"
    (port,) = results
    assert repr(results) == f"<Results: {port.name!r} float32[2, 4]>"
    assert repr(support) == f"<Support of {len(support)} nodes: {len(support)} on ORT>"
    assert repr(support) in repr(survey)
    assert "between results" in repr(report)
    for table in (compiled, results, report, survey, support):
        assert "<table>" in table._repr_html_()
    assert "begins with" in results._repr_html_()
    assert repr(hetero.Core()) == "<Core ray: not started>"


def test_html_escapes_text_and_shortens_values(core):
    ports = core.read_model(branches()).outputs
    results = hetero.Results(ports, {ports[0].name: np.array(["<b>", *"abcdefgh"], object)})
    page = results._repr_html_()
    assert "&lt;b&gt;, a, b, c, d, e, …" in page
    assert "string[9]" in repr(results)


def test_html_lists_unsupported_nodes_first(core):
    model = hetero.Core("inprocess").read_model(branches())
    refusal = hetero.Refusal("no_kernel", "not <here>")
    support = hetero.Support({model.node_names[0]: "CPU"}, {"lost": {"CPU": refusal}})
    assert repr(support) == "<Support of 2 nodes: 1 on CPU, 1 unsupported>"
    page = support._repr_html_()
    assert page.index("not &lt;here&gt;") < page.index(model.node_names[0])
