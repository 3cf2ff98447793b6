"""Every device, ours and the example of a third party's, passes the shipped suite."""

from dataclasses import replace

import pytest

from hetero.devices import Plugin, Refusal, load_plugins
from hetero.devices.errors import HeteroError, UnknownPropertyError
from hetero.devices.null.plugin import NullPlugin
from hetero.devices.testing import check_device, device_checks

PLUGINS = {
    name: entry
    for name, entry in load_plugins(
        [
            "hetero.examples.third_party_plugin:DensePlugin",
            "tests.emulated_gpu.plugin:EmulatedGPUPlugin",
        ]
    ).items()
    if name in ("CPU", "ORT", "OV", "NULL", "DENSE", "EGPU") or name.startswith("ORT_")
}
#: Where its wheel is not installed, the row of a plugin says so, and other tests look at it.
ABSENT = {name for name, entry in PLUGINS.items() if name == "OV" and not entry.plugin}

CHECKS = {check.__name__: check for check in device_checks()}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.sampled(3) if n in ("OV", "EGPU") else ()) for n in PLUGINS],
)
def test_device(name, check):
    entry = PLUGINS[name]
    if name in ABSENT:
        pytest.skip(entry.error)
    assert entry.plugin is not None, entry.error
    check(entry.plugin)


def test_the_suite_finds_what_is_wrong():
    """Each broken plugin fails the check that is about what it breaks, and says so."""
    dense = type(PLUGINS["DENSE"].plugin)

    class Program:
        def __init__(self, program, change):
            self.program, self.change = program, change

        def __getattr__(self, name):
            return getattr(self.program, name)

        def run(self, inputs, context):
            return self.change(inputs, self.program.run(inputs, context))

    def broken(change):
        class Broken(dense):
            def compile(self, model, config):
                return Program(super().compile(model, config), change)

        return Broken()

    wrong_values = broken(lambda inputs, outputs: [o + 1 for o in outputs])
    wrong_types = broken(lambda inputs, outputs: [o.astype("float64") for o in outputs])
    too_few = broken(lambda inputs, outputs: outputs[:-1])
    for plugin in (wrong_values, wrong_types, too_few):
        with pytest.raises((AssertionError, HeteroError)):
            CHECKS["check_answers_are_right"](plugin)
    with pytest.raises(AssertionError, match="check_answers_are_right"):
        check_device(wrong_values)

    class AnyDomain(dense):
        def refuse(self, node, model, config):
            return super().refuse(replace(node, domain=""), model, config)

    class AnyType(dense):
        def refuse(self, node, model, config):
            refusal = super().refuse(node, model, config)
            return None if refusal and refusal.code == "dtype" else refusal

    class Unexplained(NullPlugin):
        def refuse(self, node, model, config):
            open_shapes = [v for v in node.reads if not model.spec(v).is_static]
            return Refusal("policy", "it does not like this") if open_shapes else None

    for plugin, check in (
        (AnyDomain, "operators_of_other_domains_are_refused"),
        (AnyType, "element_types_that_are_taken_are_computed"),
        (Unexplained, "open_shapes_are_taken_or_refused_as_such"),
    ):
        with pytest.raises((AssertionError, HeteroError)):
            CHECKS[f"check_{check}"](plugin())

    class Unreasoned(dense):
        def get_property(self, name, device_id=None):
            try:
                return super().get_property(name, device_id)
            except UnknownPropertyError:
                return None

    with pytest.raises(AssertionError):
        CHECKS["check_unknown_property_is_refused"](Unreasoned())


def test_a_device_of_fixed_shapes_passes_the_suite():
    fixed = NullPlugin()
    fixed.set_property({"NULL_DYNAMIC_SHAPES": False})
    assert {result.error for result in check_device(fixed)} == {None}


def test_expected_failures_are_strict():
    plugin: Plugin = PLUGINS["NULL"].plugin
    results = check_device(plugin)
    assert {r.error for r in results} == {None}
    assert [r.name for r in results] == list(CHECKS)
    with pytest.raises(AssertionError) as caught:
        check_device(
            plugin, expected_failures={"check_answers_are_right": "x", "check_nothing": "y"}
        )
    assert "check_answers_are_right: passes, though it is expected to fail" in str(caught.value)
    assert "check_nothing: expected to fail, but there is no such check" in str(caught.value)
