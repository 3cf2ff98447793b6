"""OpenTelemetry spans of requests and stages, in the caller's trace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.errors import HeteroError
from tests.support.models import branches
from tests.support.serving import (
    INFER,
    ask,
    infer_with_traceparent,
    plus_one,
    tensor,
    until,
)

pytest.importorskip("opentelemetry.sdk.trace", reason="the extra opentelemetry is not installed")
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

TRACE, PARENT = "a" * 32, "b" * 16
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


class Spans:
    """A provider that keeps all spans in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def request(self) -> tuple[Any, list[Any]]:
        """Return the span of the only request, and those of its stages in order."""
        [request] = [s for s in self.all if "hetero.request" in s.attributes]
        stages = [s for s in self.all if s is not request]
        assert {s.parent.span_id for s in stages} <= {request.context.span_id}
        assert {s.context.trace_id for s in stages} <= {request.context.trace_id}
        return request, sorted(stages, key=lambda s: s.attributes["hetero.stage"])


@pytest.fixture
def spans() -> Iterator[Spans]:
    collected = Spans()
    yield collected
    collected.provider.shutdown()


def test_stages_are_children_of_their_request(spans: Spans) -> None:
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


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_request_continues_the_trace_of_its_client(protocol: str, spans: Spans) -> None:
    pytest.importorskip("uvicorn")
    pytest.importorskip("google.protobuf")

    parent = f"00-{TRACE}-{PARENT}-01"
    with hetero.Core("inprocess") as core, core.export_spans(spans.provider):
        model = core.read_model(plus_one().SerializeToString())
        with hetero.serve(core.compile_model(model, "CPU"), 0, grpc_port=0) as server:
            infer_with_traceparent(server, protocol, parent)
            until(lambda: bool(spans.all))
    request, [stage] = spans.request()
    assert format(request.context.trace_id, "032x") == TRACE
    assert format(request.parent.span_id, "016x") == PARENT
    assert stage.attributes["hetero.device"] == "CPU"


def test_trace_that_the_client_does_not_sample_has_no_spans(spans: Spans) -> None:
    pytest.importorskip("uvicorn")
    with hetero.Core("inprocess") as core, core.export_spans(spans.provider):
        model = core.read_model(plus_one().SerializeToString())
        with hetero.serve(core.compile_model(model, "CPU"), 0) as server:
            body = {"inputs": [tensor("x", "FP32", [1.0])]}
            for flags in ("00", "01"):
                headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flags}"}
                assert ask(server, INFER, body, headers=headers).status == 200
            until(lambda: bool(spans.all))
    spans.request()


def test_failed_request_has_the_status_error(spans: Spans) -> None:
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


def test_closed_export_receives_no_requests(spans: Spans) -> None:
    with hetero.Core("inprocess") as core, core.compile_model(branches(), "CPU") as compiled:
        with core.export_spans(spans.provider):
            compiled({"x": X})
        compiled({"x": X})
    spans.request()
