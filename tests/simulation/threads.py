"""Locks in virtual time, and threads that lose their turn in the middle of what they do."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import hetero.apps.generate.batcher
import hetero.devices.request.state_machine
import hetero.scheduler.client.bytes_in_flight
import hetero.scheduler.client.deployment
import hetero.scheduler.client.device_tensors
import hetero.scheduler.client.outbox
import hetero.scheduler.client.remote_tensors
import hetero.scheduler.client.request_runner
import hetero.scheduler.clock
import hetero.scheduler.device.host
import hetero.scheduler.device.loop
import hetero.scheduler.device.resident_tensors
from hetero.scheduler.simulation.world import Fiber, World

_MODULES = (
    hetero.apps.generate.batcher,
    hetero.devices.request.state_machine,
    hetero.scheduler.client.bytes_in_flight,
    hetero.scheduler.client.deployment,
    hetero.scheduler.client.outbox,
    hetero.scheduler.client.remote_tensors,
    hetero.scheduler.client.request_runner,
    hetero.scheduler.clock,
    hetero.scheduler.device.host,
    hetero.scheduler.device.resident_tensors,
    hetero.scheduler.device.loop,
)
#: Where a thread may lose its turn.
_TRACED = ("/scheduler/client/", "/scheduler/device/", "/scheduler/clock.py")


class Lock:
    """`threading.Lock`, or `RLock`, for fibers."""

    def __init__(self, world: World, *, again: bool = False) -> None:
        self._world = world
        self._again = again
        self._depth = 0
        self._owner: Fiber | None = None
        self._waiting: list[Fiber] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._world.fiber
        while self._depth and not (self._again and self._owner is me):
            if not blocking:
                return False
            assert me is not None, "a lock is waited for outside of any fiber"
            self._waiting.append(me)
            self._world.pause()
        self._depth += 1
        self._owner = me
        return True

    def release(self) -> None:
        if not self._depth:
            raise RuntimeError("release unlocked lock")
        self._depth -= 1
        if not self._depth and self._waiting:
            self._world.resume_later(self._waiting.pop(0))

    def locked(self) -> bool:
        return self._depth > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """`threading.Condition`, as far as it is used."""

    def __init__(self, world: World, lock: Lock) -> None:
        self._world = world
        self._lock = lock

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait_for(self, found: Callable[[], bool], timeout: float) -> bool:
        until_s = self._world.now + timeout
        while not found():
            if self._world.now >= until_s:
                return False
            self._lock.release()
            self._world.sleep(0.001)
            self._lock.acquire()
        return True

    def notify_all(self) -> None: ...


class Threads:
    """What a world's threads do to each other.

    `mean_lines`: after about so many lines of the scheduler a thread loses its turn, or in some
        worlds in the middle of a line; 0: never.
    """

    def __init__(self, world: World, mean_lines: int) -> None:
        self._world = world
        self._mean_lines = mean_lines
        #: Seconds that one waits for its turn at most.
        self.late_s = 0.01
        #: How many have lost their turn in the middle of something.
        self.num_away = 0
        self._left = self._draw()
        #: Whether it may lose it in the middle of a line.
        self._splits = bool(mean_lines) and world.random.random() < 0.4
        self._local = {True: self._line, False: None}
        self._is_traced: dict[types.CodeType, bool] = {}
        if mean_lines:
            world.around = self._around

    def _draw(self) -> int:
        return 1 + int(self._world.random.expovariate(1.0) * self._mean_lines)

    def _around(self, work: Callable[[], None]) -> None:
        sys.settrace(self._call)
        try:
            work()
        finally:
            sys.settrace(None)

    def _call(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        traced = self._is_traced.get(code)
        if traced is None:
            traced = any(part in code.co_filename for part in _TRACED)
            self._is_traced[code] = traced = traced and code.co_name != "__del__"
        if traced:
            frame.f_trace_opcodes = self._splits
        return self._local[traced]

    def _line(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if event in ("line", "opcode"):
            self._left -= 1
            if self._left <= 0:
                self._left = self._draw()
                self.num_away += 1
                late = self._world.random.random()
                self._world.sleep(0.0 if late < 0.7 else self.late_s * late)
                self.num_away -= 1
        return self._line


class Until:
    """What has a fiber wait for a future."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, Any]:
        yield self._future
        return self._future.result()


def aside(work: Any, *given: Any) -> None:
    """Do what an event loop would have another thread do."""
    work(*given)


@contextmanager
def locks_of(world: World) -> Iterator[None]:
    """Have what is made inside use the world's locks."""
    made: Any = types.SimpleNamespace(**vars(threading))
    made.Lock = lambda: Lock(world)
    made.RLock = lambda: Lock(world, again=True)
    made.Condition = lambda lock: Condition(world, lock)
    modules: list[Any] = list(_MODULES)
    for module in modules:
        module.threading = made
    batcher: Any = hetero.apps.generate.batcher
    waits = batcher.wait_in_loop, batcher.run_in_thread
    batcher.wait_in_loop, batcher.run_in_thread = Until, aside
    # What is known of earlier histories would take fewer lines, and turns be lost elsewhere.
    hetero.scheduler.client.device_tensors.dtype_of.cache_clear()
    try:
        yield
    finally:
        for module in modules:
            module.threading = threading
        batcher.wait_in_loop, batcher.run_in_thread = waits
