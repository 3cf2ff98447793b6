"""Preprocessing and postprocessing as nodes of the model."""

from hetero.preprocess.colors import ColorFormat
from hetero.preprocess.layout import Layout
from hetero.preprocess.pictures import ResizeAlgorithm
from hetero.preprocess.processor import (
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
from hetero.preprocess.steps import PaddingMode

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
