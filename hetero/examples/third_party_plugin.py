"""A complete third-party plugin: a device that runs dense layers with numpy."""

from typing import ClassVar

import numpy as np

from hetero.devices import OperatorPlugin


class DensePlugin(OperatorPlugin):
    """The device ``DENSE``: float32 layers of multi-layer perceptrons."""

    name = "DENSE"
    element_types = ("float",)
    since = 7
    operators: ClassVar = {
        "Add": np.add,
        "MatMul": np.matmul,
        "Mul": np.multiply,
        "Relu": lambda x: np.maximum(x, 0),
        "Sub": np.subtract,
        "Tanh": np.tanh,
    }
