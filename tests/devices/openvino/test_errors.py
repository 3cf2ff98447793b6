"""The types and the texts of OpenVINO's errors."""

from __future__ import annotations

import pytest

from hetero.devices.errors import DeviceMemoryError, InferenceError
from hetero.devices.openvino.errors import ERRORS


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("[GPU] CL_OUT_OF_MEMORY", DeviceMemoryError),
        ("std::bad_alloc", DeviceMemoryError),
        ("Got invalid dimensions for input: memory", InferenceError),
    ],
)
def test_run_error_type_follows_the_message(message, kind):
    assert type(ERRORS.run_error("it failed", RuntimeError(message))) is kind


def test_reason_omits_source_locations():
    message = (
        "Exception from src/core.cpp:114:\nException from src/dev/plugin.cpp:53:\n"
        "Check 'newNode' failed at src/node.cpp:1614:\nUnsupported operation"
    )
    assert ERRORS.reason(RuntimeError(message)) == "Unsupported operation"
