"""The property for the number of streams of a device: ``hetero.properties.streams``."""

from __future__ import annotations

from typing import ClassVar, Final

from hetero.properties.property_name import PropertyName


class Num(int):
    """A value of NUM_STREAMS; with ``Num()``, `AUTO` or `NUMA` the device chooses the number."""

    AUTO: ClassVar[Num]
    NUMA: ClassVar[Num]

    def __new__(cls, number: int = -1) -> Num:
        """Create a number of streams."""
        return super().__new__(cls, number)

    def to_integer(self) -> int:
        """Return the number; it is negative for `AUTO` and `NUMA`."""
        return int(self)


Num.AUTO = Num(-1)
Num.NUMA = Num(-2)

num: Final = PropertyName("NUM_STREAMS", int, str)
