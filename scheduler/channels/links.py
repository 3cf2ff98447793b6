"""Numbered messages from one party to another: doubles, gaps, and what is to be sent again. Pure.

A link keeps its order while its connection lasts, and a connection that breaks loses what was on
its way: so a message is missing when a later one, or a mark, comes before it, however slow the link
is. Datagrams that are missing are lost; what went by ZeroMQ is asked for again, until it comes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

#: So many missing messages of a link are asked for; those before them are lost.
_MOST_MISSING: Final = 16 * 1024
#: So many are asked for together: with the sender's address a control message still.
_MOST_ASKED: Final = 1024
#: How often a message is sent again: it may be what ends its connections.
_MOST_AGAIN: Final = 8
#: Bytes of messages of a link that are kept until they are known to have come.
MOST_KEPT_NBYTES: Final = 256 * 1024 * 1024


@dataclass(slots=True)
class Incoming:
    """What came on one link.

    `address`: whose it is; empty until its first beat.
    `count`: up to which number messages came, or are known to be missing or lost.
    `whole`: up to which number nothing is missing that may still come.
    `missing`: what is, in order.
    `num_lost`: what is not asked for as there is too much.
    """

    address: str = ""
    count: int = 0
    whole: int = 0
    missing: dict[int, None] = field(default_factory=dict)
    num_lost: int = 0

    def take(self, number: int) -> int | None:
        """Take in datagram `number`, from 1.

        Returns how many before it are lost; None if it is a double.
        """
        lost = number - self.count - 1
        if lost < 0:
            return None
        self.count = number
        return lost

    def accept(self, number: int) -> bool:
        """Take in message `number`; those before it are missing. False if it is a double."""
        missing = self.missing
        if number <= self.count:
            if number not in missing:
                return False
            del missing[number]
        else:
            self._miss(number - 1)
            self.count = number
        self.whole = next(iter(missing)) - 1 if missing else self.count
        return True

    def mark(self, number: int) -> list[int]:
        """Take in that those up to `number` were sent before; return the first that are missing."""
        self._miss(number)
        return list(islice(self.missing, _MOST_ASKED))

    def _miss(self, number: int) -> None:
        if number > self.count:
            first = max(self.count, number - _MOST_MISSING) + 1
            self.num_lost += first - self.count - 1
            self.missing |= dict.fromkeys(range(first, number + 1))
            self.count = number
            while len(self.missing) > _MOST_MISSING:
                del self.missing[next(iter(self.missing))]
                self.num_lost += 1


class Outgoing:
    """The sending end of a link: how many messages went, and those not known to have come."""

    __slots__ = ("_kept", "_nbytes", "count", "id", "num_marks")

    def __init__(self, identity: bytes) -> None:
        self.id = identity
        self.count = 0
        #: How many marks have gone.
        self.num_marks = 0
        #: Number -> frames, their bytes, how many marks had gone when they were sent last, and how
        #: often that was again.
        self._kept: dict[int, tuple[list[Any], int, int, int]] = {}
        self._nbytes = 0

    def keep(self, frames: list[Any]) -> None:
        """Keep the frames of the last message that was counted."""
        nbytes = sum(map(len, frames))
        self._kept[self.count] = (frames, nbytes, self.num_marks, 0)
        self._nbytes += nbytes
        while self._nbytes > MOST_KEPT_NBYTES and len(self._kept) > 1:
            self._let_go(next(iter(self._kept)))

    def came(self, number: int) -> None:
        """Take in that all up to `number` have come."""
        kept = self._kept
        while kept and (first := next(iter(kept))) <= number:
            self._let_go(first)

    def again(self, number: int, mark: int) -> list[Any] | None:
        """Return the frames of a message that had not come when a mark did; None: given up.

        None of them, if it was sent again after that mark.
        """
        found = self._kept.get(number)
        if found is None:
            return None
        frames, nbytes, sent, num_again = found
        if sent >= mark:
            return []
        if num_again == _MOST_AGAIN:
            self._let_go(number)
            return None
        self._kept[number] = (frames, nbytes, self.num_marks, num_again + 1)
        return frames

    def _let_go(self, number: int) -> None:
        self._nbytes -= self._kept.pop(number)[1]
