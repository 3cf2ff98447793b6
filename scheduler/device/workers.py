"""Worker threads: they run the tasks of a process's devices, as many at once as have streams.

Threads belong to no device: one that ends a task goes on with what that made ready, so that a
request goes through its stages without waiting for another thread to wake. Where tasks come by a
channel from other processes, the thread that waits for them is the one that runs them.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final

from hetero.devices.errors import OverloadedError
from hetero.scheduler.channels.channel import PumpedChannel, Receiver
from hetero.scheduler.clock import Clock
from hetero.scheduler.device.loop import DeviceLoop
from hetero.scheduler.processes.threads import start_thread
from hetero.scheduler.vocabulary.events import Run
from hetero.scheduler.vocabulary.messages import Message

_log = logging.getLogger(__name__)

#: Seconds that a thread may take to end; one that is stuck in a program ends with the process.
_JOIN_S: Final = 5.0

#: Seconds above which it pays to have another thread take what is queued behind a task.
_HAND_OVER_S: Final = 0.0002
#: Seconds after which a task that was to be shorter is found to be long.
_WATCH_S: Final = 0.005
#: Seconds above which a task is long: it pays to receive beside it.
_LONG_S: Final = 0.001
#: So many short tasks are run before what they give is sent.
_TOGETHER: Final = 16
#: Seconds after which a wait for messages is begun again.
_LOOK_S: Final = 0.5
#: What a worker takes: every request's tasks.
_ANY: Final = 0

_Job = tuple[DeviceLoop, Run]


class _Mine(threading.local):
    """What the thread goes on with, and the request whose tasks it takes, if it takes any."""

    job: _Job | None = None
    request_id: int | None = None


class BaseWorkers(ABC):
    """Threads that run tasks, as many as are wanted."""

    def __init__(self, name: str) -> None:
        self._name = name
        #: Threads that live, by their idents, those included that end with what they run now.
        self._threads: dict[int | None, threading.Thread] = {}
        #: How many there are, but for those.
        self.count = 0
        self._lock = threading.Lock()

    @abstractmethod
    def _work(self) -> None:
        """Run tasks, until this thread is one too many."""

    @abstractmethod
    def _end_one(self) -> None:
        """Have one of the threads end."""

    def keep(self, count: int) -> None:
        """Have so many threads from now on, or as many as the system has.

        Raises OverloadedError: it has not one.
        """
        with self._lock:
            self._keep(count)

    def _keep(self, count: int) -> None:
        while self.count < count:
            name = f"{self._name}-{self.count}"
            try:
                thread = start_thread(self._live, name)
            except OverloadedError as error:
                if not self.count:
                    raise
                _log.warning("%d threads do the work of %d: %s", self.count, count, error)
                return
            self.count += 1
            self._threads[thread.ident] = thread
        while self.count > count:
            self.count -= 1
            self._end_one()

    def stop(self) -> None:
        """End the threads, each with what it runs now."""
        self.keep(0)
        for ident, thread in list(self._threads.items()):
            if ident != threading.get_ident():
                thread.join(timeout=_JOIN_S)

    def _live(self) -> None:
        self._work()
        with self._lock:
            del self._threads[threading.get_ident()]


class Workers(BaseWorkers):
    """Threads of a process whose devices hand tasks to each other.

    While tasks are short one thread runs them all: to wake another takes longer than they do, and
    then the two take the interpreter's lock from each other. Before a task that is usually long, a
    thread sees to it that another takes what is queued; where one takes longer than usual, the
    executor's clock does.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name)
        self._clock = clock
        self._timer = clock.timer(self._look)
        self._jobs: deque[_Job] = deque()
        self._mine = _Mine()
        self._state = threading.Lock()
        #: Threads that run nothing long, so that they soon take what is queued.
        self._soon: set[int] = set()
        #: Threads that were woken and will be among those.
        self._num_coming = 0
        #: Threads that have not gone back to wait.
        self._num_awake = 0
        #: What was queued first when the clock looked last.
        self._seen: _Job | None = None
        #: What wakes threads; False ends one.
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def start(self, loop: DeviceLoop, due: Run) -> None:
        """Have a task run: by the calling thread when it is done here, or by another."""
        mine = self._mine
        if mine.job is None and mine.request_id in (_ANY, due.task.request.id):
            mine.job = (loop, due)
        else:
            self._put((loop, due))

    @property
    def are_idle(self) -> bool:
        """Whether every thread waits to be woken."""
        return not (self._num_coming or self._num_awake)

    def help_with(self, request_id: int, begin: Callable[[], None]) -> None:
        """Call `begin`, and run the request that it starts in the calling thread while it can."""
        mine = self._mine
        if mine.request_id is not None:  # it has something to do already
            begin()
            return
        mine.request_id = request_id
        job: _Job | None = None
        try:
            begin()
            while (job := mine.job) is not None:
                mine.job = None
                job[0].run(job[1])
        except BaseException as error:  # Ctrl-C may come before the task runs
            if job is not None:
                job[0].give_up(job[1].task, error)
            raise
        finally:
            mine.request_id = None
            left, mine.job = mine.job, None
            if left is not None and left is not job:
                self._put(left)

    def receiver(self, receive: Receiver) -> Receiver:
        """Return what takes in a client's messages: beside the task that a worker goes on with."""

        def take(message: Message) -> None:
            if self._mine.request_id == _ANY and self._mine.job is not None:
                self._clock.later(partial(receive, message))
            else:
                receive(message)

        return take

    def _put(self, job: _Job) -> None:
        with self._state:
            self._jobs.append(job)
            if self._soon or self._num_coming:
                if self._timer.due_s == inf:
                    self._seen = self._jobs[0]
                    self._timer.by(self._clock.now_s() + _WATCH_S)
            else:
                self._have_taken()

    def _have_taken(self) -> None:
        """Wake a thread for what is queued, where none will soon look for it."""
        if self._jobs and not (self._soon or self._num_coming):
            self._num_coming += 1
            self._calls.put(True)

    def _end_one(self) -> None:
        self._calls.put(False)

    def _work(self) -> None:
        me = threading.get_ident()
        self._mine.request_id = _ANY
        while self._calls.get():
            with self._state:
                self._num_coming -= 1
                self._num_awake += 1
                self._soon.add(me)
            while job := self._take(me):
                if job[1].stage.usual_s > _HAND_OVER_S:
                    with self._state:
                        self._soon.discard(me)
                        self._have_taken()
                _run(job)
                self._soon.add(me)

    def _take(self, me: int) -> _Job | None:
        """Return what this thread does next; None, if it is to wait until it is woken."""
        mine = self._mine
        if (job := mine.job) is not None:
            mine.job = None
            return job
        with self._state:
            if self._jobs:
                return self._jobs.popleft()
            self._soon.discard(me)
            self._num_awake -= 1
            return None

    def _look(self) -> float | None:
        """See to it that what is queued behind a task that was to be short is taken in any case."""
        with self._state:
            before, self._seen = self._seen, self._jobs[0] if self._jobs else None
            if self._seen is None:
                return None
            if self._seen is before:  # nobody has taken it
                self._soon.clear()
                self._have_taken()
            return self._clock.now_s() + _WATCH_S


class PumpingWorkers(BaseWorkers):
    """Threads of one device: whoever is idle waits for messages, and runs what they make ready.

    Where several short tasks come at once, what they give goes on together, so that the next device
    wakes once for all. A device whose stages take long has a thread more, that receives while they
    run: so what is to run next is chosen among all that has come. For short ones waking it would
    cost more.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._channel: PumpedChannel | None = None
        self._jobs: deque[_Job] = deque()
        #: Held by the thread that waits for messages.
        self._turn = threading.Lock()
        self._num_to_end = 0
        self._num_streams = 1
        #: About how long a task takes, the last ones counting most.
        self._usual_s = 0.0
        self._is_long = False

    def serve(self, channel: PumpedChannel) -> None:
        """Receive what comes by a channel."""
        self._channel = channel
        self.run_at_once(1)

    def run_at_once(self, num_streams: int) -> None:
        """Run so many tasks at once from now on."""
        with self._lock:
            self._num_streams = num_streams
            self._keep(num_streams + self._is_long)

    def start(self, loop: DeviceLoop, due: Run) -> None:
        """Have a task run by the thread that is idle next."""
        self._jobs.append((loop, due))
        one_of_us = threading.get_ident() in self._threads
        if self._channel is not None and (
            not one_of_us or (self.count > 1 and len(self._jobs) > 1)
        ):
            self._channel.wake()

    def _end_one(self) -> None:
        self._num_to_end += 1
        if self._channel is not None:
            self._channel.wake()

    def _work(self) -> None:
        assert self._channel is not None
        num_waits, num_run, is_many = 0, 0, False
        while self._receive():
            if (waits := self._channel.num_waits) != num_waits:
                num_waits = waits
                is_many, num_run = num_run > 1, 0  # as it was the last time
            if is_many and self.count == 1 and self._usual_s < _HAND_OVER_S:
                self._channel.cork()
                try:
                    num_run += self._run_all(_TOGETHER)
                finally:
                    self._channel.uncork()
            else:
                num_run += self._run_all(0)

    def _run_all(self, most: int) -> int:
        """Run the tasks that are there, and up to `most` that come meanwhile; return how many."""
        num_run = 0
        while True:
            try:
                job = self._jobs.popleft()
            except IndexError:
                if num_run < most and self._pump(0):
                    continue
                return num_run
            begun_s = time.monotonic()
            _run(job)
            self._note(time.monotonic() - begun_s)
            num_run += 1

    def _note(self, took_s: float) -> None:
        self._usual_s += (took_s - self._usual_s) / 8
        if self._is_long != (self._usual_s > _LONG_S):
            with self._lock:
                self._is_long = self._usual_s > _LONG_S
                self._keep(self._num_streams + self._is_long)

    def _receive(self) -> bool:
        """Wait until there is a task; False if this thread is to end."""
        with self._turn:
            while not self._jobs:
                with self._lock:
                    if self._num_to_end:
                        self._num_to_end -= 1
                        return False
                self._pump(_LOOK_S)
        return True

    def _pump(self, timeout_s: float) -> int:
        assert self._channel is not None
        try:
            return self._channel.pump(timeout_s)
        except Exception:  # one message's trouble must not make the device deaf
            _log.exception("device=%s: a message could not be taken in", self._name)
            return 0


def _run(job: _Job) -> None:
    loop, due = job
    try:
        loop.run(due)
    except Exception:  # the task's client has been told
        _log.exception("a task has failed in an unexpected way")
