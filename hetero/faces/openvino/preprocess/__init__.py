"""OpenVINO's PrePostProcessor: preprocessing and postprocessing as nodes of the model."""

from hetero.faces.openvino.preprocess.color_format import ColorFormat
from hetero.faces.openvino.preprocess.image_steps import ResizeAlgorithm
from hetero.faces.openvino.preprocess.layout import Layout
from hetero.faces.openvino.preprocess.processor import (
    InputInfo,
    InputModelInfo,
    InputTensorInfo,
    OutputInfo,
    OutputModelInfo,
    OutputTensorInfo,
    PostProcessSteps,
    PrePostProcessor,
    PreProcessSteps,
)
from hetero.faces.openvino.preprocess.tensor_steps import PaddingMode

__all__ = [
    "ColorFormat",
    "InputInfo",
    "InputModelInfo",
    "InputTensorInfo",
    "Layout",
    "OutputInfo",
    "OutputModelInfo",
    "OutputTensorInfo",
    "PaddingMode",
    "PostProcessSteps",
    "PrePostProcessor",
    "PreProcessSteps",
    "ResizeAlgorithm",
]
