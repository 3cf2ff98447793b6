"""OpenVINO's preprocessing API on hetero; see `hetero.faces.openvino.preprocess`."""

from hetero.faces.openvino import preprocess as _face
from hetero.faces.openvino.preprocess import *  # noqa: F403 - the public names of the face

__all__ = _face.__all__
