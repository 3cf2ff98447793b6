"""Reasons for the loss of a device, from the errors of Ray."""

from __future__ import annotations

import pytest
from ray import exceptions

from hetero.devices.errors import ClusterError, DeviceMemoryError
from hetero.scheduler.ray import devices
from hetero.scheduler.ray.devices import answer, why_lost

#: Error of Ray 2.60 for an actor of a client with a token, on a cluster that was started without.
CANCELLED = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: DeviceActor\nThe actor "
    "is dead because all references to the actor were removed including lineage ref count.\nThe "
    "actor never ran - it was cancelled before it started running."
)


@pytest.mark.parametrize(
    ("mode", "words"), [("token", "RAY_AUTH_MODE=disabled"), ("disabled", "all references")]
)
def test_cancelled_start_of_an_actor_names_the_token(monkeypatch, mode, words):
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    assert words in why_lost(RuntimeError(CANCELLED))


@pytest.mark.parametrize(
    ("last_line", "cause", "expected_type", "words"),
    [
        ("MemoryError", MemoryError(), DeviceMemoryError, "device X: out of memory: MemoryError."),
        (
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1 MiB",
            RuntimeError("an error of Ray that wraps it"),
            DeviceMemoryError,
            "Unable to allocate 1 MiB. Let a plan fit",
        ),
        (
            "OSError: [Errno 12] Cannot allocate memory",
            OSError(12, "Cannot allocate memory"),
            DeviceMemoryError,
            "Cannot allocate memory",
        ),
        ("KeyError: 3", KeyError(3), ClusterError, "KeyError: 3"),
    ],
)
def test_memory_error_of_an_actor_is_typed(monkeypatch, last_line, cause, expected_type, words):
    def fail(_: object) -> None:
        raise exceptions.RayTaskError("load_stage", f"Traceback:\n  line\n{last_line}", cause)

    monkeypatch.setattr(devices.ray, "get", fail)
    with pytest.raises(expected_type) as caught:
        answer(None, "device X", device="X")
    assert words in str(caught.value)
    assert caught.value.device == "X"
    assert type(caught.value) is expected_type
