"""Collector of OpenTelemetry spans; without OpenTelemetry, importing tests are skipped."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk.trace", reason="the extra opentelemetry is not installed")
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


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
def spans():
    collected = Spans()
    yield collected
    collected.provider.shutdown()
