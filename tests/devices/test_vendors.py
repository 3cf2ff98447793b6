"""Checks that devices ORT and OV share: ONNX's backend suite, and query against compilation.

`expected_failures_NAME.txt` lists the suite's cases that a device supports and fails.
"""

import sys
from pathlib import Path

import onnx
import pytest

from hetero.devices import load_plugins, read_model
from hetero.devices.errors import HeteroError, ModelError
from hetero.devices.plugin.install_command import install_command
from hetero.devices.testing import operator_results
from tests.backend_suite.expected_failures import may_pass, read_expected_failures
from tests.support.single_nodes import schemas, single_node_models

PLUGINS = {
    "onnxruntime": "hetero.devices.ort.plugin:ORTPlugin",
    "openvino": "hetero.devices.openvino.plugin:OpenVinoPlugin",
}


@pytest.fixture(
    scope="module", params=["onnxruntime", pytest.param("openvino", marks=pytest.mark.slow)]
)
def runtime(request):
    pytest.importorskip(request.param, reason="needs the vendor's wheel")
    return request.param


@pytest.fixture(scope="module")
def plugin(runtime):
    (entry,) = load_plugins([PLUGINS[runtime]], entry_points=False).values()
    return entry.plugin


@pytest.mark.parametrize(("runtime", "extra"), [("onnxruntime", "ort"), ("openvino", "openvino")])
def test_device_without_its_runtime_names_the_extra(runtime, extra, monkeypatch):
    for name in [n for n in sys.modules if n.startswith(f"hetero.devices.{extra}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, runtime, None)
    (entry,) = load_plugins([PLUGINS[runtime]], entry_points=False).values()
    assert entry.plugin is None
    assert install_command(extra) in entry.error


@pytest.mark.slow
def test_onnx_backend_suite_cases_pass(runtime, plugin):
    """Run all cases; the assertions list unexpected outcomes.

    ONNX Runtime 1.31 passes 1,466 of onnx 1.23's 2,033 cases, OpenVINO 2026.4 passes 884. OpenVINO
    could pass 94 more whose rank only an output's declaration contains, which is a hint: cases with
    axes, shapes or split sizes as inputs (Reduce*, Split, CenterCropPad, Squeeze, ConstantOfShape).
    Two more pass on some processors.
    """
    device, minimum = {"onnxruntime": ("ort", 1466), "openvino": ("openvino", 884)}[runtime]
    expected_failures = read_expected_failures(
        Path(__file__).with_name(f"expected_failures_{device}.txt")
    )
    results = list(operator_results(plugin, {"INFERENCE_NUM_THREADS": 1}))
    errors = {r.name: r.error for r in results if r.error}
    assert {name: error for name, error in errors.items() if name not in expected_failures} == {}
    fixed_cases = {
        n for n in expected_failures.keys() - errors.keys() if not may_pass(expected_failures[n])
    }
    assert not fixed_cases, "these pass now: remove them from the list"
    assert len(results) - len(errors) >= minimum


@pytest.mark.parametrize(
    "opset", [pytest.param(13, marks=pytest.mark.slow), onnx.defs.onnx_opset_version()]
)
def test_supported_operators_compile(runtime, plugin, opset):
    """Try every operator with element types that the runtime may or may not have kernels for."""
    types, shape, minimum = {
        "onnxruntime": (["float16", "int32", "bool"], None, 91),
        "openvino": (["float", "int32", "bool"], [2, 2], 140),
    }[runtime]
    support_count, errors = 0, {}
    for schema in schemas(opset):
        for proto in single_node_models(schema, opset, types, shape):
            try:
                model = read_model(proto)
                if plugin.query_model(model).unsupported:
                    continue
            except ModelError:
                continue
            support_count += 1
            try:
                plugin.compile_model(model).close()
            except HeteroError as error:
                errors[schema.name, model.inputs[0].type] = str(error)
    assert errors == {}
    assert support_count >= minimum
