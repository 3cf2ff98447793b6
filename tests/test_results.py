"""Recorded results of benchmarks, and the generated page BENCHMARKS.md."""

from __future__ import annotations

import re
from datetime import date

from benchmarks.plots import ratios
from benchmarks.results import (
    HEADLINES,
    PAGE,
    PICTURE,
    TABLES,
    newest,
    page,
    recorded_results,
    tables,
)


def test_page_and_plot_equal_the_recorded_results():
    assert PAGE.read_text() == page(recorded_results()), (
        "stale: `python -m benchmarks.results page` writes it"
    )
    picture = ratios(newest(recorded_results()), recorded_results())
    assert PICTURE.read_text() == picture, "stale: `python -m benchmarks.results page` writes it"
    assert TABLES.read_text() == tables(recorded_results()), (
        "stale: `python -m benchmarks.results page` writes it"
    )
    assert len(HEADLINES) <= 8


def test_results_have_date_machine_commit_and_command():
    for result in recorded_results():
        assert result.keys() >= {"benchmark", "machine", "date", "commit", "command", "rows"}
        date.fromisoformat(result["date"])
        assert result["rows"]
        assert re.fullmatch("[0-9a-f]{7,40}", result["commit"])


def test_page_shows_the_newest_result_of_a_benchmark():
    old = {
        "benchmark": "new",
        "machine": "m",
        "date": "2026-01-02",
        "commit": "a",
        "note": "",
        "command": "c",
        "rows": [{"x": 1.5, "y": None}],
    }
    text = tables([{**old, "date": "2026-01-03", "rows": [{"x": 2.5, "y": None}]}, old])
    assert "| 2.5 |  |" in text
    assert "1.5" not in text
