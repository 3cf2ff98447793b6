"""Plugins from loading to closing: faults of compile, export and close, open shapes."""

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


class ClosingPlugin(DensePlugin):
    """Counts its calls of close, which may raise an exception."""

    name = "CLOSING"
    num_closed = 0
    raises = False

    def close(self):
        type(self).num_closed += 1
        if self.raises:
            raise OSError("the backend hung up")


class FailingClosePlugin(ClosingPlugin):
    name = "FAILING_CLOSE"
    raises = True


@pytest.mark.parametrize("used", [True, False])
def test_core_closes_used_plugins_once(monkeypatch, used):
    monkeypatch.setattr(ClosingPlugin, "num_closed", 0)
    core = hetero.Core("inprocess", plugins=[ClosingPlugin], devices={"CLOSING": 2})
    if used:
        compiled = core.compile_model(MODEL, "CLOSING.1")
        np.testing.assert_array_equal(compiled({"x": X})["y"], [0, 2])
        assert ClosingPlugin.num_closed == 0
    core.close()
    core.close()
    assert ClosingPlugin.num_closed == int(used)


def test_failing_close_does_not_prevent_others(monkeypatch, caplog):
    monkeypatch.setattr(ClosingPlugin, "num_closed", 0)
    monkeypatch.setattr(FailingClosePlugin, "num_closed", 0)
    with hetero.Core("inprocess", plugins=[FailingClosePlugin, ClosingPlugin]) as core:
        assert "CLOSING" in core.available_devices
    assert (ClosingPlugin.num_closed, FailingClosePlugin.num_closed) == (1, 1)
    assert "plugin=FAILING_CLOSE failed to close" in caplog.text


class NoProgramPlugin(DensePlugin):
    name = "NO_PROGRAM"

    def compile(self, model, config):
        super().compile(model, config)


def test_compile_without_program_is_rejected():
    with (
        hetero.Core("inprocess", plugins=[NoProgramPlugin]) as core,
        pytest.raises(errors.InferenceError, match=r"NO_PROGRAM.*devices\.Program.*NoneType"),
    ):
        core.compile_model(MODEL, "NO_PROGRAM")


class FailingExportPlugin(DensePlugin):
    """A plugin whose programs cannot be exported."""

    name = "FAILING_EXPORT"

    def compile(self, model, config):
        class Program(OperatorProgram):
            def export(self):
                raise ZeroDivisionError("by design")

        return Program(model, self.operators, self.name)


def test_export_failure_names_device_and_cause(tmp_path):
    with hetero.Core("inprocess", plugins=[FailingExportPlugin]) as core:
        compiled = core.compile_model(MODEL, "FAILING_EXPORT")
        pattern = r"FAILING_EXPORT.*ZeroDivisionError: by design"
        with pytest.raises(DeviceError, match=pattern) as error:
            compiled.export_model()
        assert error.value.device == "FAILING_EXPORT"
        cached = core.compile_model(MODEL, "FAILING_EXPORT", {"CACHE_DIR": str(tmp_path)})
        np.testing.assert_array_equal(cached({"x": X})["y"], [0, 2])


def test_dynamic_shapes_are_assigned_to_a_supporting_device():
    with hetero.Core("inprocess") as core:
        config = {"NULL_DYNAMIC_SHAPES": False}
        support = core.query_model(MODEL, "HETERO:NULL,CPU", config)
        assert dict(support) == {"y": "CPU"}
        assert support.refusals["y"]["NULL"].code == "dynamic_shape"
        with pytest.raises(UnsupportedNodesError, match="requires static shapes"):
            core.compile_model(MODEL, "NULL", config)
