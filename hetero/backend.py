"""The ONNX backend interface of hetero; see `hetero.faces.onnx_backend`."""

from hetero.faces import onnx_backend as _face
from hetero.faces.onnx_backend import *  # noqa: F403 - the public names of the face

__all__ = _face.__all__
