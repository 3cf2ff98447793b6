"""Outbox: orders run one by one, in the order of their decision, on any calling thread."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import pytest

from hetero.scheduler.client.outbox import Outbox

_WAIT_S = 30.0


def test_order_waits_for_an_earlier_order_of_another_thread():
    outbox, done = Outbox(lambda order: None), []
    began, goes_on = threading.Event(), threading.Event()

    def first() -> None:
        began.set()
        assert goes_on.wait(_WAIT_S)
        done.append(1)

    outbox.orders.append(first)
    carries_out = threading.Thread(target=outbox.carry_out)
    carries_out.start()
    assert began.wait(_WAIT_S)
    outbox.orders.append(lambda: done.append(2))
    outbox.carry_out()  # returns at once, because the other thread runs the order
    assert done == []
    goes_on.set()
    carries_out.join(_WAIT_S)
    assert done == [1, 2]


def test_order_ends_before_orders_that_it_creates():
    outbox, done = Outbox(lambda order: None), []

    def first() -> None:
        outbox.orders.append(lambda: done.append("second"))
        outbox.carry_out()
        done.append("first")

    outbox.orders.append(first)
    outbox.carry_out()
    assert done == ["first", "second"]


def test_raising_or_interrupted_order_does_not_block_others():
    left: SimpleQueue[Any] = SimpleQueue()
    outbox, done = Outbox(left.put), []
    interrupts = iter([KeyboardInterrupt()])

    def interrupted() -> None:
        for error in interrupts:
            raise error
        done.append("again")

    def wrong() -> None:
        raise RuntimeError

    for order in (wrong, interrupted, lambda: done.append("last")):
        outbox.orders.append(order)
    with pytest.raises(KeyboardInterrupt):
        outbox.carry_out()
    assert done == []
    left.get(timeout=_WAIT_S)()
    assert done == ["again", "last"]


def test_orders_of_many_threads_run_once_each():
    outbox, done, lock = Outbox(lambda order: None), [], threading.Lock()
    results: list[int] = []

    def work() -> None:
        for _ in range(500):
            with lock:
                results.append(number := len(results))
                outbox.orders.append(lambda number=number: done.append(number))
            outbox.carry_out()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_WAIT_S)
    assert done == results
