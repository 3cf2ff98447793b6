"""Runs side by side on a device: ``hetero.properties.streams``."""

from enum import IntEnum
from typing import Final

from hetero.properties.names import PropertyName


class Num(IntEnum):
    """Values of NUM_STREAMS that leave the number to the device."""

    AUTO = -1
    NUMA = -2


num: Final = PropertyName("NUM_STREAMS", int, str)
