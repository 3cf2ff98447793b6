"""A compilation without devices that are gone: what is left, and where pins go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hetero
from devices.errors import DeviceError
from devices.model.reader import read_model
from hetero.compile.compiler import without_devices
from hetero.properties.request import CompileRequest
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
    assert left.own["NUM_REPLICAS"] == 2


@pytest.mark.parametrize(
    ("gone", "words"),
    [(["ORT"], "no other ORT in"), (["CPU.0", "CPU.1", "ORT"], "no device is left")],
)
def test_what_cannot_be_without_them_is_told(
    core: hetero.Core, gone: list[str], words: str
) -> None:
    with pytest.raises(DeviceError, match=words):
        without_devices(request(core), gone)
