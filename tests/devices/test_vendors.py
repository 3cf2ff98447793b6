"""Vendors' devices: what is the same of each is asked of each.

`misses_NAME.txt` lists the cases of ONNX's backend suite that a device takes and misses.
"""

import sys
from pathlib import Path

import onnx
import pytest

from hetero.devices import load_plugins, read_model
from hetero.devices.errors import HeteroError, ModelError
from hetero.devices.testing import operator_results
from tests.backend_suite.misses import may_pass, read_misses
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
def test_without_the_runtime_the_device_says_how_to_get_it(runtime, extra, monkeypatch):
    for name in [n for n in sys.modules if n.startswith(f"hetero.devices.{extra}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, runtime, None)
    (entry,) = load_plugins([PLUGINS[runtime]], entry_points=False).values()
    assert entry.plugin is None
    assert f"pip install 'hetero[{extra}]'" in entry.error


@pytest.mark.slow
def test_every_case_of_onnx_that_it_takes_is_right(runtime, plugin):
    """The failure lists every case that is not as expected, with what went wrong.

    Of onnx 1.23's 2,033 cases ONNX Runtime 1.31 runs 1,466 right, OpenVINO 2026.4 884. It would run
    94 more whose rank only an output's declaration tells, which is a hint: axes, shapes or sizes of
    parts that are inputs (Reduce*, Split, CenterCropPad, Squeeze, ConstantOfShape). On some
    processors two more pass.
    """
    listed, least = {"onnxruntime": ("ort", 1466), "openvino": ("openvino", 884)}[runtime]
    misses = read_misses(Path(__file__).with_name(f"misses_{listed}.txt"))
    results = list(operator_results(plugin, {"INFERENCE_NUM_THREADS": 1}))
    missed = {r.name: r.error for r in results if r.error}
    assert {n: said for n, said in missed.items() if n not in misses} == {}
    passed = {n for n in misses.keys() - missed.keys() if not may_pass(misses[n])}
    assert not passed, "take these off the list"
    assert len(results) - len(missed) >= least


@pytest.mark.parametrize(
    "opset", [pytest.param(13, marks=pytest.mark.slow), onnx.defs.onnx_opset_version()]
)
def test_whatever_the_query_takes_compiles(runtime, plugin, opset):
    """Every operator, in element types that the runtime has kernels for, or not."""
    types, shape, least = {
        "onnxruntime": (["float16", "int32", "bool"], None, 91),
        "openvino": (["float", "int32", "bool"], [2, 2], 140),
    }[runtime]
    taken, failed = 0, {}
    for schema in schemas(opset):
        for proto in single_node_models(schema, opset, types, shape):
            try:
                model = read_model(proto)
                if plugin.query_model(model).unsupported:
                    continue
            except ModelError:
                continue
            taken += 1
            try:
                plugin.compile_model(model).close()
            except HeteroError as error:
                failed[schema.name, model.inputs[0].type] = str(error)
    assert failed == {}
    assert taken >= least
