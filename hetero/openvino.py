"""OpenVINO's Python API on hetero: ``import hetero.openvino as ov``."""

from hetero.faces import openvino as _face
from hetero.faces.openvino import *  # noqa: F403 - the public names of the face

__all__ = _face.__all__
