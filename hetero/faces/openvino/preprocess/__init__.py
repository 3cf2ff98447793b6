"""Preprocessing and postprocessing as nodes of the model."""

from hetero.faces.openvino.preprocess.colors import ColorFormat
from hetero.faces.openvino.preprocess.layout import Layout
from hetero.faces.openvino.preprocess.pictures import ResizeAlgorithm
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
from hetero.faces.openvino.preprocess.steps import PaddingMode

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
