"""Checks of a plugin itself: its name, device ids, properties and payloads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hetero.devices.conformance.expectation import expect, expect_raises
from hetero.devices.conformance.plugin_subject import PluginSubject
from hetero.devices.conformance.query_checks import supported_samples
from hetero.devices.conformance.samples import samples
from hetero.devices.errors import HeteroError, UnknownDeviceError, UnsupportedOperationError
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import Payload
from hetero.devices.plugin.properties import COMMON_PROPERTIES
from hetero.devices.plugin.registry import RESERVED_NAMES


def check_plugin_name_is_valid(plugin: Plugin) -> None:
    """Expect a name without separators of device strings, and not a reserved word."""
    expect(
        plugin.name and not set(plugin.name) & set(".:, "),
        f"plugin name {plugin.name!r} is empty, or contains one of '.:, '",
    )
    expect(plugin.name not in RESERVED_NAMES, f"plugin name {plugin.name!r} is reserved")


def check_devices_have_names_and_fingerprints(plugin: Plugin) -> None:
    """Expect valid unique device ids with a name and a fingerprint, and a plugin version."""
    ids = plugin.device_ids()
    expect(ids and len(set(ids)) == len(ids), f"expected unique device ids, got {ids}")
    expect(plugin.version(), "version() is empty; the cache needs it to distinguish models")
    for device_id in ids:
        separators = set(device_id) & set(":, ")
        expect(
            device_id and not separators,
            f"device id {device_id!r} is empty, or contains one of ':, '",
        )
        expect(plugin.full_name(device_id), f"device {device_id} has no full name")
        expect(plugin.fingerprint(device_id), f"device {device_id} has no fingerprint")
        expect(
            plugin.fingerprint(device_id) == plugin.fingerprint(device_id),
            f"device {device_id}: its fingerprint changes between calls",
        )


def check_unknown_device_id_raises(plugin: Plugin) -> None:
    """Expect UnknownDeviceError that lists the ids."""
    for unknown_id in ("10", "110", "l0"):
        if unknown_id not in plugin.device_ids():
            error = expect_raises(
                UnknownDeviceError,
                lambda i=unknown_id: plugin.effective_config({"DEVICE_ID": i}),  # type: ignore[misc]
                f"DEVICE_ID {unknown_id!r}",
            )
            expect(plugin.device_ids()[0] in str(error), "the error does not list the ids")


def check_properties_depend_on_the_device_id(plugin: Plugin) -> None:
    """Expect the properties of the device whose id is passed; UnknownDeviceError for other ids."""
    for device_id in plugin.device_ids():
        for name, expected in (
            ("DEVICE_ID", device_id),
            ("FULL_DEVICE_NAME", plugin.full_name(device_id)),
            *plugin.device_properties(device_id).items(),
        ):
            actual = plugin.get_property(name, device_id)
            expect(
                actual == expected,
                f"{name} of device {device_id}: expected {expected!r}, got {actual!r}",
            )
    expect_raises(
        UnknownDeviceError, lambda: plugin.get_property("FULL_DEVICE_NAME", "l0"), "device id l0"
    )


def check_query_returns_the_device_id(plugin: Plugin) -> None:
    """Expect query results for the device whose id is passed."""
    for device_id in plugin.device_ids():
        device = f"{plugin.name}.{device_id}"
        for sample in samples():
            support = plugin.query_model(sample.model, {"DEVICE_ID": device_id})
            devices = set(support.values()) | {d for r in support.unsupported.values() for d in r}
            expect(
                devices <= {device}, f"{sample.name}: expected results of {device}, got {devices}"
            )


def check_invalid_payloads_raise(plugin: Plugin) -> None:
    """Expect a HeteroError for empty, foreign and damaged payloads."""
    sample = supported_samples(PluginSubject(plugin))[0]
    invalid_payloads = [
        Payload({}, {}),
        Payload({"format": "of another device"}, {"w": np.zeros(3)}),
    ]
    try:
        payload = plugin.compile_model(sample.model).export_model()
    except UnsupportedOperationError:
        pass
    else:
        for key in payload.header:
            header = {k: v for k, v in payload.header.items() if k != key}
            invalid_payloads.append(replace(payload, header=header))
    for payload in invalid_payloads:
        expect_raises(
            HeteroError,
            lambda p=payload: plugin.import_model(p, sample.model),  # type: ignore[misc]
            f"a payload with header {sorted(payload.header)}",
        )


def check_common_properties_exist(plugin: Plugin) -> None:
    """Expect the properties that all devices have."""
    missing = set(COMMON_PROPERTIES) - set(plugin.properties)
    expect(not missing, f"common properties are missing: {sorted(missing)}")
    for name in ("FULL_DEVICE_NAME", "AVAILABLE_DEVICES", "DEVICE_TYPE", "EXECUTION_DEVICES"):
        expect(plugin.get_property(name), f"{name} is empty")
