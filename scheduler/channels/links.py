"""Numbered messages from one party to another: doubles and gaps. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Incoming:
    """What came on one link.

    A link keeps its order while its connection lasts, and a connection that breaks loses what was
    on its way: so a message is lost when a later one, or a mark, comes before it, however slow the
    link is.

    Attributes
    ----------
    address : str
        Whose it is; empty until its first beat.
    count : int
        Of what came, or is known to be lost.
    """

    address: str = ""
    count: int = 0

    def take(self, number: int, num_more: int = 0) -> int | None:
        """Take in message `number`, from 1, and so many that came with it.

        Returns how many before it are lost; None if it is a double.
        """
        lost = number - self.count - 1
        if lost < 0:
            return None
        self.count = number + num_more
        return lost

    def mark(self, number: int) -> int:
        """Take in that those up to `number` were sent before; return how many of them are lost."""
        lost = max(0, number - self.count)
        self.count += lost
        return lost
