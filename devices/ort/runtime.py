"""ONNX Runtime's module, even if the program has put another module in its place.

A program whose libraries import ``onnxruntime`` runs them on hetero with
``sys.modules["onnxruntime"] = hetero.onnxruntime``.
"""

import sys
from typing import Final

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

__all__ = ["VERSION", "onnxruntime"]

_major, _minor = map(int, onnxruntime.__version__.split(".")[:2])
#: Major and minor version.
VERSION: Final = (_major, _minor)
