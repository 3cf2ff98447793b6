"""Outbox of a state machine: executes its orders one at a time, in the order of decision.

The thread that makes a decision appends orders under the machine's lock. The first thread that
gets the turn executes all of them, so no order overtakes an earlier one.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Outbox:
    """Queue of orders with one executing thread; `later`: calls a function in another thread."""

    def __init__(self, later: Callable[[Callable[[], None]], None]) -> None:
        self._later = later
        #: Orders that are pending or executing. An order that Ctrl-C interrupts is executed again,
        #: so orders must be idempotent.
        self.orders: deque[Callable[[], None]] = deque()
        self._execution_lock = threading.Lock()

    def carry_out(self) -> None:
        """Execute all orders in this thread, unless another thread is executing them already."""
        orders = self.orders
        while orders and self._execution_lock.acquire(blocking=False):
            try:
                while orders:
                    try:
                        orders[0]()
                    except Exception:  # the orders behind it belong to other requests
                        _log.exception("an order failed")
                    orders.popleft()
            except BaseException:  # Ctrl-C in a caller's thread: another thread continues
                self._later(self.carry_out)
                raise
            finally:
                self._execution_lock.release()
