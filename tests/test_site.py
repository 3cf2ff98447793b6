"""The documentation site: it builds without a warning and contains every page and term."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.mark.slow
def test_site_builds_without_warnings_and_contains_every_page(tmp_path: Path) -> None:
    for module in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(module, reason="needs pip install -e '.[docs]'")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", DOCS, tmp_path / "site"]
    sphinx = subprocess.run(
        [*command, "-d", tmp_path / "doctrees"], capture_output=True, text=True, timeout=600
    )
    assert (sphinx.returncode, sphinx.stderr) == (0, "")
    pages = {page.stem for page in (tmp_path / "site").glob("*.html")}
    assert {page.stem for page in DOCS.glob("*.md")} <= pages
    links = re.findall(r"\]\((\S+)\)", (tmp_path / "site" / "llms.txt").read_text())
    assert [name for name in links if not (tmp_path / "site" / name).is_file()] == []


@pytest.mark.parametrize(
    "term",
    [
        "KV cache",
        "backpressure",
        "continuous batching",
        "dynamic shape",
        "heartbeat",
        "pipeline parallelism",
        "prefill",
    ],
)
def test_guides_use_common_terms(term: str) -> None:
    pages = [page for page in DOCS.glob("*.md") if page.stem != "glossary"]
    assert any(term.lower() in page.read_text().lower() for page in pages)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", sorted(DOCS.glob("notebooks/*.ipynb")), ids=lambda p: p.stem)
def test_notebook_runs(notebook: Path) -> None:
    client = pytest.importorskip("nbclient", reason="needs pip install -e '.[docs]'")
    cells = pytest.importorskip("nbformat").read(notebook, as_version=4)
    client.NotebookClient(cells, timeout=400, kernel_name="python3").execute()


def test_llms_txt_lists_every_page() -> None:
    links = re.findall(r"\]\((\S+)\.html\)", (DOCS / "llms.txt").read_text())
    assert sorted([*links, "index"]) == sorted(page.stem for page in DOCS.glob("*.md"))


def test_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_diagrams_equal_the_output_of_their_generator() -> None:
    drawings = runpy.run_path(str(DOCS / "diagrams.py"))
    for make in ("architecture", "data_flow", "request"):
        diagram = drawings[make]()
        assert (DOCS / f"{diagram.name}.svg").read_text() == diagram.svg()
