"""ONNX Runtime's module under a name that the program has given to another one."""

from __future__ import annotations

import runpy
import sys
from types import ModuleType

from hetero.devices.ort import runtime


def test_substituted_module_is_not_used(monkeypatch):
    substitute = ModuleType("hetero.onnxruntime")
    monkeypatch.setitem(sys.modules, "onnxruntime", substitute)
    names = runpy.run_path(runtime.__file__)
    assert names["onnxruntime"].InferenceSession is runtime.onnxruntime.InferenceSession
    assert sys.modules["onnxruntime"] is substitute
