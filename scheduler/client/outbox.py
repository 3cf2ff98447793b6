"""The outbox of a machine: its orders, carried out one after the other in the order of decision.

Whoever decides appends under the machine's lock; whoever finds nobody at it carries out what is
there. So no order is overtaken by a later one, whatever threads the events come in.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Outbox:
    """Orders that are to be carried out; `later`: has another thread call what it is given."""

    def __init__(self, later: Callable[[Callable[[], None]], None]) -> None:
        self._later = later
        #: Those that are yet to be carried out, or are being; one that Ctrl-C ends half-way is done
        #: again, which must change nothing.
        self.orders: deque[Callable[[], None]] = deque()
        self._turn = threading.Lock()

    def carry_out(self) -> None:
        """Carry out what is there, in this thread, unless another is at it, which then goes on."""
        orders = self.orders
        while orders and self._turn.acquire(blocking=False):
            try:
                while orders:
                    try:
                        orders[0]()
                    except Exception:  # the orders behind it are others'
                        _log.exception("an order could not be carried out")
                    orders.popleft()
            except BaseException:  # Ctrl-C, in a thread that came by: another goes on
                self._later(self.carry_out)
                raise
            finally:
                self._turn.release()
