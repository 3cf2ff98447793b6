"""A compilation without devices that are gone: what is left, and where pins go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

import hetero
from hetero.compile.compiler import without_devices
from hetero.compile.stage_replicas import move_from_lost_devices
from hetero.devices.errors import DeviceError
from hetero.devices.model.reader import read_model
from hetero.properties.compile_request import CompileRequest
from tests.support.models import branches


@pytest.fixture(scope="module")
def core() -> Iterator[hetero.Core]:
    with hetero.Core(executor="inprocess", devices={"CPU": 2}) as core:
        yield core


def request(core: hetero.Core, **config: object) -> CompileRequest:
    pins = {"tanh": "CPU.1", "matmul": "ORT"}
    model = read_model(branches())
    return core._request(model, "HETERO:CPU.0,CPU.1,ORT", config, pins)


def test_pins_move_to_a_device_of_the_same_plugin(core: hetero.Core) -> None:
    left = without_devices(request(core, NUM_REPLICAS=3), ["CPU.1"])
    assert left.devices == ("CPU.0", "ORT")
    assert dict(left.pins) == {"tanh": "CPU.0", "matmul": "ORT"}
    assert left.hetero_config["NUM_REPLICAS"] == 2


@pytest.mark.parametrize(
    ("gone", "words"),
    [(["ORT"], "no other device of plugin ORT"), (["CPU.0", "CPU.1", "ORT"], "no device is left")],
)
def test_what_cannot_be_without_them_is_told(
    core: hetero.Core, gone: list[str], words: str
) -> None:
    with pytest.raises(DeviceError, match=words):
        without_devices(request(core), gone)


def test_a_cut_goes_to_devices_alike_with_the_least_to_do_and_the_memory(
    core: hetero.Core,
) -> None:
    source = request(core)
    cut = core._compiler.place(read_model(branches()), source, {})[0]
    assert [s.device for s in cut.plan.stages].count("ORT") == 1
    rows = source.descriptors
    found = move_from_lost_devices(cut, ["CPU.1"], [row for row in rows if row.name != "CPU.1"])
    assert found is not None
    assert [s.device for s in found.plan.stages] == [
        {"CPU.1": "CPU.0"}.get(s.device, s.device) for s in cut.plan.stages
    ]
    assert move_from_lost_devices(cut, ["ORT"], [row for row in rows if row.name != "ORT"]) is None
    small = [replace(row, memory_nbytes=0) for row in rows if row.name != "CPU.1"]
    assert move_from_lost_devices(cut, ["CPU.1"], small) is None
