"""Models that fit the devices' memory: exports, replicas, and requests in flight."""

from __future__ import annotations

import io
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx.parser import parse_model

import hetero
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.errors import PlanError, PropertyError
from hetero.devices.model.model import Model
from hetero.devices.plugin.memory_traits import Copies, MemoryTraits
from hetero.devices.plugin.program import Payload, Program
from hetero.devices.plugin.properties import Config, Property, PropertyTable
from tests.support.products import WIDTH, products

#: Bytes of a product's weights.
WEIGHT = WIDTH * WIDTH * 4


class PackingPlugin(CPUPlugin):
    """The reference device with packed copies of weights, which an option avoids."""

    name: ClassVar[str] = "PACKING"
    memory_traits: ClassVar[MemoryTraits] = MemoryTraits(
        copied_operators=None, weight_copies=Copies(1.0), compact_options={"PACKS": False}
    )
    properties: ClassVar[PropertyTable] = CPUPlugin.properties.extended(
        Property("PACKS", bool, True, True, "Whether weights are packed.", shapes_result=True)
    )
    #: The method and the option of each model that was compiled or loaded.
    calls: ClassVar[list[tuple[str, bool]]] = []

    def compile(self, model: Model, config: Config) -> Program:
        self.calls.append(("compile", config["PACKS"]))
        return super().compile(model, config)

    def load(self, payload: Payload, model: Model, config: Config) -> Program:
        self.calls.append(("load", config["PACKS"]))
        return super().load(payload, model, config)


class BlockPlugin(CPUPlugin):
    """The reference device with an option for the size of a block of values."""

    name: ClassVar[str] = "BLOCK"
    memory_traits: ClassVar[MemoryTraits] = MemoryTraits(
        values_option="BLOCK_NBYTES", block_values_factor=2.0
    )
    properties: ClassVar[PropertyTable] = CPUPlugin.properties.extended(
        Property("BLOCK_NBYTES", int, 0, True, "Size of the block of values.")
    )
    #: The option of each model that was compiled.
    sizes: ClassVar[list[int]] = []

    def compile(self, model: Model, config: Config) -> Program:
        self.sizes.append(config["BLOCK_NBYTES"])
        return super().compile(model, config)


def options(nbytes: int) -> dict[str, Any]:
    memory = {"PACKING": nbytes, "CPU": 1_000_000_000}
    return {"FIT_MEMORY": True, "DEVICE_MEMORY_NBYTES": memory, "VERIFY": "NO"}


def test_imported_model_keeps_its_compact_options():
    x = np.arange(WIDTH, dtype=np.float32)[None]
    stream = io.BytesIO()
    with hetero.Core("inprocess", plugins=[PackingPlugin]) as core:
        with core.compile_model(products(4), "HETERO:PACKING,CPU", options(5 * WEIGHT)) as compiled:
            compiled.export_model(stream)
        PackingPlugin.calls.clear()
        stream.seek(0)
        with core.import_model(stream) as imported:
            np.testing.assert_array_equal(imported({"v0": x})[0], x)
        assert PackingPlugin.calls == [("load", False)]
        stream.seek(0)
        with pytest.raises(PlanError, match=r"at least [\d.]+MB on PACKING") as caught:
            core.import_model(stream, config={"DEVICE_MEMORY_NBYTES": {"PACKING": 3 * WEIGHT}})
    assert caught.value.data["budgets_nbytes"]["PACKING"] > 4 * WEIGHT


def test_stages_within_a_budget_have_a_block_for_their_values():
    value_nbytes = WIDTH * 4
    fit = {"FIT_MEMORY": True, "VERIFY": "NO"}
    BlockPlugin.sizes.clear()
    with hetero.Core("inprocess", plugins=[BlockPlugin]) as core:
        core.compile_model(products(1), "BLOCK", {"VERIFY": "NO"}).close()
        core.compile_model(products(1), "BLOCK", fit).close()
        affinity = {"n0": "BLOCK", "n1": "CPU", "n2": "BLOCK"}
        core.compile_model(products(3), "HETERO:BLOCK,CPU", fit, affinity=affinity).close()
    # A product reads a value, which is outside of the block, and writes another; the factor is 2.
    assert BlockPlugin.sizes == [0, *[(2 * 2 - 1) * value_nbytes] * 3]


@pytest.mark.parametrize("replicas", [2, "1..2"])
def test_replicas_of_a_model_that_must_fit_are_refused(replicas):
    config = {"FIT_MEMORY": True, "REPLICAS": replicas}
    with (
        hetero.Core("inprocess", devices={"CPU": 2}) as core,
        pytest.raises(PropertyError, match="one copy of the model, got REPLICAS="),
    ):
        core.compile_model(products(4), "HETERO:CPU.0,CPU.1", config)


def test_requests_in_flight_are_limited_by_memory():
    request_nbytes = 2 * WIDTH * 4
    run_nbytes = 3 * WIDTH * 4  # the input, which the request holds, and two values
    room = 8 * WEIGHT + run_nbytes + 3 * request_nbytes
    with (
        hetero.Core("inprocess", plugins=[PackingPlugin]) as core,
        core.compile_model(
            products(4), "PACKING", options(room) | {"DEVICE_MEMORY_NBYTES": {"PACKING": room}}
        ) as compiled,
    ):
        assert compiled.get_property("MAX_REQUESTS_IN_FLIGHT") == 4
        assert compiled.deployment.limits.requests == 4


def test_device_of_unknown_memory_is_named(monkeypatch):
    monkeypatch.setattr("hetero.scheduler.device.discovery._node_memory_nbytes", lambda: None)
    with (
        hetero.Core("inprocess") as core,
        pytest.raises(PlanError, match="set it with --memory CPU=2GB") as caught,
    ):
        core.compile_model(products(2), "CPU", {"FIT_MEMORY": True})
    assert caught.value.data["unknown_devices"] == ("CPU",)


def test_budget_below_the_smallest_stage_is_an_error():
    config = {"FIT_MEMORY": True, "DEVICE_MEMORY_NBYTES": {"PACKING": 1000}}
    with (
        hetero.Core("inprocess", plugins=[PackingPlugin]) as core,
        pytest.raises(PlanError, match="does not fit PACKING") as caught,
    ):
        core.compile_model(products(2), "PACKING", config)
    assert caught.value.data["smallest_stage_nbytes"] > WEIGHT


def test_open_sizes_are_requested():
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[rows, 4] x) => (float[rows, 4] y) { y = Relu(x) }
    """
    with (
        hetero.Core("inprocess") as core,
        pytest.raises(PlanError, match="--shape x=1,4") as caught,
    ):
        core.compile_model(parse_model(text), "CPU", {"FIT_MEMORY": True})
    assert caught.value.data["open_dimensions"] == {"x": ("rows",)}
