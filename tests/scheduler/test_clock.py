"""Tests of the clock and its timers."""

from __future__ import annotations

import threading
import weakref

import pytest

from hetero.scheduler.clock import Clock

PATIENCE_S = 20


@pytest.fixture
def clock():
    clock = Clock("test")
    yield clock
    clock.close()


def test_idle_clock_keeps_no_reference_to_its_last_call(clock):
    class Call:
        def __call__(self) -> None:
            pass

    freed = threading.Event()
    clock.timer(lambda: None)  # starts the thread
    call = Call()
    weakref.finalize(call, freed.set)
    clock.call_soon(call)
    del call
    assert freed.wait(PATIENCE_S)
