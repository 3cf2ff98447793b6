"""Chains of matrix products, whose weights all have the same size."""

from __future__ import annotations

from typing import Final

import numpy as np
from onnx import helper, numpy_helper

from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from tests.support.graphs import proto

#: Rows and columns of each weight.
WIDTH: Final = 100


def products(count: int) -> Model:
    """Return a chain of matrix products."""
    ports = [helper.make_tensor_value_info(n, 1, [1, WIDTH]) for n in ("v0", f"v{count}")]
    weight = np.eye(WIDTH, dtype=np.float32)
    weights = [numpy_helper.from_array(weight, f"w{i}") for i in range(count)]
    nodes = [
        helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"], f"n{i}") for i in range(count)
    ]
    return read_model(proto(nodes, ports[:1], ports[1:], weights))
