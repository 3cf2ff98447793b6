"""Checks of properties: what can be read, what can be set, and what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

from hetero.devices.conformance.expectation import expect, expect_raises
from hetero.devices.conformance.query_checks import supported_samples
from hetero.devices.conformance.subject import Subject
from hetero.devices.errors import PropertyError, ReadOnlyPropertyError, UnknownPropertyError


def check_every_property_can_be_read(subject: Subject) -> None:
    """SUPPORTED_PROPERTIES names what get_property gives, of the declared type."""
    names = subject.get_property("SUPPORTED_PROPERTIES")
    expect("PERF_COUNT" in names, f"SUPPORTED_PROPERTIES is without PERF_COUNT: {names}")
    for name in names:
        declared, value = subject.properties[name], subject.get_property(name)
        # Applications get tuples as OpenVINO's do: lists, and of properties what may be done.
        also: dict[type, tuple[type, ...]] = {float: (int,), tuple: (list, dict)}
        kinds = (declared.type, *also.get(declared.type, ()))
        expect(isinstance(value, kinds), f"{name}: {value!r} is not a {declared.type.__name__}")
        expect(declared.doc, f"{name} has no sentence that says what it is")


def check_every_default_is_accepted(subject: Subject) -> None:
    """A mutable property takes its own default, and gives it back."""
    for declared in subject.properties.values():
        # Options of single devices are only given to compile_model.
        if not declared.mutable or declared.name == "DEVICE_PROPERTIES":
            continue
        value = subject.get_property(declared.name)
        subject.set_property({declared.name: value})
        got = subject.get_property(declared.name)
        expect(got == value, f"{declared.name}: set {value!r}, got {got!r}")


def check_set_property_is_kept(subject: Subject) -> None:
    """What is set is read back, and is the default of models compiled later."""
    model = supported_samples(subject)[0].model
    before = subject.get_property("PERF_COUNT")
    subject.set_property({"PERF_COUNT": not before})
    try:
        expect(subject.get_property("PERF_COUNT") is not before, "PERF_COUNT was not kept")
        for config, want, fault in (
            ({}, not before, "it is not the new default"),
            ({"PERF_COUNT": before}, before, "what compile_model is given must win"),
        ):
            compiled = subject.compile_model(model, config)
            expect(compiled.get_property("PERF_COUNT") is want, fault)
            compiled.close()
        expect(subject.get_property("PERF_COUNT") is not before, "compiling must not change it")
    finally:
        subject.set_property({"PERF_COUNT": before})


def check_unknown_property_is_refused(subject: Subject) -> None:
    """Reading, setting, compiling with an unknown property: an error that lists what there is."""
    model = supported_samples(subject)[0].model
    for act in (
        lambda: subject.get_property("NO_SUCH_THING"),
        lambda: subject.set_property({"NO_SUCH_THING": 1}),
        lambda: subject.compile_model(model, {"NO_SUCH_THING": 1}),
    ):
        error = expect_raises(UnknownPropertyError, act, "an unknown property")
        expect("PERF_COUNT" in str(error), "the error does not list the properties")


def check_read_only_property_is_refused(subject: Subject) -> None:
    """Setting a read-only property is an error, as is compiling with it."""
    model = supported_samples(subject)[0].model
    compile_model = partial(subject.compile_model, model, {"NETWORK_NAME": "other"})
    expect_raises(ReadOnlyPropertyError, compile_model, "compiling with NETWORK_NAME")
    for declared in subject.properties.values():
        if not declared.mutable:
            act = partial(subject.set_property, {declared.name: declared.default})
            expect_raises(ReadOnlyPropertyError, act, declared.name)


def check_wrong_property_values_are_refused(subject: Subject) -> None:
    """Values of another type or out of range: an error, and nothing changes."""
    wrong: dict[str, Any] = {
        "PERF_COUNT": -1,
        "NUM_STREAMS": -10,
        "EXCLUSIVE_ASYNC_REQUESTS": "perhaps",
        "CACHE_DIR": 5,
        "INFERENCE_NUM_THREADS": -1,
    }
    for name, value in wrong.items():
        if name not in subject.properties:
            continue
        before = subject.get_property(name)
        act = partial(subject.set_property, {name: value})
        expect_raises(PropertyError, act, f"{name}={value!r}")
        expect(subject.get_property(name) == before, f"{name} changed though it was refused")
