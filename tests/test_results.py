"""Recorded results of benchmarks, and the generated page BENCHMARKS.md."""

from __future__ import annotations

from datetime import date

from benchmarks.plots import ratios
from benchmarks.results import PAGE, PICTURE, newest, page, recorded_results


def test_page_and_plot_equal_the_recorded_results() -> None:
    assert PAGE.read_text() == page(recorded_results()), (
        "stale: `python -m benchmarks.results page` writes it"
    )
    picture = ratios(newest(recorded_results()), recorded_results())
    assert PICTURE.read_text() == picture, "stale: `python -m benchmarks.results page` writes it"
    assert len(PAGE.read_text().splitlines()) <= 160


def test_results_have_date_machine_commit_and_command() -> None:
    for result in recorded_results():
        assert result.keys() >= {"benchmark", "machine", "date", "commit", "command", "rows"}
        date.fromisoformat(result["date"])
        assert result["rows"]


def test_page_shows_the_newest_result_of_a_benchmark() -> None:
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
