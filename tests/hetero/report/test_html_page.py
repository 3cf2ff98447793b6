"""The HTML report: its embedded document, layout, and script in a browser."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import onnx
import pytest

from hetero.devices.model.reader import read_model
from hetero.report import build_report, report_html
from hetero.report.layout import chains, drawing
from tests.support.report_cases import (
    branches_plan,
    branches_survey,
    chain,
    repeated,
    survey_of,
)

BROWSER = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
)
VOID = {"meta", "input", "br", "link", "img"}


class Page(HTMLParser):
    """Collects element ids and attributes that load resources; checks that tags are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[tuple[str, str | None]] = []
        self.ids: list[str] = []
        self.data = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data", "poster", "background"):
                self.loads.append((tag, value))
            if name == "id" and value:
                self.ids.append(value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script" and data.lstrip().startswith("{"):
            self.data += data


def parse(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


@pytest.fixture(scope="module")
def densenet():
    return build_report(survey_of(read_model("light:densenet121"), {"ORT": None, "CPU": None}))


def test_page_embeds_the_whole_document(densenet):
    page = parse(report_html(densenet))
    data = json.loads(page.data)
    assert data["report"] == json.loads(json.dumps(densenet))
    assert len(data["report"]["nodes"]) == 1746
    assert len(data["drawing"]["boxes"]) == len(densenet["subgraphs"])
    assert len(page.ids) == len(set(page.ids))


def test_page_loads_no_other_resource():
    text = report_html(build_report(branches_survey()))
    page = parse(text)
    assert page.loads == []
    assert re.findall(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|import\(", text) == []
    assert "default-src 'none'" in text


def test_hostile_names_stay_text():
    model = chain("Abs", "Neg")
    hostile_name = "</script><img src=x onerror=alert(1)><!--"
    model.graph.node[0].name = hostile_name
    model.graph.name = hostile_name
    text = report_html(build_report(survey_of(model, {"CPU": None})))
    page = parse(text)
    assert "img" not in [tag for tag, _ in page.loads]
    assert json.loads(page.data)["report"]["nodes"][0]["name"] == hostile_name


@pytest.mark.slow
def test_drawing_of_too_many_subgraphs_is_omitted():
    takes = {"ORT": None, "CPU": None}
    model = chain(*["Abs", "Neg"] * 3100)
    document = build_report(survey_of(model, takes, {"op:Neg": "CPU"}))
    assert len(document["subgraphs"]) == 6200
    assert drawing(document) is None
    page = parse(report_html(document))
    assert len(json.loads(page.data)["report"]["nodes"]) == 6200


# Layout.


def overlap(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return bool(
        a["x"] < b["x"] + b["w"]
        and b["x"] < a["x"] + a["w"]
        and a["y"] < b["y"] + b["h"]
        and b["y"] < a["y"] + a["h"]
    )


@pytest.mark.parametrize("seed", range(8))
def test_drawing_of_random_placement_has_no_overlaps(seed):
    rng = random.Random(seed)
    model = repeated(rng.randint(1, 12))
    names = ("ORT", "CPU", "NULL")
    pins = {node.name: rng.choice(names) for node in model.graph.node}
    document = build_report(survey_of(model, dict.fromkeys(names), pins))
    view = drawing(document)
    boxes = {box["subgraph"]: box for box in view["boxes"]}
    assert set(boxes) == {s["index"] for s in document["subgraphs"]}
    wires = {(w["from"], w["to"]) for w in view["wires"] if None not in (w["from"], w["to"])}
    assert wires == {(w["producer"], w["consumer"]) for w in document["wires"]}
    for wire in view["wires"]:
        start, stop = boxes.get(wire["from"]), boxes.get(wire["to"])
        if start and stop:
            assert (start["band"], start["y"] + start["h"]) < (stop["band"], stop["y"])
        if start:
            x, y = map(int, re.findall(r"-?\d+", wire["d"])[:2])
            assert x in (start["x"], start["x"] + start["w"])
            assert start["y"] < y < start["y"] + start["h"]
    for rectangle in (*boxes.values(), *view["pills"]):
        assert 0 <= rectangle["x"] <= rectangle["x"] + rectangle["w"] <= view["width"]
        assert 0 <= rectangle["y"] <= rectangle["y"] + rectangle["h"] <= view["height"]
    columns = {(box["device"], box["band"], box["x"]) for box in boxes.values()}
    assert len(columns) == len({(box["device"], box["band"]) for box in boxes.values()})
    rectangles = [*boxes.values(), *view["pills"]]
    labelled = [wire for wire in view["wires"] if "label_y" in wire]
    rectangles += [label_rectangle(wire) for wire in labelled]
    assert not any(overlap(a, b) for i, a in enumerate(rectangles) for b in rectangles[:i])
    assert all(distance_from_curve(wire) < 3 for wire in labelled)


def label_rectangle(wire: dict[str, Any]) -> dict[str, Any]:
    """Return the place of a wire's label: text of 11.5 pixels with a border of 3.5 pixels."""
    width = round(6.5 * len(wire["label"])) + 7
    return {"x": wire["label_x"] - width // 2, "y": wire["label_y"] - 10, "w": width, "h": 20}


def distance_from_curve(wire: dict[str, Any]) -> float:
    """Return the distance in pixels of a label's centre from its wire."""
    x, y, bend, _, _, _, to_x, to_y = map(int, re.findall(r"-?\d+", wire["d"]))
    points = [
        (
            (1 - t) ** 3 * x + 3 * (1 - t) * t * bend + t**3 * to_x,
            (1 - t) ** 2 * (1 + 2 * t) * y + t**2 * (3 - 2 * t) * to_y,
        )
        for t in (step / 2000 for step in range(2001))
    ]
    return min(math.dist(point, (wire["label_x"], wire["label_y"])) for point in points)


def test_drawing_of_many_subgraphs_is_wrapped():
    model = chain(*["Abs", "Neg"] * 400)
    document = build_report(survey_of(model, {"ORT": None, "CPU": None}, {"op:Neg": "CPU"}))
    view = drawing(document)
    assert len(view["boxes"]) == 800
    assert 1 < view["width"] / view["height"] < 3
    bands = [box["band"] for box in view["boxes"]]
    assert bands == sorted(bands)
    assert 1 < max(bands) < 20
    rectangles = [*view["boxes"], *view["pills"]]
    assert not any(overlap(a, b) for i, a in enumerate(rectangles) for b in rectangles[:i])


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("", []),
        ("A", [(["A"], 1, 0)]),
        ("ABC", [(["A", "B", "C"], 1, 0)]),
        ("ABABABA", [(["A", "B"], 3, 0), (["A"], 1, 6)]),
        ("CABABD", [(["C"], 1, 0), (["A", "B"], 2, 1), (["D"], 1, 5)]),
        ("ABCABCABC", [(["A", "B", "C"], 3, 0)]),
        ("AABAAB", [(["A", "A", "B"], 2, 0)]),
        ("ABCBCBCBABCBCBCB", [([*"ABCBCBCB"], 2, 0)]),
    ],
)
def test_chains_count_repeated_sequences(devices, expected):
    document = {"subgraphs": [{"device": device} for device in devices]}
    rows = [(row["devices"], row["times"], row["first"]) for row in chains(document)]
    assert rows == expected


def test_drawing_shows_constants_that_cross():
    takes = {"ORT": None, "CPU": None}
    model = read_model("light:squeezenet")
    view = drawing(build_report(survey_of(model, takes, {"op:ConstantOfShape": "CPU"})))
    (constants,) = [box for box in view["boxes"] if box["device"] == "CPU"]
    assert constants["detail"] == "39 nodes"
    (wire,) = [w for w in view["wires"] if w["from"] is not None and w["to"] is not None]
    assert len(wire["tensors"]) >= 39


def test_unpartitionable_model_is_drawn_as_one_box():
    document = build_report(branches_survey()) | {"uncut": "reason", "subgraphs": [], "wires": []}
    document["nodes"] = [node | {"subgraph": None} for node in document["nodes"]]
    view = drawing(document)
    assert [box["title"] for box in view["boxes"]] == ["whole model, not partitioned"]
    ends = {(w["from"], w["to"]) for w in view["wires"]}
    assert ends == {(None, -1), (-1, None)}


def test_model_without_nodes_is_drawn():
    model = read_model(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] x) {}'
        )
    )
    document = build_report(survey_of(model, {"CPU": None}, {}))
    assert "<html" in report_html(document)
    view = drawing(document)
    assert (len(view["boxes"]), len(view["wires"])) == (0, 1)


# In a browser.


def browse(page: Path, profile: Path, fragment: str = "") -> tuple[str, list[str]]:
    """Open a page; return the DOM after its script, and the console's lines."""
    assert BROWSER is not None
    process = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--enable-logging=stderr",
            f"--user-data-dir={profile}",
            "--dump-dom",
            page.as_uri() + fragment,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return process.stdout, [line for line in process.stderr.splitlines() if ":CONSOLE" in line]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_page_runs_without_errors_in_a_browser(densenet, tmp_path):
    survey = branches_survey()
    for name, document in (
        ("densenet", densenet),
        ("plan", build_report(survey, branches_plan(survey))),
    ):
        page = tmp_path / f"{name}.html"
        page.write_text(report_html(document), encoding="utf-8")
        dom, console = browse(page, tmp_path / "profile")
        assert console == []
        assert 'data-ready="yes"' in dom
        dom = re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL)
        view = drawing(document)
        assert dom.count('class="box"') == len(view["boxes"])
        assert dom.count('class="wire"') == len(view["wires"])
        assert document["verdict"]["sentence"].replace("&", "&amp;") in dom


#: Uses every control of the page and writes the results into the title.
CLICKS = """
<script>
{
  const said = [];
  const click = (e) => e.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  const side = () => document.getElementById("side").textContent;
  const all = (selector) => [...document.querySelectorAll(selector)];
  for (const e of all(".wire, .box")) {
    click(e);
    if (!side().trim()) said.push("no details");
  }
  click(all(".box").at(-1));
  said.push(`last box: ${all("#side h3")[0].textContent}`);
  for (const e of all("th button")) { click(e); click(e); }
  const first = () => all("#nodes tbody tr td:first-child")[0].textContent;
  const type = (id, text, kind = "input") => {
    const e = document.getElementById(id);
    e.value = text;
    e.dispatchEvent(new Event(kind, { bubbles: true }));
  };
  type("filter", "no tanh here");
  said.push(`filtered: ${all("#nodes tbody tr").length} ${first()}`);
  type("filter", "");
  type("by-device", "CPU", "change");
  said.push(`on CPU: ${all("#nodes tbody tr").length}`);
  type("by-device", "", "change");
  click(all("#matrix [data-device]")[0]);
  said.push(`refused: ${all("#nodes tbody tr").length}`);
  click(document.getElementById("clear"));
  said.push(`all: ${all("#nodes tbody tr").length}`);
  click(all("#nodes tbody tr").find((r) => r.textContent.includes("tanh")));
  const marked = [all(".box.on").length, all("tr.on").length];
  said.push(`selected: ${all("#side h3")[0].textContent} ${marked.join(" ")}`);
  const place = () => document.getElementById("world").getAttribute("transform");
  const resized = () => {
    const before = place();
    window.dispatchEvent(new Event("resize"));
    return place() === before;
  };
  const kept = [resized()];
  for (const id of ["in", "in", "fit"]) {
    click(document.getElementById(id));
    kept.push(resized());
  }
  said.push(`kept at resizes: ${kept.join(" ")}`);
  said.push([1.5, 2e-3, 7.7e-7, 5e-9].map(secs).join(", "));
  click(document.getElementById("theme"));
  said.push(document.documentElement.dataset.theme);
  document.title = said.join(" | ");
}
</script>
"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_page_controls_work_in_a_browser(tmp_path):
    survey = branches_survey()
    text = report_html(build_report(survey, branches_plan(survey)))
    page = tmp_path / "used.html"
    page.write_text(text.replace("</body>", CLICKS + "</body>"), encoding="utf-8")
    dom, console = browse(page, tmp_path / "profile", "#light")
    assert console == []
    title = re.search(r"<title>(.*?)</title>", dom)
    assert title is not None
    assert title[1].split(" | ") == [
        "last box: Subgraph 2",
        "filtered: 1 tanh",
        "on CPU: 3",
        "refused: 1",
        "all: 6",
        "selected: tanh 1 1",
        "kept at resizes: true true true true",
        "1.5 s, 2 ms, 770 ns, 5 ns",
        "dark",
    ]


#: Writes the zoom, the visible boxes and the grouping of lints into the title.
FIRST_SIGHT = """
<script>
{
  const boxes = [...document.querySelectorAll(".box rect")];
  const canvas = document.getElementById("canvas").getBoundingClientRect();
  const inside = boxes.map((e) => e.getBoundingClientRect()).filter((r) =>
    r.right > canvas.left && r.left < canvas.right && r.bottom > canvas.top
    && r.top < canvas.bottom);
  const remarks = document.getElementById("lint-section").getBoundingClientRect();
  const rows = document.querySelectorAll("#lints > *").length;
  const codes = new Set(report.lints.map((lint) => lint.code)).size;
  document.title = [view.k >= 0.7, inside.length > 0, remarks.top > canvas.bottom, rows === codes,
    colour("ORT") === "var(--d0)", colour("CPU") === "var(--d2)"].join(" ");
}
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("nodes", [30, pytest.param(2000, marks=pytest.mark.slow)])
def test_page_opens_with_a_readable_drawing(nodes, tmp_path):
    model = chain(*("Tanh" if i % 3 else "Relu" for i in range(nodes)))
    survey = survey_of(model, {"ORT": None, "CPU": None}, {"op:Relu": "CPU"})
    page = tmp_path / "first.html"
    text = report_html(build_report(survey))
    page.write_text(text.replace("</body>", FIRST_SIGHT + "</body>"), encoding="utf-8")
    dom, console = browse(page, tmp_path / "profile")
    assert console == []
    assert re.search(r"<title>(.*?)</title>", dom)[1] == " ".join(["true"] * 6)
