"""The command `hetero top`: tables and JSON of a process's metrics."""

from __future__ import annotations

import importlib
import time
from types import SimpleNamespace

import numpy as np
import pytest

import hetero
from hetero.cli.metrics_snapshot import MetricsSnapshot, summarize_metrics
from tests.support.models import branches

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
CUT = {"op:Tanh": "CPU"}


@pytest.fixture(scope="module")
def metrics_url():
    """The metrics URL of a process that has served four requests on two devices."""
    with (
        hetero.Core(executor="inprocess") as core,
        core.serve_metrics() as metrics,
        core.compile_model(branches(), "HETERO:ORT,CPU", affinity=CUT) as compiled,
    ):
        for _ in range(4):
            compiled(X)
        yield metrics.url


def test_json_has_devices_stages_and_rates(shell, metrics_url):
    port = metrics_url.rpartition(":")[2].partition("/")[0]
    result = shell(f"top {port} --once --json", ray=True)
    assert result.code == 0
    document = result.document
    assert document["schema"]["name"] == "hetero.top"
    assert document["address"] == metrics_url
    (model,) = document["models"]
    assert model["model"] == "branches"
    assert model["answered_per_s"] * document["seconds"] == pytest.approx(4)
    assert (model["waiting"], model["in_flight"], model["not_answered"]) == (0, 0, 0)
    assert 0 < model["latency_s"]["50"] <= model["latency_s"]["99"]
    assert [(s["stage"], s["device"]) for s in document["stages"]] == [
        (0, "ORT"),
        (1, "CPU"),
        (2, "ORT"),
    ]
    for stage in document["stages"]:
        runs = stage["runs_per_s"] * document["seconds"]
        assert runs == pytest.approx(4)
        assert stage["utilisation"] * document["seconds"] == pytest.approx(stage["run_s"] * runs)
    devices = {d["device"]: d for d in document["devices"]}
    assert devices.keys() == {"ORT", "CPU"}
    assert all(d["up"] and d["node"] == "local" and not d["losses"] for d in devices.values())
    ort_utilisation = sum(s["utilisation"] for s in document["stages"] if s["device"] == "ORT")
    assert devices["ORT"]["utilisation"] == pytest.approx(ort_utilisation)


def test_once_prints_tables(shell, metrics_url):
    result = shell("top --once", metrics_url, ray=True)
    assert result.code == 0
    for word in ("branches", "ORT", "CPU", "local", "up", "in flight"):
        assert word in result.out


def test_live_view_updates_until_interrupted(shell, metrics_url, monkeypatch):
    sleeps = iter([0.5, 0.5])

    def sleep(seconds: float) -> None:
        assert seconds == 0.5
        if next(sleeps, None) is None:
            raise KeyboardInterrupt

    module = importlib.import_module("hetero.cli.top")
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    result = shell("top --interval 0.5", metrics_url, ray=True)
    assert result.code == 0
    assert "branches" in result.out


def test_top_ends_with_the_observed_process(shell, monkeypatch):
    module = importlib.import_module("hetero.cli.top")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with hetero.Core(executor="inprocess") as core, core.serve_metrics() as metrics:
        end = SimpleNamespace(sleep=lambda seconds: metrics.close(), monotonic=time.monotonic)
        monkeypatch.setattr(module, "time", end)
        result = shell("top", metrics.url, ray=True)
    assert (result.code, "has ended" in result.err) == (0, True)
    assert "--metrics-port" not in result.err


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:1", "--metrics-port"),
        ("ftp://host/metrics", "HOST:PORT"),
        ("no such host", "cannot read metrics"),
    ],
)
def test_address_without_metrics_is_refused(shell, address, words):
    result = shell("top --once", address, ray=True)
    assert result.code in (1, 2)
    assert words in result.err


def test_rates_cover_the_time_between_snapshots():
    def snapshot(
        uptime: float, runs: float, busy: float, quick: float, slow: float
    ) -> MetricsSnapshot:
        stage = {"model": "m", "stage": "0", "device": "A"}
        model = {"model": "m"}
        bucket = "hetero_request_duration_seconds_bucket"
        return MetricsSnapshot(
            [
                ("hetero_uptime_seconds", {}, uptime),
                ("hetero_stage_runs_total", stage, runs),
                ("hetero_stage_busy_seconds_total", stage, busy),
                ("hetero_requests_total", {**model, "state": "answered"}, slow),
                (bucket, {**model, "le": "0.1"}, quick),
                (bucket, {**model, "le": "0.5"}, slow),
                (bucket, {**model, "le": "+Inf"}, slow),
                ("hetero_device_up", {"device": "A", "node": "n"}, 0),
            ]
        )

    summary = summarize_metrics(snapshot(30.0, 50, 12.0, 50, 100), snapshot(10.0, 10, 2.0, 40, 50))
    assert summary["seconds"] == 20
    (stage,) = summary["stages"]
    assert (stage["runs_per_s"], stage["run_s"], stage["utilisation"]) == (2, 0.25, 0.5)
    (model,) = summary["models"]
    assert model["answered_per_s"] == 2.5
    # 10 of 50 requests took up to 0.1 s; the others are spread evenly up to 0.5 s.
    assert model["latency_s"] == {
        "50": pytest.approx(0.1 + 0.4 * 15 / 40),
        "90": pytest.approx(0.1 + 0.4 * 35 / 40),
        "99": pytest.approx(0.1 + 0.4 * 39.5 / 40),
    }
    assert summary["devices"][0]["up"] is False
