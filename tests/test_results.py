"""BENCHMARKS.md is what the kept results say."""

from __future__ import annotations

from datetime import date

from benchmarks.plots import ratios
from benchmarks.results import PAGE, PICTURE, kept, newest, page


def test_the_page_is_made_of_the_results() -> None:
    assert PAGE.read_text() == page(kept()), "stale: `python -m benchmarks.results page` writes it"
    picture = ratios(newest(kept()), kept())
    assert PICTURE.read_text() == picture, "stale: the same command writes it"
    assert len(PAGE.read_text().splitlines()) <= 150


def test_a_result_says_when_where_and_how_it_was_found() -> None:
    for result in kept():
        assert result.keys() >= {"benchmark", "machine", "date", "commit", "command", "rows"}
        date.fromisoformat(result["date"])
        assert result["rows"]


def test_the_newest_result_of_a_benchmark_is_shown() -> None:
    old = {
        "benchmark": "new",
        "machine": "m",
        "date": "2026-01-02",
        "commit": "a",
        "note": "",
        "command": "c",
        "rows": [{"x": 1.5, "y": None}],
    }
    text = page([{**old, "date": "2026-01-03", "rows": [{"x": 2.5, "y": None}]}, old])
    assert "| 2.5 |  |" in text
    assert "1.5" not in text
