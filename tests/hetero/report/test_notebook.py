"""HTML tables of models, compiled models and surveys in notebooks."""

from __future__ import annotations

from html.parser import HTMLParser

from tests.support.models import branches, unknown_ops


class Cells(HTMLParser):
    """Collects the cells of a table by row; refuses unclosed and other elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert tag in ("p", "table", "thead", "tbody", "tr", "th", "td")
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data


def test_model_shows_its_ports(core):
    proto = branches()
    proto.graph.name = "<script>alert(1)</script>"
    page = core.read_model(proto)._repr_html_()
    assert "<script" not in page
    assert Cells(page).rows == [
        ["port", "name", "type", "layout"],
        ["input", "x", "tensor(float)[N, 3]", ""],
        ["output", "y", "tensor(float)[N, 4]", ""],
    ]


def test_compiled_model_shows_its_subgraphs(core):
    compiled = core.compile_model(branches(), "HETERO:ORT,CPU", affinity={"op:Add": "CPU"})
    assert Cells(compiled._repr_html_()).rows[1:] == [
        ["0", "ORT", "5", "x", "left, right"],
        ["1", "CPU", "1", "left, right", "y"],
    ]


def test_survey_shows_support_and_refusals(core):
    rows = Cells(core.survey_model(unknown_ops(), "HETERO:ORT,CPU")._repr_html_()).rows
    assert rows[0] == ["node", "operator", "gets", "ORT", "CPU"]
    assert rows[1] == ["relu", "Relu", "ORT", "yes", "yes"]
    assert rows[2][2] == "none"
    assert "no kernel" in rows[2][4]


def test_long_table_is_shortened(core):
    survey = core.survey_model("light:squeezenet", "CPU")
    page = survey._repr_html_()
    assert len(Cells(page).rows) == 51
    assert f"and {len(survey.model.nodes) - 50} more" in page
