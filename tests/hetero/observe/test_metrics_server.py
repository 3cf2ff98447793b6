"""The metrics endpoint after requests on two devices, as a scraper reads it."""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest

import hetero
from hetero.observe.metrics_server import MetricsServer
from hetero.scheduler.observe.load import Load
from tests.scheduler.endpoints import wait_for
from tests.support import prometheus_text as exposition
from tests.support.core_fixtures import core_fixture
from tests.support.models import branches
from tests.support.waiting_plugin import WaitingPlugin

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
CUT = {"op:Tanh": "CPU"}


core = core_fixture("module", plugins=[WaitingPlugin])


def scrape(url: str) -> dict[str, exposition.Family]:
    with urllib.request.urlopen(url, timeout=60) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return exposition.read(response.read().decode())


def test_metrics_agree_with_request_times(core):
    with (
        core.serve_metrics() as metrics,
        core.compile_model(branches(), "HETERO:ORT,CPU", affinity=CUT) as compiled,
    ):
        submitted = [compiled.submit({"x": X}) for _ in range(4)]
        results = [s.future.result(60) for s in submitted]
        samples = scrape(metrics.url)
        assert samples.keys() == exposition.read(metrics.text()).keys()
    assert samples["hetero_requests_total"].value(model="branches", state="answered") == 4
    assert samples["hetero_request_input_bytes_total"].value(model="branches") == 4 * X.nbytes
    for subgraph in compiled.subgraphs:
        runs = [answer.stage_timings[subgraph.index] for answer in results]
        labels = {"model": "branches", "stage": str(subgraph.index), "device": subgraph.device}
        assert samples["hetero_stage_runs_total"].value(**labels) == 4
        busy_s = samples["hetero_stage_busy_seconds_total"].value(**labels)
        assert busy_s == pytest.approx(sum(run.run_s for run in runs))
        queued_s = samples["hetero_stage_queue_seconds_total"].value(**labels)
        assert queued_s == pytest.approx(sum(run.queued_s for run in runs))
        nbytes = samples["hetero_stage_output_bytes_total"].value(**labels)
        assert nbytes == sum(run.output_nbytes for run in runs)
    assert samples["hetero_requests_in_flight"].value(model="branches") == 0
    assert samples["hetero_in_flight_bytes"].value() == 0
    for device in ("ORT", "CPU"):
        assert samples["hetero_device_up"].value(device=device, node="local") == 1


def test_waiting_and_running_requests_are_visible(core, tmp_path):
    gate = tmp_path / "open"
    config = {"MAX_REQUESTS_IN_FLIGHT": 1, "WAIT_FILE": str(gate)}
    with (
        core.serve_metrics() as metrics,
        core.compile_model(branches(), "WAITING", config) as compiled,
    ):
        first = compiled.submit({"x": X})
        second = threading.Thread(target=compiled, args=(X,))
        second.start()
        # The second request is submitted and waits.
        wait_for(lambda: len(compiled.story(first.request_id + 1)) >= 2)
        samples = scrape(metrics.url)
        assert samples["hetero_requests_waiting"].value(model="branches") == 1
        assert samples["hetero_requests_in_flight"].value(model="branches") == 1
        assert samples["hetero_in_flight_bytes"].value() >= X.nbytes
        tasks = samples["hetero_device_tasks"]
        num_tasks = [
            tasks.value(device="WAITING", node="local", state=s) for s in ("running", "queued")
        ]
        assert sum(num_tasks) == 1
        first.cancel()
        gate.touch()
        second.join(60)
        outcomes = scrape(metrics.url)["hetero_requests_total"]
    assert outcomes.value(model="branches", state="cancelled") == 1
    assert outcomes.value(model="branches", state="answered") == 1


def test_metrics_are_served_only_in_the_block(core):
    with core.serve_metrics() as metrics:
        port = int(metrics.url.rpartition(":")[2].partition("/")[0])
        with pytest.raises(ValueError, match="another port"), core.serve_metrics(port):
            pass
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(metrics.url, timeout=60)


def test_core_without_devices_has_metrics():
    with hetero.Core("inprocess") as core, core.serve_metrics() as metrics:
        assert scrape(metrics.url)["hetero_in_flight_bytes"].value() == 0


def test_scrape_of_lost_cluster_is_empty(capfd, caplog):
    def load() -> Load:
        raise hetero.ClusterError("the cluster is lost")

    with MetricsServer([], load, "127.0.0.1", 0) as metrics:
        for _ in range(2):
            with urllib.request.urlopen(metrics.url, timeout=60) as response:
                assert response.read() == b""
    [record] = caplog.records
    assert "the cluster is lost" in record.message
    assert capfd.readouterr() == ("", "")


def test_openmetrics_is_served_to_scrapers_that_accept_it(core):
    accept = "application/openmetrics-text; version=1.0.0"
    with core.serve_metrics() as metrics:
        request = urllib.request.Request(metrics.url, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=60) as response:
            assert response.headers["Content-Type"].startswith("application/openmetrics-text")
            assert response.read().endswith(b"# EOF\n")


def test_command_prints_the_metrics_url(shell, model):
    result = shell("run --metrics-port 0 -d CPU", model)
    assert result.code == 0
    assert re.search(r"metrics: http://127\.0\.0\.1:\d+/metrics", result.err)
