"""ONNX Runtime's Python API on hetero: ``import hetero.onnxruntime as onnxruntime``."""

from hetero.faces import onnxruntime as _face
from hetero.faces.onnxruntime import *  # noqa: F403 - the public names of the face

__all__ = _face.__all__
