"""Reasons for the loss of a device, from the errors of Ray."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray import exceptions

from hetero.devices.errors import ClusterError, DeviceLostError, DeviceMemoryError
from hetero.scheduler.ray import devices
from hetero.scheduler.ray.devices import DeviceHandle, RayDevices, answer, why_lost
from hetero.scheduler.types.device_descriptor import DeviceDescriptor

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


@pytest.mark.parametrize(
    ("second_error", "expected_type", "words"),
    [
        (
            exceptions.ActorDiedError(),
            DeviceLostError,
            "gone",
        ),
        (exceptions.ActorUnavailableError("unreachable", None), ClusterError, "Try again"),
        (exceptions.GetTimeoutError(), ClusterError, "Try again"),
    ],
)
def test_unreachable_device_is_lost_if_its_process_has_ended(
    monkeypatch, second_error, expected_type, words
):
    errors = iter([exceptions.ActorUnavailableError("unreachable", None), second_error])

    def fail(*_: object, **__: object) -> None:
        raise next(errors)

    monkeypatch.setattr(devices.ray, "get", fail)
    table = object.__new__(RayDevices)
    table._load_timeout_s = 1.0
    table._session = SimpleNamespace(wait=lambda *_: True)
    forgotten: list[str] = []
    monkeypatch.setattr(RayDevices, "forget", lambda _, actor_id: forgotten.append(actor_id))
    ping = SimpleNamespace(remote=lambda: None)
    actor = SimpleNamespace(ping=ping, _actor_id=b"\x01")
    handle = DeviceHandle(DeviceDescriptor("X", "X", "0", "local"), "node", actor)
    with pytest.raises(expected_type, match=words) as caught:
        table.fetch(handle, None)
    assert type(caught.value) is expected_type
    assert forgotten == (["01"] if expected_type is DeviceLostError else [])
