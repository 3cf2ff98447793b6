"""Counters and times of served models, by a clock of the test."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hetero.apps.serve import statistics
from hetero.apps.serve.statistics import ModelStatistics


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    fake = SimpleNamespace(now_s=10.0)
    fake.perf_counter = lambda: fake.now_s
    fake.time = lambda: 1_700_000_000.25
    monkeypatch.setattr(statistics, "time", fake)
    return fake


def test_generation_counts_its_sequences_and_time(clock: SimpleNamespace) -> None:
    counters = ModelStatistics()
    for seconds in (0.5, 0.25):
        with counters.count_generation(3):
            assert counters.num_in_flight == 1
            clock.now_s += seconds
    document = counters.document("m", "2")
    parts = document.pop("inference_stats")
    assert document == {
        "name": "m",
        "version": "2",
        "last_inference": 1_700_000_000_250,
        "inference_count": 6,
        "execution_count": 2,
        "batch_stats": [],
    }
    assert parts == {
        "success": {"count": 2, "ns": 750_000_000},
        "fail": {"count": 0, "ns": 0},
        "queue": {"count": 2, "ns": 0},
        "compute_input": {"count": 2, "ns": 0},
        "compute_infer": {"count": 2, "ns": 750_000_000},
        "compute_output": {"count": 2, "ns": 0},
    }
    assert counters.num_in_flight == 0


def test_failed_generation_counts_as_failure_alone(clock: SimpleNamespace) -> None:
    counters = ModelStatistics()
    with pytest.raises(ZeroDivisionError), counters.count_generation(3):
        clock.now_s += 0.5
        raise ZeroDivisionError
    assert counters.rows()["fail"] == (1, 0.5)
    assert {part: row for part, row in counters.rows().items() if part != "fail"} == (
        dict.fromkeys(
            ("success", "queue", "compute_input", "compute_infer", "compute_output"), (0, 0.0)
        )
    )
    document = counters.document("m", "2")
    assert (document["inference_count"], document["last_inference"]) == (0, 0)
    assert counters.num_in_flight == 0


def test_metrics_name_each_counter_of_each_model(clock: SimpleNamespace) -> None:
    models = {("a", "1"): ModelStatistics(), ("b", "2"): ModelStatistics()}
    with models["b", "2"].count_generation(3):
        clock.now_s += 0.5
        text = statistics.metrics_text(models)
        assert 'hetero_serve_requests_in_flight{model="b",version="2"} 1.0' in text
    models["b", "2"].num_tokens = 7
    lines = statistics.metrics_text(models).splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if "#" not in line and 'model="b"' in line)
    labels = 'model="b"'
    assert values == {
        f'hetero_serve_requests_total{{{labels},result="success",version="2"}}': "1.0",
        f'hetero_serve_requests_total{{{labels},result="fail",version="2"}}': "0.0",
        f'hetero_serve_inferences_total{{{labels},version="2"}}': "3.0",
        f'hetero_serve_tokens_total{{{labels},version="2"}}': "7.0",
        f'hetero_serve_requests_in_flight{{{labels},version="2"}}': "0.0",
        **{
            f'hetero_serve_seconds_total{{{labels},part="{part}",version="2"}}': (
                "0.5" if part in ("success", "compute_infer") else "0.0"
            )
            for part in statistics.PARTS
        },
    }
