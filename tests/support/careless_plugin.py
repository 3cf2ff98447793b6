"""A plugin with faults: what the conformance suite finds of it."""

from typing import ClassVar

import numpy as np

from hetero.devices import OperatorPlugin


class CarelessPlugin(OperatorPlugin):
    """The device ``CARELESS``: its Relu lets half of what is negative through."""

    name = "CARELESS"
    element_types = ("float",)
    since = 7
    operators: ClassVar = {
        "Add": np.add,
        "Relu": lambda x: np.maximum(x, x / 2),
    }
