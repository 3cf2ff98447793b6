"""Reasons for the loss of a device, from the errors of Ray."""

from __future__ import annotations

import pytest

from hetero.scheduler.ray.devices import why_lost

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
