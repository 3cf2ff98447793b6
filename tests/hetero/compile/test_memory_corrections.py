"""Devices that run out of memory although a plan fits: the model is planned around them once."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

import hetero
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.errors import DeviceMemoryError
from hetero.devices.model.model import Model
from hetero.devices.plugin.memory_traits import MemoryTraits
from hetero.devices.plugin.program import Program
from hetero.devices.plugin.properties import Config
from tests.support.products import WIDTH, products


class SmallPlugin(CPUPlugin):
    """The reference device with memory for three products, which it does not know."""

    name: ClassVar[str] = "SMALL"
    memory_traits: ClassVar[MemoryTraits] = MemoryTraits()
    room_nbytes: ClassVar[int] = 3 * WIDTH * WIDTH * 4

    def compile(self, model: Model, config: Config) -> Program:
        if model.weight_nbytes > self.room_nbytes:
            raise DeviceMemoryError("no room", device=self.name)
        return super().compile(model, config)


class FullPlugin(SmallPlugin):
    """A device without any memory."""

    name: ClassVar[str] = "FULL"
    room_nbytes: ClassVar[int] = 0


def options(device: str) -> dict[str, object]:
    room = 4 * WIDTH * WIDTH * 4 + 2000
    memory = {device: room, "CPU": 1_000_000_000}
    return {"FIT_MEMORY": True, "DEVICE_MEMORY_NBYTES": memory, "VERIFY": "NO"}


def test_model_is_planned_again_with_less_memory() -> None:
    with (
        hetero.Core("inprocess", plugins=[SmallPlugin]) as core,
        core.compile_model(products(4), "HETERO:SMALL,CPU", options("SMALL")) as compiled,
    ):
        assert [s.device for s in compiled.subgraphs] == ["SMALL", "CPU"]
        assert compiled.plan_report is not None
        assert any("SMALL ran out of memory at 162 kB" in x for x in compiled.plan_report.advice)
        x = np.arange(WIDTH, dtype=np.float32)[None]
        np.testing.assert_array_equal(compiled({"v0": x})[0], x)


def test_device_that_runs_out_of_memory_twice_is_an_error() -> None:
    with (
        hetero.Core("inprocess", plugins=[FullPlugin]) as core,
        pytest.raises(DeviceMemoryError, match="no room") as caught,
    ):
        core.compile_model(products(4), "HETERO:FULL,CPU", options("FULL"))
    assert caught.value.data["device"] == "FULL"
