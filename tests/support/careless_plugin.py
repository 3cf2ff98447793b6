"""A faulty plugin, which fails checks of the conformance suite."""

from typing import ClassVar

import numpy as np

from hetero.devices import OperatorPlugin


class CarelessPlugin(OperatorPlugin):
    """Device ``CARELESS``, whose Relu returns half of each negative element."""

    name = "CARELESS"
    element_types = ("float",)
    since = 7
    operators: ClassVar = {
        "Add": np.add,
        "Relu": lambda x: np.maximum(x, x / 2),
    }
