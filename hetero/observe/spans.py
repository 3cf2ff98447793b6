"""Export of requests as OpenTelemetry spans: a span for each request, and one for each stage.

A request continues the trace of its caller: the server passes on the header ``traceparent`` of
HTTP, or the metadata of gRPC. Spans are made when a request ends, from its record, so a request in
flight costs nothing. They need the extra ``opentelemetry``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hetero.devices.errors import UnsupportedOperationError
from hetero.devices.plugin.install_command import install_command
from hetero.observe.trace import on_client_clock
from hetero.scheduler.observe.observer import DeviceEvent, ObservedRequest, Observer
from hetero.scheduler.types.request_record import RequestState

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

#: States of requests whose span has the status OK.
_OK_STATES = (RequestState.ANSWERED, RequestState.AWAITING_TURN)


class SpanExport:
    """Exports the spans of a Core's requests, from `Core.export_spans` until `close`."""

    def __init__(
        self, observers: list[Observer], tracer_provider: TracerProvider | None = None
    ) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation import tracecontext
        except ImportError as error:
            raise _missing_extra_error(error) from error
        self._observers = observers
        self._api = trace
        self._propagator = tracecontext.TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("hetero", tracer_provider=tracer_provider)
        observers.append(self)

    def close(self) -> None:
        """Stop exporting; spans that the provider has buffered are its own to send."""
        if self in self._observers:
            self._observers.remove(self)

    def __enter__(self) -> SpanExport:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def ended(self, request: ObservedRequest) -> None:
        """Export the spans of a finished request."""
        request = on_client_clock(request)
        record, model = request.record, request.route.plan.name
        # Times of records are those of the monotonic clock.
        offset_ns = time.time_ns() - time.monotonic_ns()
        submitted = record.submitted
        span = self._tracer.start_span(
            model,
            self._propagator.extract({"traceparent": submitted.trace}),
            attributes={
                "hetero.request": record.id,
                "hetero.deployment": request.deployment,
                "hetero.state": record.state.value,
                "hetero.attempts": record.attempt,
                "hetero.input_nbytes": submitted.nbytes,
            },
            start_time=_ns(submitted.now_s, offset_ns),
        )
        for line in record.story if span.is_recording() else ():
            attempt = {"hetero.attempt": line.attempt}
            span.add_event(line.event, attempt, _ns(line.time_s, offset_ns))
        if record.state not in _OK_STATES:
            message = "" if record.error is None else str(record.error)
            span.set_status(self._api.StatusCode.ERROR, message or record.state.value)
        parent = self._api.set_span_in_context(span)
        for run in {run.stage: run for run in request.runs}.values():
            self._tracer.start_span(
                f"{model}, stage {run.stage}",
                parent,
                attributes={
                    "hetero.stage": run.stage,
                    "hetero.device": run.device,
                    "hetero.queued_s": run.queued_s,
                    "hetero.output_nbytes": run.output_nbytes,
                },
                start_time=_ns(run.started_s, offset_ns),
            ).end(_ns(run.ended_s, offset_ns))
        ended_s = submitted.now_s if record.ended_s is None else record.ended_s
        span.end(_ns(ended_s, offset_ns))

    def ran(self, request: ObservedRequest) -> None:
        """Do nothing: the finished request has the times of its stages."""

    def device(self, event: DeviceEvent) -> None:
        """Do nothing: spans are those of requests."""


@contextmanager
def otlp_provider() -> Iterator[Any]:
    """Yield a provider that sends spans by OTLP, as the variables ``OTEL_*`` configure it.

    At the end it sends the spans that it has buffered.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise _missing_extra_error(error) from error
    name = os.environ.get("OTEL_SERVICE_NAME", "hetero")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield provider
    finally:
        provider.shutdown()


def _ns(time_s: float, offset_ns: int) -> int:
    return round(time_s * 1e9) + offset_ns


def _missing_extra_error(error: ImportError) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"spans need {error.name}: {install_command('opentelemetry')}."
    )
