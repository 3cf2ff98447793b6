"""Requests and responses of the worker that infers types, in this process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

import onnx
import pytest
from onnx.parser import parse_model

HEADER = '<ir_version: 8, opset_import: ["": 17]>'
MODULE = "hetero.devices.model.type_inference_worker"


@pytest.fixture
def infer(monkeypatch):
    """The worker's function; the worker imports onnx's native module from its folder."""
    monkeypatch.setitem(sys.modules, "onnx_cpp2py_export", onnx.onnx_cpp2py_export)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    function: Callable[[bytes], bytes] = importlib.import_module(MODULE).infer
    return function


def test_failure_is_returned_with_the_message_of_onnx(infer):
    garbage = b"\xff" * 9
    with pytest.raises(ValueError, match="Unable to parse") as caught:
        onnx.onnx_cpp2py_export.shape_inference.infer_shapes(garbage, False, False, False)
    assert infer(b"\0" + garbage) == b"\1" + str(caught.value).encode()


@pytest.mark.parametrize(("flag", "sizes"), [(b"\0", [0, 0]), (b"\1", [4, 6])])
def test_flag_propagates_known_values(infer, flag, sizes):
    model = parse_model(
        f"{HEADER} g (float[2, 3] x) => (float[a, b] y) "
        "{ d = Shape(x) t = Add(d, d) y = ConstantOfShape(t) }"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    response = infer(flag + model.SerializeToString())
    assert response[:1] == b"\0"
    (output,) = onnx.load_from_string(response[1:]).graph.output
    assert [dim.dim_value for dim in output.type.tensor_type.shape.dim] == sizes
