"""Discrete-event simulator: virtual time, an event queue, and threads that run one at a time."""

from __future__ import annotations

import _thread
import heapq
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from math import inf
from random import Random
from typing import Any, Final

from hetero.scheduler.clock import Clock

#: Hexadecimal digits of the hash of an event log.
_DIGITS: Final = 16


class SimulationClosed(BaseException):
    """Exception that ends a waiting sim thread when the simulator is closed."""


class SimThread:
    """Sim thread, which runs only while the simulator waits; thus only one runs at a time."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._resume_lock = _thread.allocate_lock()
        self._resume_lock.acquire()
        self.work: Callable[[], None] | None = None
        threading.Thread(target=self._live, name="sim_thread", daemon=True).start()

    def resume(self) -> None:
        """Resume the sim thread."""
        self._resume_lock.release()

    def pause(self) -> None:
        """Wait until resumed; called in the sim thread itself."""
        self._resume_lock.acquire()

    def _live(self) -> None:
        while True:
            self._resume_lock.acquire()
            if self.work is None:
                return
            self._simulator.live(self)


class Simulator:
    """Simulator: runs events in order of time, and simultaneous events in the order of scheduling.

    `is_threaded`: whether all work of processes runs in sim threads and may wait; otherwise only
        spawned work does.
    `is_traced`: whether to store the lines of the event log in addition to their hash.
    """

    def __init__(
        self, seed: int = 0, *, is_threaded: bool = False, is_traced: bool = False
    ) -> None:
        self.is_threaded: Final = is_threaded
        self.random: Final = Random(seed)
        self.now = 0.0
        self.num_events = 0
        #: Wraps the work of each sim thread; a hook for tests.
        self.around: Callable[[Callable[[], None]], None] = lambda work: work()
        #: Errors of events; empty in a correct run.
        self.errors: list[BaseException] = []
        self.lines: list[tuple[float, str]] | None = [] if is_traced else None
        self._hash = blake2b(digest_size=_DIGITS // 2)
        self._due: list[tuple[float, int, Callable[..., None], Any]] = []
        self._count = 0
        self._return_lock = _thread.allocate_lock()
        self._return_lock.acquire()
        self._idle: list[SimThread] = []
        #: Waiting sim threads.
        self._waiting: dict[SimThread, None] = {}
        self._is_closed = False
        #: The running sim thread.
        self.sim_thread: SimThread | None = None

    def now_s(self) -> float:
        """Return the virtual time, in seconds."""
        return self.now

    @property
    def hash(self) -> str:
        """Hash of the event log; equal runs have equal hashes."""
        return self._hash.hexdigest()

    @property
    def next_s(self) -> float | None:
        """Time of the next event; None without one."""
        return self._due[0][0] if self._due else None

    def note(self, line: str) -> None:
        """Append a line to the event log."""
        self._hash.update(f"{self.now:.9f} {line}\n".encode())
        if self.lines is not None:
            self.lines.append((self.now, line))

    def after(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call of `call`, which must not wait."""
        self._count += 1
        heapq.heappush(self._due, (self.now + delay_s, self._count, call, arguments))

    def spawn(self, work: Callable[[], None]) -> None:
        """Schedule `work`, which may wait, in a sim thread, starting now."""
        self.after(0.0, self.enter, work)

    def run(self, until_s: float = inf) -> None:
        """Run all events up to `until_s`."""
        while self._due and self._due[0][0] <= until_s:
            self.step()
        if until_s < inf:
            self.now = max(self.now, until_s)

    def step(self) -> bool:
        """Run the next event; return whether there was one."""
        if not self._due:
            return False
        self.now, _, call, arguments = heapq.heappop(self._due)
        self.num_events += 1
        call(*arguments)
        return True

    def close(self) -> None:
        """End all waiting sim threads."""
        self._is_closed = True
        while self._waiting:
            self._resume(next(iter(self._waiting)))
        for sim_thread in self._idle:
            sim_thread.work = None
            sim_thread.resume()
        self._idle.clear()
        self._due.clear()

    # Sim threads.

    def enter(self, work: Callable[[], None]) -> None:
        """Run `work` in a sim thread until it ends or waits."""
        sim_thread = self._idle.pop() if self._idle else SimThread(self)
        sim_thread.work = work
        self._resume(sim_thread)

    def live(self, sim_thread: SimThread) -> None:
        """Run the work of a sim thread; called in that thread."""
        work, sim_thread.work = sim_thread.work, None  # it may hold tensors
        assert work is not None
        try:
            self.around(work)
        except BaseException as error:
            self.errors.append(error)
        self._idle.append(sim_thread)
        self._return_lock.release()

    def pause(self) -> None:
        """Make the running sim thread wait until `resume_later` resumes it."""
        sim_thread = self.sim_thread
        assert sim_thread is not None, "only a SimThread may wait; call spawn"
        if not self._is_closed:
            self._waiting[sim_thread] = None
            self._return_lock.release()
            sim_thread.pause()
            del self._waiting[sim_thread]
        if self._is_closed:
            raise SimulationClosed

    def resume_later(self, sim_thread: SimThread, delay_s: float = 0.0) -> None:
        """Schedule the resumption of a waiting sim thread."""
        self.after(delay_s, self._resume, sim_thread)

    def sleep(self, delay_s: float) -> None:
        """Make the running sim thread wait for `delay_s` seconds."""
        assert self.sim_thread is not None
        self.resume_later(self.sim_thread, delay_s)
        self.pause()

    def _resume(self, sim_thread: SimThread) -> None:
        self.sim_thread = sim_thread
        sim_thread.resume()
        self._return_lock.acquire()
        self.sim_thread = None


class SimEvent:
    """Event for sim threads: `threading.Event` in virtual time."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._is_set = False
        self._waiting: list[SimThread] = []

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event and resume all sim threads that wait for it."""
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for sim_thread in waiting:
            self._simulator.resume_later(sim_thread)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the event, at most `timeout` seconds; return whether it is set."""
        if not self._is_set:
            sim_thread = self._simulator.sim_thread
            assert sim_thread is not None, "only a SimThread may wait; call spawn"
            self._waiting.append(sim_thread)
            if timeout is not None:
                self._simulator.after(max(0.0, timeout), self._give_up, sim_thread)
            self._simulator.pause()
        return self._is_set

    def _give_up(self, sim_thread: SimThread) -> None:
        if sim_thread in self._waiting:
            self._waiting.remove(sim_thread)
            self._simulator.resume_later(sim_thread)


class Cores:
    """Cores of a node, shared evenly among its computations up to the width of each.

    `together`: relative speed of a core while all cores work, because cores share resources such
        as memory bandwidth.
    """

    def __init__(self, simulator: Simulator, count: int, together: float = 1.0) -> None:
        self._simulator = simulator
        self.count = count
        self._slowed = (1.0 - together) / max(1, count - 1)
        #: Total working time of all cores, in seconds.
        self.busy_s = 0.0
        #: Total number of cores that the running computations can use.
        self._num_usable = 0.0
        #: Work per running computation since the cores were last idle; time of the last update.
        self._got_s = 0.0
        self._until_s = 0.0
        #: Running computations, by the amount of work at which they end.
        self._due: list[tuple[float, int, float, Callable[[], None]]] = []
        self._count = 0

    def compute(self, work_s: float, width: float, call: Callable[[], None]) -> None:
        """Call `call` after `work_s` seconds on `width` cores; later if others need the cores."""
        self._pass()
        self._num_usable += width
        self._count += 1
        heapq.heappush(self._due, (self._got_s + work_s, self._count, width, call))
        self._look()

    @property
    def _speed(self) -> float:
        used = min(self._num_usable, self.count)
        return (1.0 - self._slowed * max(0.0, used - 1.0)) * used / self._num_usable

    def _pass(self) -> None:
        passed_s, self._until_s = self._simulator.now - self._until_s, self._simulator.now
        if self._due:
            self._got_s += passed_s * self._speed
            self.busy_s += passed_s * min(self._num_usable, self.count)

    def _look(self) -> None:
        if self._due:
            left_s = max(0.0, self._due[0][0] - self._got_s)
            self._simulator.after(left_s / self._speed, self._end, self._count)
        else:
            self._num_usable = self._got_s = 0.0

    def _end(self, count: int) -> None:
        """End the first computation; do nothing if a computation began or ended meanwhile."""
        if count != self._count:
            return
        self._pass()
        _, _, width, call = heapq.heappop(self._due)
        self._num_usable -= width
        self._count += 1
        self._look()
        call()


class Process:
    """Simulated process: handles one task at a time, can be stopped for a while, and can crash.

    `lane`: the process whose queue it uses; processes that share an interpreter share a queue.
    `cores`: the cores that it computes on; None: unlimited.
    """

    def __init__(
        self, simulator: Simulator, name: str, node: str, cores: Cores | None = None
    ) -> None:
        self.simulator = simulator
        self.name = name
        self.node = node
        self.lane = self
        self.cores = cores
        #: Queue of tasks that run one at a time.
        self._turns: deque[tuple[Process, float, float, Callable[..., None], Any]] = deque()
        self.is_alive = True
        #: Time until which it is stopped; total time of its tasks, in seconds.
        self.stopped_until_s = 0.0
        self.busy_s = 0.0
        #: Total waiting time of its tasks, in seconds.
        self.queued_s = 0.0

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped now."""
        return self.simulator.now < self.stopped_until_s

    def do(self, delay_s: float, cost_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Schedule a task that takes `cost_s` of the process's time, after a delay."""
        self.simulator.after(delay_s, self._begin, cost_s, call, arguments)

    def compute(self, work_s: float, width: float, call: Callable[[], None]) -> None:
        """Call `call` after `work_s` seconds of work on `width` cores; 0: without a core."""
        if self.cores is None or not width:
            self.simulator.after(work_s, call)
        else:
            self.cores.compute(work_s, width, call)

    def _begin(self, cost_s: float, call: Callable[..., None], arguments: Any) -> None:
        simulator = self.simulator
        if not self.is_alive:
            return
        if self.is_stopped:
            wait_s = self.stopped_until_s - simulator.now
            simulator.after(wait_s, self._begin, cost_s, call, arguments)
        elif cost_s:
            turns = self.lane._turns
            self.busy_s += cost_s
            turns.append((self, simulator.now, cost_s, call, arguments))
            if len(turns) == 1:
                self.lane._take_turn()
        else:
            self._end(call, arguments)

    def _take_turn(self) -> None:
        process, came_s, cost_s, _, _ = self._turns[0]
        process.queued_s += self.simulator.now - came_s
        self.compute(cost_s, 1.0, self._end_turn)

    def _end_turn(self) -> None:
        process, _, _, call, arguments = self._turns.popleft()
        if self._turns:
            self._take_turn()
        process._end(call, arguments)

    def _end(self, call: Callable[..., None], arguments: Any) -> None:
        if not self.is_alive:
            return
        if self.simulator.is_threaded:
            self.simulator.enter(partial(call, *arguments))
        else:
            call(*arguments)


class SimClock(Clock):
    """Executor clock in virtual time; the simulator replaces its thread."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.name, process.simulator.now_s)
        self._process = process

    def spawn(self, work: Callable[[], None], name: str) -> threading.Thread | None:
        """Run `work` in a sim thread; the clock itself needs no thread."""
        if work != self._run:
            self._process.simulator.spawn(work)
        return None

    def event(self) -> threading.Event:
        """Create an event that sim threads can wait for."""
        return SimEvent(self._process.simulator)  # type: ignore[return-value]  # duck-typed

    def _enqueue(self, order: Callable[[], None] | None) -> None:
        if order is not None:
            self._process.do(0.0, 0.0, order)
        elif self._wakes_s < inf:
            delay_s = max(0.0, self._wakes_s - self.now_s())
            self._process.do(delay_s, 0.0, self._wake, self._wakes_s)

    def _wake(self, due_s: float) -> None:
        if due_s == self._wakes_s and not self._closed:  # otherwise a later wake is scheduled
            self.look()
            if self.next_look_s() < inf:
                self._enqueue(None)
