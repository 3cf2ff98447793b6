"""Ctrl-C while a model is called: the run is told to stop, and the model can be called again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hetero
from hetero.devices.request.state_machine import RequestStateMachine
from tests.scheduler.parties import wait_for
from tests.support.endless_plugin import EndlessPlugin
from tests.support.models import branches


@pytest.mark.parametrize("when", ["start", "_wait_for_end"])
def test_a_model_can_be_called_again_after_a_call_that_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    start = RequestStateMachine.start

    def interrupted(machine: RequestStateMachine, *arguments: Any, **options: Any) -> None:
        if when == "start":
            start(machine, *arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(RequestStateMachine, when, interrupted)
    with hetero.Core(executor="inprocess", plugins=[EndlessPlugin]) as core:
        compiled = core.compile_model(branches(), "ENDLESS")
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                compiled(np.zeros((2, 3), np.float32))
            wait_for(lambda: not any(d.num_in_flight for d in core.executor.load().deployments))
