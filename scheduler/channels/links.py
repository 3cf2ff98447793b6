"""Numbered messages from one party to another: doubles, gaps, and ends that do not come. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: How long what was sent may be on its way: so long, and the time of its bytes on a slow network.
_TRANSIT_S: Final = 1.0
_BYTES_PER_S: Final = 20e6


@dataclass(slots=True)
class Incoming:
    """What came from one party.

    Attributes
    ----------
    address : str
        Whose it is; empty until its first beat.
    count, nbytes : int
        Of what came, or is known to be lost.
    announced : int
        How many messages the other party has sent, it says.
    late_at_s : float
        When they should all be here.
    """

    address: str = ""
    count: int = 0
    nbytes: int = 0
    announced: int = 0
    late_at_s: float = 0.0

    def take(self, number: int, nbytes: int, num_more: int = 0) -> int | None:
        """Take in message `number`, from 1, and so many that came with it.

        Returns how many before it are lost; None if it is a double.
        """
        lost = number - self.count - 1
        if lost < 0:
            return None
        self.count = number + num_more
        self.nbytes += nbytes
        return lost

    def announce(self, count: int, nbytes: int, now_s: float) -> None:
        """Take in how much the other party says it has sent by now."""
        if self.count < self.announced:
            return  # what was announced before comes first
        if count <= self.count:
            self.nbytes = nbytes
            return
        self.announced = count
        self.late_at_s = now_s + _TRANSIT_S + max(0, nbytes - self.nbytes) / _BYTES_PER_S

    def give_up(self, now_s: float) -> int:
        """Return how many messages are lost at the end; call when nothing waits to be received."""
        lost = self.announced - self.count
        if lost <= 0 or now_s < self.late_at_s:
            return 0
        self.count = self.announced
        return lost
