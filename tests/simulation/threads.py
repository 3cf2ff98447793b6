"""Locks in virtual time, and preemption of simulated threads at any line."""

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
from hetero.scheduler.simulation.simulator import SimThread, Simulator

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
#: Code in which threads are preempted.
_TRACED = ("/scheduler/client/", "/scheduler/device/", "/scheduler/clock.py")
_OUTBOX = "/client/outbox.py"
#: Modules whose methods append orders to an outbox, or execute them.
_ORDERS = ("/client/request_runner.py", _OUTBOX)
#: Share of the lines of a slow outbox at which threads are preempted.
_OUTBOX_PREEMPTIONS = 0.2


class Lock:
    """`threading.Lock`, or `RLock`, for `SimThread` objects."""

    def __init__(self, simulator: Simulator, *, again: bool = False) -> None:
        self._simulator = simulator
        self._again = again
        self._depth = 0
        self._owner: SimThread | None = None
        self._waiting: list[SimThread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._simulator.sim_thread
        while self._depth and not (self._again and self._owner is me):
            if not blocking:
                return False
            assert me is not None, "a lock is waited for outside of any SimThread"
            self._waiting.append(me)
            self._simulator.pause()
        self._depth += 1
        self._owner = me
        return True

    def release(self) -> None:
        if not self._depth:
            raise RuntimeError("release unlocked lock")
        self._depth -= 1
        if not self._depth and self._waiting:
            self._simulator.resume_later(self._waiting.pop(0))

    def locked(self) -> bool:
        return self._depth > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """The used part of `threading.Condition`."""

    def __init__(self, simulator: Simulator, lock: Lock) -> None:
        self._simulator = simulator
        self._lock = lock

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        until_s = self._simulator.now + timeout
        while not predicate():
            if self._simulator.now >= until_s:
                return False
            self._lock.release()
            self._simulator.sleep(0.001)
            self._lock.acquire()
        return True

    def notify_all(self) -> None: ...


class Threads:
    """Preemption of the simulated threads of a simulator.

    `mean_lines`: mean number of the scheduler's lines after which a thread is preempted, in some
        worlds in the middle of a line; 0: never.
    `is_outbox_slow`: whether threads are preempted at one in five lines of an outbox, where another
        thread may append orders just before the executing thread stops.
    """

    def __init__(
        self, simulator: Simulator, mean_lines: int, *, is_outbox_slow: bool = False
    ) -> None:
        self._simulator = simulator
        self._mean_lines = mean_lines
        self._is_outbox_slow = is_outbox_slow
        #: Maximum time that a preempted thread waits, in seconds.
        self.late_s = 0.01
        #: Preempted threads; whether each executes methods that leave orders to it.
        self._preempted: dict[SimThread | None, bool] = {}
        #: Whether no thread is preempted for now.
        self.is_suspended = False
        self._left = self._draw()
        #: Whether threads are preempted within lines.
        self._splits = bool(mean_lines) and simulator.random.random() < 0.4
        self._local = {True: self._line, False: None}
        self._is_traced: dict[types.CodeType, bool] = {}
        if mean_lines:
            simulator.around = self._around

    @property
    def num_preempted(self) -> int:
        """Number of preempted threads."""
        return len(self._preempted)

    @property
    def are_orders_delayed(self) -> bool:
        """Whether a preempted thread may have to execute orders."""
        return any(self._preempted.values())

    def _draw(self) -> int:
        return 1 + int(self._simulator.random.expovariate(1.0) * self._mean_lines)

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
        if event in ("line", "opcode") and not self.is_suspended:
            self._left -= 1
            if self._left <= 0 or self._pauses_outbox(frame, event):
                self._left = self._draw()
                thread = self._simulator.sim_thread
                caller: types.FrameType | None = frame
                while caller is not None and not caller.f_code.co_filename.endswith(_ORDERS):
                    caller = caller.f_back
                self._preempted[thread] = caller is not None
                late = self._simulator.random.random()
                self._simulator.sleep(0.0 if late < 0.7 else self.late_s * late)
                del self._preempted[thread]
        return self._line

    def _pauses_outbox(self, frame: types.FrameType, event: str) -> bool:
        """Draw whether a thread is preempted at a line of an outbox."""
        is_in_outbox = frame.f_code.co_filename.endswith(_OUTBOX)
        if not (self._is_outbox_slow and is_in_outbox and event == "line"):
            return False
        return self._simulator.random.random() < _OUTBOX_PREEMPTIONS


class FutureAwaitable:
    """Awaitable that makes a `SimThread` wait for a future."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, Any]:
        yield self._future
        return self._future.result()


def run_in_same_thread(work: Any, *arguments: Any) -> None:
    """Run the work of another thread immediately."""
    work(*arguments)


@contextmanager
def locks_of(simulator: Simulator) -> Iterator[None]:
    """Use the simulator's locks in all objects created inside the context."""
    fake_threading: Any = types.SimpleNamespace(**vars(threading))
    fake_threading.Lock = lambda: Lock(simulator)
    fake_threading.RLock = lambda: Lock(simulator, again=True)
    fake_threading.Condition = lambda lock: Condition(simulator, lock)
    modules: list[Any] = list(_MODULES)
    for module in modules:
        module.threading = fake_threading
    batcher: Any = hetero.apps.generate.batcher
    originals = batcher.wait_in_loop, batcher.run_in_thread
    batcher.wait_in_loop, batcher.run_in_thread = FutureAwaitable, run_in_same_thread
    # Cached results of earlier histories would change the lines at which threads are preempted.
    hetero.scheduler.client.device_tensors.dtype_of.cache_clear()
    try:
        yield
    finally:
        for module in modules:
            module.threading = threading
        batcher.wait_in_loop, batcher.run_in_thread = originals
