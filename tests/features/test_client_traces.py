"""OpenTelemetry spans of served requests, in the trace of their client."""

from __future__ import annotations

import pytest

import hetero
from tests.support.serving import INFER, ask, infer_with_traceparent, plus_one, tensor, until
from tests.support.span_collector import spans

__all__ = ["spans"]

TRACE, PARENT = "a" * 32, "b" * 16


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_request_continues_the_trace_of_its_client(protocol, spans):
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


def test_trace_that_the_client_does_not_sample_has_no_spans(spans):
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
