"""Devices, options, pins and exports of an import, from a blob that the test describes."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hetero.affinity.affinity import Affinity
from hetero.cache import blob as blob_module
from hetero.cache.blob import DeviceRecord, open_blob
from hetero.cache.import_model import (
    WITHOUT_EXPORT,
    check_stages,
    import_options,
    map_devices,
    recompilation_pins,
)
from hetero.devices.errors import ArgumentTypeError, BlobError, UnknownDeviceError
from hetero.devices.plugin.program import Payload
from hetero.devices.plugin.properties import Property
from hetero.scheduler.formats.blob_writer import BlobWriter
from hetero.scheduler.formats.stored_payload import PAYLOADS
from tests.support.compile_requests import PROPERTIES, compile_request, descriptor

TABLE = PROPERTIES.extended(Property("PROVIDER_OPTIONS", dict, {}, True, "Options."))


def blob(**values: Any) -> Any:
    """Return a blob of a model on X.0 and Y.0."""
    head = {
        "options": {},
        "device_options": {},
        "pins": {},
        "devices": {d: DeviceRecord.of(descriptor(d)) for d in ("X.0", "Y.0")},
    }
    head |= {name: values.pop(name) for name in list(values) if name in head}
    plans = [SimpleNamespace(stages=[SimpleNamespace(device=d) for d in ("X.0", "Y.0", "X.0")])]
    defaults = {
        "name": "m",
        "devices": ("X.0", "Y.0"),
        "head": SimpleNamespace(**head),
        "affinities": [{"a": "X.0", "b": "Y.0", "c": "X.0"}],
        "blob": SimpleNamespace(path="file"),
        "plans": plans,
        "contents": {},
    }
    return SimpleNamespace(**{**defaults, **values})


# Devices.


@pytest.mark.parametrize(
    ("available", "remap", "expected"),
    [
        (["X.0", "Y.0", "Z"], None, {"X.0": "X.0", "Y.0": "Y.0"}),
        (["X.0"], None, {"X.0": "X.0"}),
        (["X", "Y.0"], {}, {"X.0": "X", "Y.0": "Y.0"}),
        (["X.0", "Z"], {"Y.0": "Z"}, {"X.0": "X.0", "Y.0": "Z"}),
        (["Z"], {"X.0": "Z", "Y.0": "Z.0"}, {"X.0": "Z", "Y.0": "Z"}),
        (["Z"], {"X.0": "X.0"}, {}),  # a device that stays may be absent
    ],
)
def test_devices_of_a_blob(available, remap, expected):
    assert map_devices(blob(), available, remap) == expected


def test_device_that_cannot_be_replaced():
    with pytest.raises(BlobError, match=r"compiled for X\.0, Y\.0, not for 'W'"):
        map_devices(blob(), ["X.0"], {"W": "X.0"})
    with pytest.raises(UnknownDeviceError, match=r"remap=\{'Y\.0': 'CPU'\}") as caught:
        map_devices(blob(), ["X.0", "Z.0"], {"Y.0": "W"})
    assert (caught.value.data["device"], caught.value.data["devices"]) == ("W", ("W",))
    assert "compiled for X.0, Y.0; not available: W." in str(caught.value)
    assert "Available devices: X.0, Z.0." in str(caught.value)
    for bad in (["X.0"], "X.0=Y.0"):
        with pytest.raises(ArgumentTypeError, match="expected a mapping"):
            map_devices(blob(), ["X.0"], bad)  # type: ignore[arg-type]


# Options.


def options(source: Any, device_map: dict[str, str], **caller: Any) -> dict[str, Any]:
    return import_options(source, device_map, caller, dict.fromkeys(device_map.values(), TABLE))


def test_options_of_the_caller_precede_those_of_the_blob():
    source = blob(options={"REQUEST_TIMEOUT_S": 3.0, "MAX_ATTEMPTS": 2, "MAX_SUBGRAPHS": 0})
    devices = {"DEVICE_PROPERTIES": {"X.0": {}}}
    assert options(source, {"X.0": "X.0"}) == {
        "REQUEST_TIMEOUT_S": 3.0,
        "MAX_ATTEMPTS": 2,
        **devices,
    }
    assert options(source, {"X.0": "X.0"}, MAX_ATTEMPTS=7) == {
        "REQUEST_TIMEOUT_S": 3.0,
        "MAX_ATTEMPTS": 7,
        **devices,
    }


def test_options_of_this_machine_and_unknown_ones_are_dropped():
    dropped = {"CACHE_DIR": "/etc", "COST_FILE": "/etc/passwd", "UNKNOWN": 1, "NETWORK_NAME": "m"}
    assert options(blob(options=dropped), {}) == {"DEVICE_PROPERTIES": {}}


def test_memory_follows_the_devices():
    source = blob(options={"DEVICE_MEMORY_NBYTES": {"X.0": 5, "Y.0": 6}})
    assert options(source, {"X.0": "Z.0"})["DEVICE_MEMORY_NBYTES"] == {"Z.0": 5}


def test_options_of_devices():
    source = blob(
        device_options={
            "X.0": {"NUM_STREAMS": 3, "PERF_COUNT": True, "INFERENCE_NUM_THREADS": 2, "Q": 1},
            "Y.0": {"NUM_STREAMS": 4},
        }
    )
    device_map = {"X.0": "Z.0", "Y.0": "Y.0"}
    result = options(
        source, device_map, PERF_COUNT=False, DEVICE_PROPERTIES={"Z.0": {"NUM_STREAMS": 9}}
    )
    assert result["DEVICE_PROPERTIES"] == {
        "Z.0": {"NUM_STREAMS": 9, "INFERENCE_NUM_THREADS": 2},
        "Y.0": {"NUM_STREAMS": 4},
    }


def test_provider_options_with_file_names_are_removed():
    names = [
        "arena",
        "Model_PATH",
        "cache_DIR",
        "logFile",
        "Dump",
        "name_prefix",
        "CONFIG",
        "level",
    ]
    values = {"PROVIDER_OPTIONS": dict.fromkeys(names, "1")}
    result = options(blob(device_options={"X.0": values}), {"X.0": "X.0"})
    assert result["DEVICE_PROPERTIES"]["X.0"] == {"PROVIDER_OPTIONS": {"arena": "1", "level": "1"}}


def test_damaged_options_name_the_blob():
    with pytest.raises(BlobError, match=r"^blob file: .*MAX_ATTEMPTS"):
        options(blob(options={"MAX_ATTEMPTS": "many"}), {})
    with pytest.raises(BlobError, match=r"^blob file: .*NUM_STREAMS"):
        options(blob(device_options={"X.0": {"NUM_STREAMS": 0}}), {"X.0": "X.0"})


# Pins.


@pytest.mark.parametrize(
    ("pins", "device_map", "expected"),
    [
        ({}, {"X.0": "X.0", "Y.0": "Y.0"}, {}),
        ({"a": "X.0"}, {"X.0": "X.0", "Y.0": "Y.0"}, {"a": "X.0"}),
        ({}, {"X.0": "X", "Y.0": "Y.0"}, {}),  # another name of the same device
        ({}, {"X.0": "Z.0", "Y.0": "Y.0"}, {"a": "Z.0", "c": "Z.0"}),
        ({"b": "Y.0"}, {"X.0": "Z.0", "Y.0": "Y.0"}, {"a": "Z.0", "b": "Y.0", "c": "Z.0"}),
        ({"b": "Y.0"}, {"X.0": "X.0"}, {}),
    ],
)
def test_pins_of_a_recompilation(pins, device_map, expected):
    assert recompilation_pins(blob(pins=pins), device_map) == expected


def test_dropped_pins_are_logged(caplog):
    pins = Affinity({"b": "Y.0", "a": "X.0"})
    assert recompilation_pins(blob(pins=pins), {"X.0": "X.0"}) == {"a": "X.0"}
    assert "dropped pins on unavailable devices: ['b']" in caplog.text


# Exports.


def reasons(source: Any, request: Any, *targets: str) -> list[str]:
    """Return why the exports of the three stages are incompatible with these devices."""
    stages = [SimpleNamespace(device=device) for device in targets or ("X.0", "Y.0", "X.0")]
    placement: Any = SimpleNamespace(plan=SimpleNamespace(stages=stages))
    checks = check_stages(source, [placement], request)
    assert [check.index for check in checks] == [0, 1, 2]
    return [check.reason for check in checks]


@pytest.mark.parametrize("field", ["plugin", "version", "fingerprint"])
def test_export_of_another_device_is_incompatible(field):
    other = compile_request(descriptor("X.0", **{field: "other"}), "Y.0")
    first, second, third = reasons(blob(), other)
    assert first == third == "exported by X 1.0 (fingerprint)"
    assert second == ""
    assert reasons(blob(), compile_request("X.0", "Y.0")) == [""] * 3


def test_exports_of_two_devices_on_one_are_checked_apart():
    request = compile_request("X.0", "Y.0")
    of_x, of_y = (f"exported by {name} 1.0 (fingerprint)" for name in "XY")
    assert reasons(blob(), request, "X.0", "X.0", "X.0") == ["", of_y, ""]
    assert reasons(blob(), request, "Y.0", "Y.0", "Y.0") == [of_x, "", of_x]


def test_export_with_other_options_is_incompatible():
    name = "DISABLE_TRANSFORMATIONS"
    changed = compile_request("X.0", "Y.0", configs={"Y.0": {name: True}})
    assert reasons(blob(), changed) == ["", f"with other {name}", ""]
    same = blob(device_options={"Y.0": {name: True, "NUM_STREAMS": 3}})
    assert reasons(same, changed) == [""] * 3


@pytest.mark.parametrize(
    ("payloads", "missing"),
    [([1, None, 2], [1]), ([1], []), ([None], [0]), (None, []), ("damaged", [])],
)
def test_stage_without_an_export(payloads, missing):
    result = reasons(blob(contents={PAYLOADS: payloads}), compile_request("X.0", "Y.0"))
    assert [i for i, reason in enumerate(result) if reason == WITHOUT_EXPORT] == missing


# Files.


def test_blob_of_a_file_that_was_just_written():
    stream = io.BytesIO()
    BlobWriter().write(stream, {"text": "x"})
    for position in (0, stream.tell()):
        stream.seek(position)
        assert open_blob(stream).contents()["text"] == "x"
    unseekable: Any = SimpleNamespace(read=lambda: b"", seekable=lambda: False)
    with pytest.raises(BlobError):
        open_blob(unseekable)
    with pytest.raises(ArgumentTypeError, match="got int"):
        open_blob(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("nbytes", "expected"), [(64, True), (65, False)])
def test_small_export_has_few_bytes_of_its_own(nbytes, expected, monkeypatch):
    monkeypatch.setattr(blob_module, "_MAX_OWN_NBYTES", 64)
    weights = {"w": np.arange(100, dtype=np.float32)}
    tensors = {"w": weights["w"].copy(), "own": np.zeros(nbytes, np.uint8)}
    assert blob_module._is_small(Payload({}, tensors), weights) == expected
    assert not blob_module._is_small(Payload({}, tensors), {})
