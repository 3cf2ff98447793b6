"""OpenTelemetry spans of requests and stages, in the caller's trace."""

from __future__ import annotations

import time

import numpy as np
import pytest

import hetero
from hetero.errors import HeteroError
from tests.support.models import branches
from tests.support.span_collector import spans

pytest.importorskip("opentelemetry.sdk.trace", reason="the extra opentelemetry is not installed")
from opentelemetry.trace import StatusCode

__all__ = ["spans"]

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def test_stages_are_children_of_their_request(spans):
    with (
        hetero.Core("inprocess") as core,
        core.compile_model(branches(), "HETERO:CPU,ORT", affinity={"op:Tanh": "ORT"}) as compiled,
        core.export_spans(spans.provider),
    ):
        begin_ns = time.time_ns()
        compiled({"x": X})
        end_ns = time.time_ns()
    request, stages = spans.request()
    assert request.parent is None
    assert request.name == compiled.name
    assert request.attributes["hetero.state"] == "answered"
    devices = {s.index: s.device for s in compiled.subgraphs}
    assert {s.attributes["hetero.stage"]: s.attributes["hetero.device"] for s in stages} == devices
    # The clocks of records and spans may differ by some milliseconds.
    assert begin_ns - 1e7 <= request.start_time <= request.end_time <= end_ns + 1e7
    for stage in stages:
        assert request.start_time <= stage.start_time <= stage.end_time <= request.end_time


def test_failed_request_has_the_status_error(spans):
    with (
        hetero.Core("inprocess") as core,
        core.compile_model(branches(), "NULL", {"NULL_FAULT": "fail@1"}) as compiled,
        core.export_spans(spans.provider),
        pytest.raises(HeteroError),
    ):
        compiled({"x": X})
    request, _ = spans.request()
    assert request.status.status_code == StatusCode.ERROR
    assert any("failed" in event.name for event in request.events)


def test_closed_export_receives_no_requests(spans):
    with hetero.Core("inprocess") as core, core.compile_model(branches(), "CPU") as compiled:
        with core.export_spans(spans.provider):
            compiled({"x": X})
        compiled({"x": X})
    spans.request()
