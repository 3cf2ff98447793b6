"""Random data of quantized models, and runs of them on device CPU and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto

from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.reader import read_model
from tests.support.small_models import compile_cpu, onnxruntime_session


def bytes_of(dtype: type, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def weights_of(dtype: type, *shape: int) -> np.ndarray:
    """Return weights of seven bits, whose products ONNX Runtime sums exactly on every processor."""
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min // 2, limits.max // 2, shape, dtype, endpoint=True)


def run_unoptimized(model: ModelProto, feeds: dict[str, Any]) -> list[np.ndarray]:
    """Run the model on ONNX Runtime without optimizations."""
    session = onnxruntime_session(model.SerializeToString(), as_written=True)
    return list(session.run(None, feeds))


def run_cpu(model: ModelProto, feeds: dict[str, Any]) -> list[np.ndarray]:
    """Run the model on the CPU device."""
    return list(compile_cpu(model).run(list(feeds.values())))


def operator_types(model: ModelProto) -> list[str]:
    """Return the operators of the model after the transformations of device CPU."""
    plugin = CPUPlugin()
    transformed = plugin.transform_model(read_model(model), plugin.effective_config())
    return [node.op_type for node in transformed.nodes]


RNG = np.random.default_rng(0)
