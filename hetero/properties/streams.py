"""Runs side by side on a device: ``hetero.properties.streams``."""

from __future__ import annotations

from typing import ClassVar, Final

from hetero.properties.property_name import PropertyName


class Num(int):
    """A value of NUM_STREAMS; ``Num()`` and those with a name leave the number to the device."""

    AUTO: ClassVar[Num]
    NUMA: ClassVar[Num]

    def __new__(cls, number: int = -1) -> Num:
        """Make a number of streams."""
        return super().__new__(cls, number)

    def to_integer(self) -> int:
        """Return the number; negative ones are `AUTO` and `NUMA`."""
        return int(self)


Num.AUTO = Num(-1)
Num.NUMA = Num(-2)

num: Final = PropertyName("NUM_STREAMS", int, str)
