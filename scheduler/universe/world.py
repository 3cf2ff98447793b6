"""The world: virtual time, what is to happen when, and threads that run one at a time."""

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

#: Hexadecimal digits of a history's hash.
_DIGITS: Final = 16


class WorldClosed(BaseException):
    """Ends a fiber that still waits as its world is closed."""


class Fiber:
    """A thread that runs only while the world waits for it, so that there is one order of all."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._go = _thread.allocate_lock()
        self._go.acquire()
        self.work: Callable[[], None] | None = None
        threading.Thread(target=self._live, name="fiber", daemon=True).start()

    def resume(self) -> None:
        """Have it run on."""
        self._go.release()

    def pause(self) -> None:
        """Wait, in the fiber itself, until it is resumed."""
        self._go.acquire()

    def _live(self) -> None:
        while True:
            self._go.acquire()
            if self.work is None:
                return
            self._world.live(self)


class World:
    """What happens, in order of time; what is due at once happens in the order it was asked for.

    `is_threaded`: whether all that processes do is done by fibers, so that it may wait; else only
        what is spawned.
    `is_traced`: whether to keep the history's lines, and not their hash alone.
    """

    def __init__(
        self, seed: int = 0, *, is_threaded: bool = False, is_traced: bool = False
    ) -> None:
        self.is_threaded: Final = is_threaded
        self.random: Final = Random(seed)
        self.now = 0.0
        self.num_events = 0
        #: Around what a fiber does: tests look closer at it.
        self.around: Callable[[Callable[[], None]], None] = lambda work: work()
        #: What went wrong in an event: nothing may.
        self.errors: list[BaseException] = []
        self.lines: list[tuple[float, str]] | None = [] if is_traced else None
        self._hash = blake2b(digest_size=_DIGITS // 2)
        self._due: list[tuple[float, int, Callable[..., None], Any]] = []
        self._count = 0
        self._back = _thread.allocate_lock()
        self._back.acquire()
        self._idle: list[Fiber] = []
        #: Fibers that wait.
        self._waiting: dict[Fiber, None] = {}
        self._is_closed = False
        #: The fiber that runs now.
        self.fiber: Fiber | None = None

    def now_s(self) -> float:
        """Return the time."""
        return self.now

    @property
    def hash(self) -> str:
        """What is equal for equal histories."""
        return self._hash.hexdigest()

    @property
    def next_s(self) -> float | None:
        """When something happens next; None: never."""
        return self._due[0][0] if self._due else None

    def note(self, line: str) -> None:
        """Write a line of the history."""
        self._hash.update(f"{self.now:.9f} {line}\n".encode())
        if self.lines is not None:
            self.lines.append((self.now, line))

    def after(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Have `call` called later; it must not wait."""
        self._count += 1
        heapq.heappush(self._due, (self.now + delay_s, self._count, call, arguments))

    def spawn(self, work: Callable[[], None]) -> None:
        """Have `work`, which may wait, done from now on."""
        self.after(0.0, self.enter, work)

    def run(self, until_s: float = inf) -> None:
        """Let happen what is due until then."""
        while self._due and self._due[0][0] <= until_s:
            self.step()
        if until_s < inf:
            self.now = max(self.now, until_s)

    def step(self) -> bool:
        """Let happen what is due next; whether there was anything."""
        if not self._due:
            return False
        self.now, _, call, arguments = heapq.heappop(self._due)
        self.num_events += 1
        call(*arguments)
        return True

    def close(self) -> None:
        """End the threads that wait, for whatever it is."""
        self._is_closed = True
        while self._waiting:
            self._resume(next(iter(self._waiting)))
        for fiber in self._idle:
            fiber.work = None
            fiber.resume()
        self._idle.clear()
        self._due.clear()

    # Fibers.

    def enter(self, work: Callable[[], None]) -> None:
        """Do `work` in a fiber, until it has ended or waits."""
        fiber = self._idle.pop() if self._idle else Fiber(self)
        fiber.work = work
        self._resume(fiber)

    def live(self, fiber: Fiber) -> None:
        """Do a fiber's work, in its thread."""
        work, fiber.work = fiber.work, None  # it may hold tensors
        assert work is not None
        try:
            self.around(work)
        except BaseException as error:
            self.errors.append(error)
        self._idle.append(fiber)
        self._back.release()

    def pause(self) -> None:
        """Have the fiber that runs wait until `resume_later` has it go on."""
        fiber = self.fiber
        assert fiber is not None, "only a fiber may wait: spawn what does"
        if not self._is_closed:
            self._waiting[fiber] = None
            self._back.release()
            fiber.pause()
            del self._waiting[fiber]
        if self._is_closed:
            raise WorldClosed

    def resume_later(self, fiber: Fiber, delay_s: float = 0.0) -> None:
        """Have a fiber that waits go on."""
        self.after(delay_s, self._resume, fiber)

    def sleep(self, delay_s: float) -> None:
        """Have the fiber that runs wait for so long."""
        assert self.fiber is not None
        self.resume_later(self.fiber, delay_s)
        self.pause()

    def _resume(self, fiber: Fiber) -> None:
        self.fiber = fiber
        fiber.resume()
        self._back.acquire()
        self.fiber = None


class WorldEvent:
    """An event that fibers wait on: `threading.Event` in virtual time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False
        self._waiting: list[Fiber] = []

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Let all go on that wait for it."""
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for fiber in waiting:
            self._world.resume_later(fiber)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most so long; return whether it is set."""
        if not self._is_set:
            fiber = self._world.fiber
            assert fiber is not None, "only a fiber may wait: spawn what does"
            self._waiting.append(fiber)
            if timeout is not None:
                self._world.after(max(0.0, timeout), self._give_up, fiber)
            self._world.pause()
        return self._is_set

    def _give_up(self, fiber: Fiber) -> None:
        if fiber in self._waiting:
            self._waiting.remove(fiber)
            self._world.resume_later(fiber)


class Cores:
    """A node's cores: what computes there shares them evenly, as far as each can use them.

    `together`: what is left of a core's speed while all of them work: they share memory, and some
        more.
    """

    def __init__(self, world: World, count: int, together: float = 1.0) -> None:
        self._world = world
        self.count = count
        self._slowed = (1.0 - together) / max(1, count - 1)
        #: Seconds that its cores worked, in all.
        self.busy_s = 0.0
        #: How many cores could be used now.
        self._wanted = 0.0
        #: Seconds of work that each which computes has got, since when there are any; until when.
        self._got_s = 0.0
        self._until_s = 0.0
        #: What computes, by the seconds of work that it ends at.
        self._due: list[tuple[float, int, float, Callable[[], None]]] = []
        self._count = 0

    def compute(self, work_s: float, width: float, call: Callable[[], None]) -> None:
        """Have `call` called once `width` cores have worked for so long; slower with others."""
        self._pass()
        self._wanted += width
        self._count += 1
        heapq.heappush(self._due, (self._got_s + work_s, self._count, width, call))
        self._look()

    @property
    def _speed(self) -> float:
        used = min(self._wanted, self.count)
        return (1.0 - self._slowed * max(0.0, used - 1.0)) * used / self._wanted

    def _pass(self) -> None:
        passed_s, self._until_s = self._world.now - self._until_s, self._world.now
        if self._due:
            self._got_s += passed_s * self._speed
            self.busy_s += passed_s * min(self._wanted, self.count)

    def _look(self) -> None:
        if self._due:
            left_s = max(0.0, self._due[0][0] - self._got_s)
            self._world.after(left_s / self._speed, self._end, self._count)
        else:
            self._wanted = self._got_s = 0.0

    def _end(self, count: int) -> None:
        """End what is first, unless something began or ended since this was to happen."""
        if count != self._count:
            return
        self._pass()
        _, _, width, call = heapq.heappop(self._due)
        self._wanted -= width
        self._count += 1
        self._look()
        call()


class Process:
    """A process: it does one thing after the other, may be stopped for a while, and may end.

    `lane`: whose turn it takes to do something: that of an interpreter, which processes may share.
    `cores`: what it computes on; None: as many as it likes.
    """

    def __init__(self, world: World, name: str, node: str, cores: Cores | None = None) -> None:
        self.world = world
        self.name = name
        self.node = node
        self.lane = self
        self.cores = cores
        #: What is done one after the other.
        self._turns: deque[tuple[Process, float, float, Callable[..., None], Any]] = deque()
        self.is_alive = True
        #: Until when it is stopped; how long it had something to do, in all.
        self.stopped_until_s = 0.0
        self.busy_s = 0.0
        #: Seconds that what it has done had waited for it.
        self.queued_s = 0.0

    @property
    def is_stopped(self) -> bool:
        """Whether it does nothing now."""
        return self.world.now < self.stopped_until_s

    def do(self, delay_s: float, cost_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Have it do something that takes `cost_s` of its own time, after a delay."""
        self.world.after(delay_s, self._begin, cost_s, call, arguments)

    def compute(self, work_s: float, width: float, call: Callable[[], None]) -> None:
        """Have `call` called once `width` of its cores, or what needs none, worked for so long."""
        if self.cores is None or not width:
            self.world.after(work_s, call)
        else:
            self.cores.compute(work_s, width, call)

    def _begin(self, cost_s: float, call: Callable[..., None], arguments: Any) -> None:
        world = self.world
        if not self.is_alive:
            return
        if self.is_stopped:
            wait_s = self.stopped_until_s - world.now
            world.after(wait_s, self._begin, cost_s, call, arguments)
        elif cost_s:
            turns = self.lane._turns
            self.busy_s += cost_s
            turns.append((self, world.now, cost_s, call, arguments))
            if len(turns) == 1:
                self.lane._take_turn()
        else:
            self._end(call, arguments)

    def _take_turn(self) -> None:
        process, came_s, cost_s, _, _ = self._turns[0]
        process.queued_s += self.world.now - came_s
        self.compute(cost_s, 1.0, self._end_turn)

    def _end_turn(self) -> None:
        process, _, _, call, arguments = self._turns.popleft()
        if self._turns:
            self._take_turn()
        process._end(call, arguments)

    def _end(self, call: Callable[..., None], arguments: Any) -> None:
        if not self.is_alive:
            return
        if self.world.is_threaded:
            self.world.enter(partial(call, *arguments))
        else:
            call(*arguments)


class WorldClock(Clock):
    """An executor's clock in virtual time: its thread is the world's."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.name, process.world.now_s)
        self._process = process

    def spawn(self, work: Callable[[], None], name: str) -> threading.Thread | None:
        """Have `work` done by a fiber; the clock's own thread is not wanted."""
        if work != self._run:
            self._process.world.spawn(work)
        return None

    def event(self) -> threading.Event:
        """Return what fibers wait on."""
        return WorldEvent(self._process.world)  # type: ignore[return-value]  # all that is used

    def _put(self, order: Callable[[], None] | None) -> None:
        if order is not None:
            self._process.do(0.0, 0.0, order)
        elif self._wakes_s < inf:
            delay_s = max(0.0, self._wakes_s - self.now_s())
            self._process.do(delay_s, 0.0, self._wake, self._wakes_s)

    def _wake(self, due_s: float) -> None:
        if due_s == self._wakes_s and not self._closed:  # else another wake is on its way
            self.look()
            if self.next_look_s() < inf:
                self._put(None)
