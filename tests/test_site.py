"""The documentation site: it builds without a warning and contains every page and term."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def name(page: Path, folder: Path) -> str:
    """Return the path of a page without its suffix."""
    return str(page.relative_to(folder).with_suffix(""))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site; a warning of the build fails its tests."""
    for module in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(module, reason="needs pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", DOCS, folder / "site"]
    sphinx = subprocess.run(
        [*command, "-d", folder / "doctrees"], capture_output=True, text=True, timeout=600
    )
    assert (sphinx.returncode, sphinx.stderr) == (0, "")
    return folder / "site"


@pytest.mark.slow
def test_site_contains_every_page(site):
    pages = {name(page, site) for page in site.rglob("*.html")}
    assert {name(page, DOCS) for page in DOCS.rglob("*.md")} <= pages
    links = re.findall(r"\]\((\S+)\)", (site / "llms.txt").read_text())
    assert [link for link in links if not (site / link).is_file()] == []


#: Term that a reader searches for -> the page that treats it.
TERMS = {
    "KV cache": "decoders",
    "backpressure": "how-it-works",
    "continuous batching": "decoders",
    "dynamic shapes": "split-by-cost",
    "heartbeats": "clusters",
    "pipeline parallelism": "how-it-works",
    "prefill": "decoders",
}


@pytest.mark.slow
@pytest.mark.parametrize(("term", "page"), TERMS.items())
def test_search_finds_the_page_of_a_common_term(site, term, page):
    """The site's search returns the pages that contain the stem of every word."""
    stem = pytest.importorskip("snowballstemmer").stemmer("english").stemWord
    text = (site / "searchindex.js").read_text()
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    number = index["docnames"].index(page)
    for word in term.lower().split():
        pages: list[int] = []
        for table in ("terms", "titleterms"):
            entry = index[table].get(stem(word), [])
            pages += entry if isinstance(entry, list) else [entry]
        assert number in pages, word


@pytest.mark.slow
@pytest.mark.parametrize("notebook", sorted(DOCS.glob("notebooks/*.ipynb")), ids=lambda p: p.stem)
def test_notebook_runs(notebook):
    client = pytest.importorskip("nbclient", reason="needs pip install -e '.[docs]'")
    cells = pytest.importorskip("nbformat").read(notebook, as_version=4)
    client.NotebookClient(cells, timeout=400, kernel_name="python3").execute()


def test_llms_txt_lists_every_page():
    links = re.findall(r"\]\((\S+)\.html\)", (DOCS / "llms.txt").read_text())
    assert sorted([*links, "index"]) == sorted(name(page, DOCS) for page in DOCS.rglob("*.md"))


def test_readme_has_at_most_150_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_diagrams_equal_the_output_of_their_generator():
    drawings = runpy.run_path(str(DOCS / "diagrams.py"))
    for make in ("architecture", "data_flow", "request"):
        diagram = drawings[make]()
        assert (DOCS / f"{diagram.name}.svg").read_text() == diagram.svg()
