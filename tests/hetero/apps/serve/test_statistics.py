"""Counters and times of served models, by a clock of the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hetero.apps.serve import inference, statistics
from hetero.apps.serve.inference import Inference
from hetero.apps.serve.inference_request import InferenceRequest
from hetero.apps.serve.statistics import ModelStatistics
from hetero.devices.request.request import Request
from hetero.devices.request.response import Response, StageTiming


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    fake = SimpleNamespace(now_s=10.0)
    fake.perf_counter = lambda: fake.now_s
    fake.time = lambda: 1_700_000_000.25
    for module in (statistics, inference):
        monkeypatch.setattr(module, "time", fake)
    return fake


def test_generation_counts_its_sequences_and_time(clock):
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


def test_failed_generation_counts_as_failure_alone(clock):
    counters = ModelStatistics()

    def fail() -> None:
        with counters.count_generation(3):
            clock.now_s += 0.5
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert counters.rows()["fail"] == (1, 0.5)
    assert {part: row for part, row in counters.rows().items() if part != "fail"} == (
        dict.fromkeys(
            ("success", "queue", "compute_input", "compute_infer", "compute_output"), (0, 0.0)
        )
    )
    document = counters.document("m", "2")
    assert (document["inference_count"], document["last_inference"]) == (0, 0)
    assert counters.num_in_flight == 0


def test_metrics_name_each_counter_of_each_model(clock):
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


def test_inference_counts_its_rows_and_the_time_of_its_parts(clock):
    timings = (StageTiming(0, "CPU", 0.0, 3.0, 3.25), StageTiming(1, "CPU", 0.0, 3.25, 3.5))
    response, requests = Response({"y": np.zeros(3, np.float32)}, timings), []

    def submit(values: Any, request: Request) -> Any:
        requests.append(request)
        clock.now_s += 1.0
        return SimpleNamespace(future=SimpleNamespace(result=lambda: response))

    counters = ModelStatistics()
    model: Any = SimpleNamespace(
        statistics=counters, output_names=("y",), submit=submit, num_rows=lambda values: 3
    )
    regions: Any = None
    with Inference(model, regions) as one:
        one.request = InferenceRequest({}, {}, "7", False, 2.0, 5)
        one._values = {}
        clock.now_s += 0.125
        one.submit(1.5, "trace", is_small=True)
        assert counters.num_in_flight == 1
        one.outputs()
        clock.now_s += 0.0625
    assert requests == [Request(1.5, waits=None, inline=False, priority=5, trace="trace")]
    assert counters.rows() == {
        "success": (1, 1.1875),
        "fail": (0, 0.0),
        "queue": (1, 0.5),
        "compute_input": (1, 0.125),
        "compute_infer": (1, 0.5),
        "compute_output": (1, 0.0625),
    }
    assert (counters.num_in_flight, counters.num_inferences) == (0, 3)
    assert (counters.typical_s, counters.last_ms) == (0.5, 1_700_000_000_250)
