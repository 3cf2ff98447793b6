"""Checks of a plugin's name, devices and properties."""

from __future__ import annotations

from typing import Any

from devices.conformance.expectation import expect, expect_raises
from devices.errors import (
    PropertyError,
    ReadOnlyPropertyError,
    UnknownDeviceError,
    UnknownPropertyError,
    UnsupportedOperationError,
)
from devices.plugin.plugin import Plugin
from devices.plugin.properties import COMMON_PROPERTIES, Property
from devices.plugin.registry import RESERVED_NAMES
from devices.plugin.remote import RemoteContext


def check_name_can_be_part_of_a_device_name(plugin: Plugin) -> None:
    """Dots, colons and commas part names; some words mean ways of choosing devices."""
    expect(plugin.name and not set(plugin.name) & set(".:, "), f"name {plugin.name!r}")
    expect(plugin.name not in RESERVED_NAMES, f"name {plugin.name!r} is reserved")


def check_devices_are_described(plugin: Plugin) -> None:
    """Each id fits into a device name, and has a name and a fingerprint; the plugin a version."""
    ids = plugin.device_ids()
    expect(ids and len(set(ids)) == len(ids), f"device ids {ids} are none, or not distinct")
    expect(plugin.version(), "version() is empty: cached models could not be distinguished")
    for device_id in ids:
        parts = set(device_id) & set(":, ")
        expect(device_id and not parts, f"device id {device_id!r} is empty, or has one of ':, '")
        expect(plugin.full_name(device_id), f"device {device_id} has no full name")
        expect(plugin.fingerprint(device_id), f"device {device_id} has no fingerprint")
        expect(
            plugin.fingerprint(device_id) == plugin.fingerprint(device_id),
            f"device {device_id}: its fingerprint is another one at each call",
        )


def check_unknown_device_id_is_refused(plugin: Plugin) -> None:
    """An id that is not there is an error that lists those that are."""
    for absent in ("10", "110", "l0"):
        if absent not in plugin.device_ids():
            error = expect_raises(
                UnknownDeviceError,
                lambda i=absent: plugin.effective_config({"DEVICE_ID": i}),  # type: ignore[misc]
                f"DEVICE_ID {absent!r}",
            )
            expect(plugin.device_ids()[0] in str(error), "the error does not list the ids")


def check_properties_are_each_devices_own(plugin: Plugin) -> None:
    """What depends on the device is asked with its id; an id that is not there is an error."""
    for device_id in plugin.device_ids():
        for name, want in (
            ("DEVICE_ID", device_id),
            ("FULL_DEVICE_NAME", plugin.full_name(device_id)),
            *plugin.device_properties(device_id).items(),
        ):
            got = plugin.get_property(name, device_id)
            expect(got == want, f"{name} of device {device_id} is {got!r}, not {want!r}")
    expect_raises(
        UnknownDeviceError, lambda: plugin.get_property("FULL_DEVICE_NAME", "l0"), "device id l0"
    )


def check_every_property_can_be_read(plugin: Plugin) -> None:
    """SUPPORTED_PROPERTIES names what get_property gives, of the declared type."""
    names = plugin.get_property("SUPPORTED_PROPERTIES")
    missing = set(COMMON_PROPERTIES) - set(names)
    expect(not missing, f"properties that every device has are missing: {sorted(missing)}")
    for name in names:
        declared, value = plugin.properties[name], plugin.get_property(name)
        kinds: tuple[type, ...] = (
            (declared.type, int) if declared.type is float else (declared.type,)
        )
        expect(isinstance(value, kinds), f"{name}: {value!r} is not a {declared.type.__name__}")
        expect(declared.doc, f"{name} has no sentence that says what it is")
    for name in ("FULL_DEVICE_NAME", "AVAILABLE_DEVICES", "DEVICE_TYPE", "EXECUTION_DEVICES"):
        expect(plugin.get_property(name), f"{name} is empty")


def check_every_default_is_accepted(plugin: Plugin) -> None:
    """A mutable property takes its own default, and gives it back."""
    for declared in _mutable(plugin):
        value = plugin.get_property(declared.name)
        plugin.set_property({declared.name: value})
        got = plugin.get_property(declared.name)
        expect(got == value, f"{declared.name}: set {value!r}, got {got!r}")


def check_set_property_is_kept(plugin: Plugin) -> None:
    """What is set is read back, and is the default of models compiled later."""
    before = plugin.get_property("PERF_COUNT")
    plugin.set_property({"PERF_COUNT": not before})
    try:
        expect(plugin.get_property("PERF_COUNT") is not before, "PERF_COUNT was not kept")
        expect(plugin.effective_config()["PERF_COUNT"] is not before, "it is not the new default")
        given = plugin.effective_config({"PERF_COUNT": before})
        expect(given["PERF_COUNT"] is before, "what compile_model is given must win")
        expect(plugin.get_property("PERF_COUNT") is not before, "compiling must not change it")
    finally:
        plugin.set_property({"PERF_COUNT": before})


def check_unknown_property_is_refused(plugin: Plugin) -> None:
    """Reading, setting, compiling with an unknown property: an error that lists what there is."""
    for act in (
        lambda: plugin.get_property("NO_SUCH_THING"),
        lambda: plugin.set_property({"NO_SUCH_THING": 1}),
        lambda: plugin.effective_config({"NO_SUCH_THING": 1}),
    ):
        error = expect_raises(UnknownPropertyError, act, "an unknown property")
        expect("PERF_COUNT" in str(error), "the error does not list the properties")


def check_read_only_property_is_refused(plugin: Plugin) -> None:
    """Setting a read-only property is an error, as is compiling with it."""
    for declared in plugin.properties.values():
        if not declared.mutable:
            config = {declared.name: declared.default}
            act = lambda c=config: plugin.set_property(c)  # noqa: E731 - one line of its own
            expect_raises(ReadOnlyPropertyError, act, declared.name)


def check_wrong_property_values_are_refused(plugin: Plugin) -> None:
    """Values of another type or out of range: an error, and nothing changes."""
    wrong: dict[str, Any] = {
        "PERF_COUNT": -1,
        "NUM_STREAMS": -10,
        "EXCLUSIVE_ASYNC_REQUESTS": "perhaps",
        "CACHE_DIR": 5,
        "INFERENCE_NUM_THREADS": -1,
    }
    for name, value in wrong.items():
        if name not in plugin.properties:
            continue
        before = plugin.get_property(name)
        act = lambda n=name, v=value: plugin.set_property({n: v})  # noqa: E731 - as above
        expect_raises(PropertyError, act, f"{name}={value!r}")
        expect(plugin.get_property(name) == before, f"{name} changed though it was refused")


def check_remote_memory_is_there_or_refused(plugin: Plugin) -> None:
    """create_context gives a context whose tensors come back, or says that there is none."""
    try:
        context = plugin.create_context()
    except UnsupportedOperationError:
        return
    expect(isinstance(context, RemoteContext), "create_context gives no RemoteContext")
    tensor = context.create_tensor("float32", (2, 3))
    expect(tensor.shape == (2, 3), f"asked for shape (2, 3), got {tensor.shape}")
    expect_raises(UnsupportedOperationError, lambda: tensor.data, "data of a remote tensor")
    expect(tensor.to_host().shape == (2, 3), "to_host gives another shape")


def _mutable(plugin: Plugin) -> list[Property]:
    return [p for p in plugin.properties.values() if p.mutable]
