"""The installed plugins and an example of a third-party plugin pass the conformance suite."""

from dataclasses import replace

import numpy as np
import pytest

from hetero.devices import OperatorPlugin, Plugin, Refusal, load_plugins
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
#: Plugins whose wheel is not installed; other tests check their errors.
MISSING = {name for name, entry in PLUGINS.items() if name == "OV" and not entry.plugin}

CHECKS = {check.__name__: check for check in device_checks()}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.sampled(3) if n in ("OV", "EGPU") else ()) for n in PLUGINS],
)
def test_device_passes_check(name, check):
    entry = PLUGINS[name]
    if name in MISSING:
        pytest.skip(entry.error)
    assert entry.plugin is not None, entry.error
    check(entry.plugin)


def test_suite_rejects_broken_plugins():
    """Each broken plugin fails the check of the rule that it breaks."""
    dense = type(PLUGINS["DENSE"].plugin)

    class Program:
        def __init__(self, program, change):
            self.program, self.change = program, change

        def __getattr__(self, name):
            return getattr(self.program, name)

        def run(self, inputs, context):
            return self.change(inputs, self.program.run(inputs, context))

    def plugin_with_outputs(change):
        class ChangedPlugin(dense):
            def compile(self, model, config):
                return Program(super().compile(model, config), change)

        return ChangedPlugin()

    wrong_values = plugin_with_outputs(lambda inputs, outputs: [o + 1 for o in outputs])
    wrong_types = plugin_with_outputs(
        lambda inputs, outputs: [o.astype("float64") for o in outputs]
    )
    missing_outputs = plugin_with_outputs(lambda inputs, outputs: outputs[:-1])
    for plugin in (wrong_values, wrong_types, missing_outputs):
        with pytest.raises((AssertionError, HeteroError)):
            CHECKS["check_results_are_correct"](plugin)
    with pytest.raises(AssertionError, match="check_results_are_correct"):
        check_device(wrong_values)

    class AnyDomainPlugin(dense):
        def refuse(self, node, model, config):
            return super().refuse(replace(node, domain=""), model, config)

    class AnyTypePlugin(dense):
        def refuse(self, node, model, config):
            refusal = super().refuse(node, model, config)
            return None if refusal and refusal.code == "dtype" else refusal

    class VaguePlugin(NullPlugin):
        def refuse(self, node, model, config):
            open_shapes = [v for v in node.reads if not model.spec(v).is_static]
            return Refusal("policy", "reason withheld") if open_shapes else None

    for plugin, check in (
        (AnyDomainPlugin, "operators_of_unknown_domains_are_refused"),
        (AnyTypePlugin, "supported_element_types_are_computed"),
        (VaguePlugin, "dynamic_shapes_are_supported_or_refused"),
    ):
        with pytest.raises((AssertionError, HeteroError)):
            CHECKS[f"check_{check}"](plugin())

    class SilentPlugin(dense):
        def get_property(self, name, device_id=None):
            try:
                return super().get_property(name, device_id)
            except UnknownPropertyError:
                return None

    with pytest.raises(AssertionError):
        CHECKS["check_unknown_property_raises"](SilentPlugin())


def test_device_without_dynamic_shapes_passes_suite():
    plugin = NullPlugin()
    plugin.set_property({"NULL_DYNAMIC_SHAPES": False})
    assert {result.error for result in check_device(plugin)} == {None}


@pytest.mark.parametrize("operator", ["Softmax", "Asin"])
def test_device_of_one_operator_passes_suite(operator):
    """The samples contain Softmax, but not Asin: models without nodes remain."""

    def softmax(x, *, axis=-1):
        exponentials = np.exp(x - x.max(axis=axis, keepdims=True))
        return exponentials / exponentials.sum(axis=axis, keepdims=True)

    table = {operator: {"Softmax": softmax, "Asin": np.arcsin}[operator]}

    class SingleOperatorPlugin(OperatorPlugin):
        name = "SINGLE"
        operators = table
        since = 13
        element_types = ("float",)

    assert {result.error for result in check_device(SingleOperatorPlugin())} == {None}


@pytest.mark.slow
def test_expected_failures_are_strict():
    plugin: Plugin = PLUGINS["NULL"].plugin
    results = check_device(plugin)
    assert {r.error for r in results} == {None}
    assert [r.name for r in results] == list(CHECKS)
    with pytest.raises(AssertionError) as error:
        check_device(
            plugin, expected_failures={"check_results_are_correct": "x", "check_nothing": "y"}
        )
    assert "check_results_are_correct: expected to fail (x), but it passes" in str(error.value)
    assert "check_nothing: expected to fail, but there is no such check" in str(error.value)
