"""Compilation without lost devices: the remaining devices, pins and stages."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hetero
from hetero.compile.compiler import without_devices
from hetero.compile.replicas import move_from_lost_devices
from hetero.devices.errors import DeviceError
from hetero.devices.model.reader import read_model
from hetero.properties.compile_request import CompileRequest
from tests.support.core_fixtures import core_fixture
from tests.support.models import branches

core = core_fixture("module", devices={"CPU": 2})


def request(core: hetero.Core, **config: object) -> CompileRequest:
    pins = {"tanh": "CPU.1", "matmul": "ORT"}
    model = read_model(branches())
    return core._request(model, "HETERO:CPU.0,CPU.1,ORT", config, pins)


def test_pins_move_to_device_of_the_same_plugin(core):
    remaining = without_devices(request(core, REPLICAS=3), ["CPU.1"])
    assert remaining.devices == ("CPU.0", "ORT")
    assert dict(remaining.pins) == {"tanh": "CPU.0", "matmul": "ORT"}
    assert remaining.hetero_config["REPLICAS"] == 2


@pytest.mark.parametrize(
    ("lost_devices", "pattern"),
    [(["ORT"], "no other device of plugin ORT"), (["CPU.0", "CPU.1", "ORT"], "no device remains")],
)
def test_compilation_that_needs_lost_devices_is_rejected(core, lost_devices, pattern):
    with pytest.raises(DeviceError, match=pattern):
        without_devices(request(core), lost_devices)


def test_stages_move_to_idle_device_of_same_plugin(
    core,
):
    source = request(core)
    placement = core._compiler.place(read_model(branches()), source, {})[0]
    assert [s.device for s in placement.plan.stages].count("ORT") == 1
    descriptors = source.descriptors
    new_placement = move_from_lost_devices(
        placement,
        ["CPU.1"],
        [descriptor for descriptor in descriptors if descriptor.name != "CPU.1"],
    )
    assert new_placement is not None
    assert [s.device for s in new_placement.plan.stages] == [
        {"CPU.1": "CPU.0"}.get(s.device, s.device) for s in placement.plan.stages
    ]
    assert (
        move_from_lost_devices(
            placement,
            ["ORT"],
            [descriptor for descriptor in descriptors if descriptor.name != "ORT"],
        )
        is None
    )
    without_memory = [
        replace(descriptor, memory_nbytes=0)
        for descriptor in descriptors
        if descriptor.name != "CPU.1"
    ]
    assert move_from_lost_devices(placement, ["CPU.1"], without_memory) is None
