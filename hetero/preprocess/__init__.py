"""Preprocessing and postprocessing as nodes of the model."""

from hetero.preprocess.colors import ColorFormat
from hetero.preprocess.layout import Layout
from hetero.preprocess.pictures import ResizeAlgorithm
from hetero.preprocess.processor import PrePostProcessor
from hetero.preprocess.steps import PaddingMode

__all__ = ["ColorFormat", "Layout", "PaddingMode", "PrePostProcessor", "ResizeAlgorithm"]
