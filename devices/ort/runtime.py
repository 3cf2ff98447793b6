"""ONNX Runtime's module, even if the program has put another module in its place.

A program whose libraries import ``onnxruntime`` runs them on hetero with
``sys.modules["onnxruntime"] = hetero.onnxruntime``.
"""

import sys

_substitute = sys.modules.get("onnxruntime")
if _substitute is not None and _substitute.__name__ == "onnxruntime":
    _substitute = None
if _substitute is not None:
    del sys.modules["onnxruntime"]
try:
    import onnxruntime
finally:
    if _substitute is not None:
        sys.modules["onnxruntime"] = _substitute

__all__ = ["onnxruntime"]
