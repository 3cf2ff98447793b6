"""KeyboardInterrupt during a call: the run is cancelled; the model stays usable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hetero
from hetero.devices.request.state_machine import RequestStateMachine
from tests.scheduler.endpoints import wait_for
from tests.support.endless_plugin import EndlessPlugin
from tests.support.models import branches


@pytest.mark.parametrize("method", ["start", "_wait_for_end"])
def test_interrupted_call_frees_the_device(monkeypatch, method):
    start = RequestStateMachine.start

    def start_and_interrupt(machine: RequestStateMachine, *arguments: Any, **options: Any) -> None:
        if method == "start":
            start(machine, *arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(RequestStateMachine, method, start_and_interrupt)
    with hetero.Core(executor="inprocess", plugins=[EndlessPlugin]) as core:
        compiled = core.compile_model(branches(), "ENDLESS")
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                compiled(np.zeros((2, 3), np.float32))
            wait_for(lambda: not any(d.num_in_flight for d in core.executor.load().deployments))
