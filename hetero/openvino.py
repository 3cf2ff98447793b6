"""OpenVINO's Python API on hetero: ``import hetero.openvino as ov``."""

import sys

from hetero import properties
from hetero.faces import openvino as _face
from hetero.faces.openvino import *  # noqa: F403 - the public names of the face
from hetero.faces.openvino import preprocess

__all__ = _face.__all__

__version__ = _face.get_version()

# Makes ``import hetero.openvino.properties.hint as hints`` possible, as with OpenVINO.
sys.modules |= {
    f"{__name__}.{name}": module
    for name, module in {
        "preprocess": preprocess,
        "properties": properties,
        "properties.device": properties.device,
        "properties.hint": properties.hint,
        "properties.log": properties.log,
        "properties.streams": properties.streams,
    }.items()
}
