"""Checks of properties: reading, setting, and errors."""

from __future__ import annotations

from functools import partial
from typing import Any

from hetero.devices.conformance.expectation import expect, expect_raises
from hetero.devices.conformance.query_checks import supported_samples
from hetero.devices.conformance.subject import Subject
from hetero.devices.errors import PropertyError, ReadOnlyPropertyError, UnknownPropertyError


def check_properties_are_readable(subject: Subject) -> None:
    """Expect a value of the declared type for each name in SUPPORTED_PROPERTIES."""
    names = subject.get_property("SUPPORTED_PROPERTIES")
    expect("PERF_COUNT" in names, f"SUPPORTED_PROPERTIES lacks PERF_COUNT: {names}")
    for name in names:
        declaration, value = subject.properties[name], subject.get_property(name)
        # Like OpenVINO, a Core returns tuples as lists, and SUPPORTED_PROPERTIES as a dict.
        conversions: dict[type, tuple[type, ...]] = {float: (int,), tuple: (list, dict)}
        kinds = (declaration.type, *conversions.get(declaration.type, ()))
        expect(
            isinstance(value, kinds),
            f"{name}: expected a {declaration.type.__name__}, got {value!r}",
        )
        expect(declaration.doc, f"{name} has no description")


def check_defaults_can_be_set(subject: Subject) -> None:
    """Expect to set each mutable property to its default, and to read it back."""
    for declaration in subject.properties.values():
        # Only compile_model accepts the options of single devices.
        if not declaration.mutable or declaration.name == "DEVICE_PROPERTIES":
            continue
        value = subject.get_property(declaration.name)
        subject.set_property({declaration.name: value})
        actual = subject.get_property(declaration.name)
        expect(actual == value, f"{declaration.name}: set {value!r}, got {actual!r}")


def check_set_property_changes_defaults(subject: Subject) -> None:
    """Expect that a property set is the default of later models, and that options override it."""
    model = supported_samples(subject)[0].model
    before = subject.get_property("PERF_COUNT")
    subject.set_property({"PERF_COUNT": not before})
    try:
        expect(subject.get_property("PERF_COUNT") is not before, "PERF_COUNT did not change")
        for config, expected, message in (
            ({}, not before, "PERF_COUNT as set is not the default of compile_model"),
            ({"PERF_COUNT": before}, before, "compile_model's option does not override PERF_COUNT"),
        ):
            compiled = subject.compile_model(model, config)
            expect(compiled.get_property("PERF_COUNT") is expected, message)
            compiled.close()
        expect(
            subject.get_property("PERF_COUNT") is not before,
            "compile_model's option changed the default of PERF_COUNT",
        )
    finally:
        subject.set_property({"PERF_COUNT": before})


def check_unknown_property_raises(subject: Subject) -> None:
    """Expect UnknownPropertyError that lists the properties, in all three calls."""
    model = supported_samples(subject)[0].model
    for action in (
        lambda: subject.get_property("NO_SUCH_THING"),
        lambda: subject.set_property({"NO_SUCH_THING": 1}),
        lambda: subject.compile_model(model, {"NO_SUCH_THING": 1}),
    ):
        error = expect_raises(UnknownPropertyError, action, "an unknown property")
        expect("PERF_COUNT" in str(error), "the error does not list the properties")


def check_read_only_property_raises(subject: Subject) -> None:
    """Expect ReadOnlyPropertyError for setting a read-only property, and compiling with it."""
    model = supported_samples(subject)[0].model
    compile_model = partial(subject.compile_model, model, {"NETWORK_NAME": "other"})
    expect_raises(ReadOnlyPropertyError, compile_model, "compiling with NETWORK_NAME")
    for declaration in subject.properties.values():
        if not declaration.mutable:
            action = partial(subject.set_property, {declaration.name: declaration.default})
            expect_raises(ReadOnlyPropertyError, action, declaration.name)


def check_invalid_property_values_raise(subject: Subject) -> None:
    """Expect PropertyError for values of a wrong type or range, and no change."""
    invalid_values: dict[str, Any] = {
        "PERF_COUNT": -1,
        "NUM_STREAMS": -10,
        "EXCLUSIVE_ASYNC_REQUESTS": "perhaps",
        "CACHE_DIR": 5,
        "INFERENCE_NUM_THREADS": -1,
    }
    for name, value in invalid_values.items():
        if name not in subject.properties:
            continue
        before = subject.get_property(name)
        action = partial(subject.set_property, {name: value})
        expect_raises(PropertyError, action, f"{name}={value!r}")
        expect(subject.get_property(name) == before, f"{name} changed despite the error")
