"""Device names: parsing, resolution, and errors of invalid names."""

from __future__ import annotations

import pytest

from hetero.devices.errors import UnknownDeviceError
from hetero.scheduler import DeviceRequest, parse_device, resolve_device, resolve_name
from hetero.scheduler.device.discovery import with_cluster_names
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.device_names import assign_names, match_name

AVAILABLE = ("CPU", "ORT.0", "ORT.1", "NULL")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CPU", DeviceRequest(False, ("CPU",))),
        (" ORT.1 ", DeviceRequest(False, ("ORT.1",))),
        ("HETERO", DeviceRequest(True, ())),
        ("HETERO:ORT, CPU", DeviceRequest(True, ("ORT", "CPU"))),
        ("HETERO:CPU,CPU", DeviceRequest(True, ("CPU",))),
        ("HETERO: CPU.0 ,CPU", DeviceRequest(True, ("CPU",))),
    ],
)
def test_parse(text, expected):
    assert parse_device(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty entry"),
        ("HETERO:", "empty entry"),
        ("HETERO:CPU,,ORT", "empty entry"),
        ("CPU,ORT", "write HETERO:CPU,ORT"),
        ("MULTI:CPU", "write HETERO:CPU"),
        ("AUTO", "write HETERO"),
        ("AUTO:CPU", "write HETERO:CPU"),
    ],
)
def test_invalid_device_string_error_shows_valid_ones(text, message):
    with pytest.raises(UnknownDeviceError, match=message):
        parse_device(text)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("CPU", "CPU"), ("CPU.0", "CPU"), ("ORT", "ORT.0"), ("ORT.0", "ORT.0"), ("ORT.1", "ORT.1")],
)
def test_resolve_with_and_without_id(name, expected):
    assert resolve_name(name, AVAILABLE) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("OV", "OV.CPU"),
        ("OV.CPU", "OV.CPU"),
        ("OV.GPU", "OV.GPU.0"),
        ("OV.GPU.1", "OV.GPU.1"),
        ("OV.NPU", None),
        ("OV.0", None),
        ("O", None),
        ("ORT", None),
        ("ORT.1", "ORT.1"),
    ],
)
def test_ids_may_be_names_and_default_to_the_first(name, expected):
    assert match_name(name, ("ORT.1", "OV.CPU", "OV.GPU.0", "OV.GPU.1")) == expected


def test_devices_whose_ids_are_names_keep_them():
    rows = [DeviceDescriptor("", "OV", i, "node") for i in ("CPU", "GPU.0")]
    rows.append(DeviceDescriptor("", "ORT", "0", "node"))
    assert [row.name for row in with_cluster_names(rows)] == ["OV.CPU", "OV.GPU.0", "ORT"]


def test_unknown_name_error_lists_devices_and_nearest():
    with pytest.raises(UnknownDeviceError, match=r"CPU, ORT.0, ORT.1, NULL.*Did you mean CPU"):
        resolve_name("cpu", AVAILABLE)


def test_unknown_id_error_lists_ids_of_the_plugin():
    with pytest.raises(
        UnknownDeviceError, match=r"The ORT devices are ORT.0, ORT.1; .*--devices ORT=2"
    ):
        resolve_name("ORT.7", AVAILABLE)


def test_missing_hardware_hint_names_the_driver():
    with pytest.raises(UnknownDeviceError, match=r"OV finds only OV\.CPU .*driver"):
        resolve_name("OV.GPU", ("OV.CPU", "ORT"))


def test_colon_between_devices_hint_names_the_comma():
    with pytest.raises(UnknownDeviceError, match=r"'ORT:CPU'; .* by commas: ORT,CPU\."):
        resolve_device("HETERO:ORT:CPU", AVAILABLE)


def test_resolve_a_list():
    assert resolve_device("HETERO:ORT,CPU,ORT.0", AVAILABLE) == ("ORT.0", "CPU")
    assert resolve_device("HETERO", AVAILABLE) == AVAILABLE


def test_only_device_has_no_number():
    assert assign_names(["CPU", "ORT", "ORT", "NULL"]) == ("CPU", "ORT.0", "ORT.1", "NULL")
