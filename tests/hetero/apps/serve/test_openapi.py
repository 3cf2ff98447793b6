"""Responses of a running server fit its OpenAPI description, whatever schemathesis sends."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.serving import plus_one, serving

pytest.importorskip("uvicorn")
schemathesis = pytest.importorskip("schemathesis")
from schemathesis.generation import GenerationMode  # noqa: E402 - an optional package

CHECKS = [
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
]


@pytest.fixture(scope="module")
def description():
    # Without model control the model stays.
    options = {"shared_memory": True, "allowed_hosts": ("*",)}
    with serving("CPU", options=options, plus=plus_one()) as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_responses_fit_the_description(description, mode):
    """No 5xx but 501 and 503, and no undocumented status, content type or document."""
    operations = [result.ok() for result in description.get_all_operations()]
    assert len(operations) > 30

    def check(case: Any) -> None:
        response = case.call(timeout=60)
        assert response.status_code < 500 or response.status_code in (501, 503)
        case.validate_response(response, checks=CHECKS)

    for operation in operations:
        strategy = operation.as_strategy(generation_mode=GenerationMode(mode))
        configured = settings(
            max_examples=10,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=[*HealthCheck],
        )
        with suppress(hypothesis.errors.Unsatisfiable):  # it takes anything
            configured(given(case=strategy)(check))()
