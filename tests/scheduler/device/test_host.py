"""Device host: running stages stay loaded, and programs fail separately."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import DeviceError, DeviceMemoryError, RequestCancelledError
from hetero.devices.plugin.program import RunContext
from hetero.devices.request.request import Request
from hetero.scheduler import DeviceDescriptor, StageSource
from hetero.scheduler.device.host import DeviceHost
from tests.scheduler.models import chain
from tests.scheduler.plugins import ToyPlugin

PATIENCE_S = 60


def loaded(*stages: str) -> DeviceHost:
    """Return a host with one deployment per node name."""
    host = DeviceHost(DeviceDescriptor("TOY", "TOY", "0", "local"), ToyPlugin())
    for name in stages:
        _, (source,) = chain("TOY", name=name)
        host.load_stage(name, 0, StageSource(source.model), 1)
    return host


def test_stage_is_not_closed_between_lookup_and_run(
    monkeypatch,
):
    host = loaded("add")
    compiled = host._stages["add", 0]
    unloading = threading.Thread(target=host.unload, args=("add",))
    unload_started = threading.Event()
    ran_at_close: list[int] = []
    cancel, close = RunContext.cancel, compiled.close

    class Stages(dict[tuple[str, int], Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            """Unload the stage on another thread just after the lookup."""
            program = super().get(key)
            unloading.start()
            assert unload_started.wait(PATIENCE_S)
            return program

    monkeypatch.setattr(host, "_stages", Stages(host._stages))
    monkeypatch.setattr(
        RunContext, "cancel", lambda context: (cancel(context), unload_started.set())
    )
    monkeypatch.setattr(
        compiled, "close", lambda: (ran_at_close.append(len(host._running)), close())
    )
    with pytest.raises(RequestCancelledError):
        host.run_stage(Request(deployment="add"), 0, [np.ones(1, np.float32)])
    unloading.join(PATIENCE_S)
    assert ran_at_close == [0]


def test_failing_close_does_not_keep_other_programs_open(monkeypatch, caplog):
    host = loaded("add", "mul")
    closed: list[str] = []
    for (name, _), compiled in host._stages.items():

        def close(name: str = name) -> None:
            closed.append(name)
            raise OSError("stuck")

        monkeypatch.setattr(compiled, "close", close)
    with caplog.at_level(logging.ERROR):
        host.close()
    assert sorted(closed) == ["add", "mul"]
    assert "stuck" in caplog.text


@pytest.mark.parametrize(
    ("error", "expected_type", "words"),
    [
        (MemoryError("Unable to allocate 1 GiB"), DeviceMemoryError, "out of memory: Unable to"),
        (ValueError("bad"), DeviceError, "ValueError: bad. This is a bug of its plugin"),
    ],
)
def test_plugin_error_while_a_stage_is_compiled_is_typed(monkeypatch, error, expected_type, words):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(ToyPlugin, "compile_model", fail)
    with pytest.raises(expected_type, match="device TOY on node local cannot compile") as caught:
        loaded("add")
    assert type(caught.value) is expected_type
    assert words in str(caught.value)
    assert (caught.value.device, caught.value.node) == ("TOY", "local")


def test_memory_error_of_a_run_is_typed(monkeypatch):
    host = loaded("add")

    def fail(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 1 GiB")

    monkeypatch.setattr(host._stages["add", 0], "run", fail)
    with pytest.raises(
        DeviceMemoryError, match=r"stage 0 on device TOY .*Unable to allocate 1 GiB"
    ):
        host.run_stage(Request(deployment="add"), 0, [np.ones(1, np.float32)])
