"""A plugin is closed with its Core, and an export that breaks is a typed error."""

from pathlib import Path

import numpy as np
import pytest
from onnx import parser

import hetero
from hetero import errors
from hetero.devices.errors import DeviceError
from hetero.devices.plugin.operator_plugin import OperatorProgram
from hetero.errors import UnsupportedNodesError
from hetero.examples.third_party_plugin import DensePlugin

MODEL = parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) {y = Relu(x)}'
)
X = np.float32([-1, 2])


class Ending(DensePlugin):
    """Counts how often it is closed, or raises then."""

    name = "ENDING"
    closed = 0
    raises = False

    def close(self):
        type(self).closed += 1
        if self.raises:
            raise OSError("the backend hung up")


class Unending(Ending):
    name = "UNENDING"
    raises = True


@pytest.mark.parametrize("used", [True, False])
def test_plugins_are_closed_once_with_their_core(monkeypatch, used):
    monkeypatch.setattr(Ending, "closed", 0)
    core = hetero.Core("inprocess", plugins=[Ending], devices={"ENDING": 2})
    if used:
        compiled = core.compile_model(MODEL, "ENDING.1")
        np.testing.assert_array_equal(compiled({"x": X})["y"], [0, 2])
        assert Ending.closed == 0
    core.close()
    core.close()
    assert Ending.closed == int(used)


def test_a_plugin_that_cannot_be_closed_keeps_no_other_from_its_end(monkeypatch, caplog):
    monkeypatch.setattr(Ending, "closed", 0)
    monkeypatch.setattr(Unending, "closed", 0)
    with hetero.Core("inprocess", plugins=[Unending, Ending]) as core:
        assert "ENDING" in core.available_devices
    assert (Ending.closed, Unending.closed) == (1, 1)
    assert "plugin=UNENDING failed to close" in caplog.text


class Forgetful(DensePlugin):
    name = "FORGETFUL"

    def compile(self, model, config):
        super().compile(model, config)


def test_a_plugin_that_compiles_to_nothing_is_told_so():
    with (
        hetero.Core("inprocess", plugins=[Forgetful]) as core,
        pytest.raises(errors.InferenceError, match=r"FORGETFUL.*devices\.Program.*NoneType"),
    ):
        core.compile_model(MODEL, "FORGETFUL")


class Unexportable(DensePlugin):
    """Its programs fail, in its own way, when they are exported."""

    name = "UNEXPORTABLE"

    def compile(self, model, config):
        class Program(OperatorProgram):
            def export(self):
                raise ZeroDivisionError("by design")

        return Program(model, self.operators, self.name)


def test_an_export_that_breaks_names_device_and_cause(tmp_path: Path):
    with hetero.Core("inprocess", plugins=[Unexportable]) as core:
        compiled = core.compile_model(MODEL, "UNEXPORTABLE")
        said = r"UNEXPORTABLE.*ZeroDivisionError: by design"
        with pytest.raises(DeviceError, match=said) as caught:
            compiled.export_model()
        assert caught.value.device == "UNEXPORTABLE"
        cached = core.compile_model(MODEL, "UNEXPORTABLE", {"CACHE_DIR": str(tmp_path)})
        np.testing.assert_array_equal(cached({"x": X})["y"], [0, 2])


def test_open_shapes_go_to_the_device_that_takes_them():
    with hetero.Core("inprocess") as core:
        fixed = {"NULL_DYNAMIC_SHAPES": False}
        support = core.query_model(MODEL, "HETERO:NULL,CPU", fixed)
        assert dict(support) == {"y": "CPU"}
        assert support.refusals["y"]["NULL"].code == "dynamic_shape"
        with pytest.raises(UnsupportedNodesError, match="requires static shapes"):
            core.compile_model(MODEL, "NULL", fixed)
