"""Metrics of requests, stages and devices, and their text format."""

from __future__ import annotations

import pytest

from hetero.devices.request.response import StageTiming
from hetero.observe.metrics_server import read_text, write_text
from hetero.scheduler.observe.metrics import BOUNDS_S, Metrics
from hetero.scheduler.observe.observer import ObservedRequest
from hetero.scheduler.types import events
from hetero.scheduler.types.request_record import RequestState
from tests.support import prometheus_text as exposition
from tests.support.observed_requests import LOAD, ended


def count_requests(*requests: ObservedRequest) -> Metrics:
    metrics = Metrics(lambda: LOAD, clock=iter((100.0, 107.5)).__next__)
    for request in requests:
        metrics.ended(request)
        metrics.ran(request)
    return metrics


def model_name() -> str:
    return ended(RequestState.ANSWERED, 1.0).route.plan.name


def test_requests_are_counted_by_outcome():
    families = count_requests(
        ended(RequestState.ANSWERED, 2.0),
        ended(RequestState.ANSWERED, 4.0, attempts=3),
        ended(RequestState.EXPIRED, 7.0, attempts=0),
    ).families()
    values = exposition.read(write_text(families))
    name = model_name()
    assert values["hetero_requests_total"].value(model=name, state="answered") == 2
    assert values["hetero_requests_total"].value(model=name, state="expired") == 1
    assert values["hetero_request_retries_total"].value(model=name) == 2
    assert values["hetero_request_input_bytes_total"].value(model=name) == 72
    assert values["hetero_request_admission_seconds_total"].value(model=name) == 1 + 1 + 7
    assert values["hetero_uptime_seconds"].value() == 7.5


@pytest.mark.parametrize("latency_s", [5e-5, 1e-4, 1.01e-4, 0.7, 60.0, 61.0])
def test_latency_counts_in_cumulative_buckets(latency_s):
    request = ended(RequestState.ANSWERED, 0.0)
    request.record.submitted = events.Submitted(0.0, 1, 24, 99.0)
    request.record.ended_s = latency_s
    values = exposition.read(write_text(count_requests(request).families()))
    histogram = values["hetero_request_duration_seconds"]
    name = model_name()
    for bound in BOUNDS_S:
        expected = latency_s <= bound
        assert histogram.value("_bucket", model=name, le=str(bound)) == expected
    assert histogram.value("_sum", model=name) == latency_s


def test_stages_are_counted_by_device():
    runs = (
        StageTiming(0, "A", 0.5, 11.0, 12.0, output_nbytes=8),
        StageTiming(1, "B", 0.0, 12.0, 12.25),
    )
    request = ended(RequestState.ANSWERED, 3.0, runs=runs)
    values = exposition.read(write_text(count_requests(request, request).families()))
    first = {"model": model_name(), "stage": "0", "device": "A"}
    assert values["hetero_stage_runs_total"].value(**first) == 2
    assert values["hetero_stage_busy_seconds_total"].value(**first) == 2.0
    assert values["hetero_stage_queue_seconds_total"].value(**first) == 1.0
    assert values["hetero_stage_output_bytes_total"].value(**first) == 16


def test_waiting_and_running_requests_are_gauges():
    values = exposition.read(write_text(count_requests().families()))
    assert values["hetero_requests_waiting"].value(model="m") == 3
    assert values["hetero_requests_in_flight"].value(model="m") == 4
    assert values["hetero_in_flight_bytes"].value() == 1000
    a = {"device": "A", "node": "n1"}
    assert values["hetero_device_tasks"].value(**a, state="queued") == 3
    assert values["hetero_device_tasks"].value(**a, state="running") == 2
    assert values["hetero_device_streams"].value(**a) == 4
    assert values["hetero_device_kept_bytes"].value(**a) == 7
    assert values["hetero_device_heartbeat_age_seconds"].value(device="B", node="n2") == 1.5


def test_device_losses_and_returns_are_counted():
    metrics = count_requests()
    metrics.device(events.DeviceLost(1.0, "A", "n1", "silent"))
    metrics.device(events.DeviceReturned(2.0, "A"))
    metrics.device(events.DeviceLost(3.0, "A", "n1", "silent"))
    metrics.device(events.DeviceLost(3.0, "B", "n2", "killed"))
    metrics.device(events.DeviceReturned(4.0, "B"))
    values = exposition.read(write_text(metrics.families()))
    assert values["hetero_device_losses_total"].value(device="A") == 2
    assert values["hetero_device_losses_total"].value(device="B") == 1
    assert values["hetero_device_up"].value(device="A", node="n1") == 0
    assert values["hetero_device_up"].value(device="B", node="n2") == 1


def test_names_with_special_characters_are_escaped():
    request = ended(RequestState.ANSWERED, 1.0)
    plan = request.route.plan
    name = 'a "b" \\ {c="d"}, \n e'
    object.__setattr__(plan, "name", name)
    text = write_text(count_requests(request).families())
    strict = exposition.read(text)["hetero_requests_total"]
    assert strict.value(model=name, state="answered") == 1
    pairs = [labels for metric, labels, _ in read_text(text) if metric == "hetero_requests_total"]
    assert pairs == [{"model": name, "state": "answered"}]


def test_other_text_is_refused():
    with pytest.raises(ValueError, match="metric"):
        list(read_text("<html>\n"))
