"""Quantised models and what runs them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto

from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.reader import read_model
from tests.support.small_models import compile_cpu, onnxruntime_session


def bytes_of(dtype: type, *shape: int) -> np.ndarray:
    ends = np.iinfo(dtype)
    return RNG.integers(ends.min, ends.max, shape, dtype, endpoint=True)


def weights_of(dtype: type, *shape: int) -> np.ndarray:
    """Return weights of seven bits, whose products ONNX Runtime adds exactly everywhere."""
    ends = np.iinfo(dtype)
    return RNG.integers(ends.min // 2, ends.max // 2, shape, dtype, endpoint=True)


def plain(model: ModelProto, feeds: dict[str, Any]) -> list[np.ndarray]:
    """Run the model on ONNX Runtime as it is written."""
    session = onnxruntime_session(model.SerializeToString(), as_written=True)
    return list(session.run(None, feeds))


def run_cpu(model: ModelProto, feeds: dict[str, Any]) -> list[np.ndarray]:
    """Run the model on the CPU device."""
    return list(compile_cpu(model).run(list(feeds.values())))


def kinds(model: ModelProto) -> list[str]:
    plugin = CPUPlugin()
    transformed = plugin.transform_model(read_model(model), plugin.effective_config())
    return [node.op_type for node in transformed.nodes]


RNG = np.random.default_rng(0)
