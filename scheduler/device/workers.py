"""Worker threads: they run the tasks of a process's devices, as many at once as have streams.

Threads belong to no device: one that ends a task goes on with what that made ready, so that a
request goes through its stages without waiting for another thread to wake. Where tasks come by a
channel from other processes, the thread that waits for them is the one that runs them.
"""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from scheduler.channels.channel import PumpedChannel
from scheduler.device.loop import DeviceLoop
from scheduler.events import Run

#: Seconds that a thread may take to end; one that is stuck in a program ends with the process.
_JOIN_S: Final = 5.0

#: Seconds above which a task is long: it pays to receive beside it.
_LONG_S: Final = 0.001
#: Seconds after which a wait for messages is begun again.
_LOOK_S: Final = 0.5

_Job = tuple[DeviceLoop, Run]


class _Next(threading.local):
    """What the thread goes on with: None where it is no worker."""

    job: _Job | None = None
    #: Whether it takes every task, as a worker does.
    anyone = False
    #: Whose tasks it takes: 0 for those of the first to come, None for nobody's.
    request_id: int | None = None


class BaseWorkers(ABC):
    """Threads that run tasks, as many as are wanted."""

    def __init__(self, name: str) -> None:
        self._name = name
        #: Threads that live, those included that end with what they run now.
        self._threads: set[threading.Thread] = set()
        self._count = 0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many threads there are."""
        return self._count

    @abstractmethod
    def start(self, loop: DeviceLoop, due: Run) -> None:
        """Have a task run by one of the threads."""

    @abstractmethod
    def _work(self) -> None:
        """Run tasks, until this thread is one too many."""

    @abstractmethod
    def _end_one(self) -> None:
        """Have one of the threads end."""

    def keep(self, count: int) -> None:
        """Have so many threads from now on."""
        with self._lock:
            while self._count < count:
                name = f"{self._name}-{self._count}"
                thread = threading.Thread(target=self._live, name=name, daemon=True)
                self._threads.add(thread)
                self._count += 1
                thread.start()
            while self._count > count:
                self._count -= 1
                self._end_one()

    def stop(self) -> None:
        """End the threads, each with what it runs now."""
        self.keep(0)
        for thread in self._threads - {threading.current_thread()}:
            thread.join(timeout=_JOIN_S)

    def _live(self) -> None:
        self._work()
        with self._lock:
            self._threads.discard(threading.current_thread())


class Workers(BaseWorkers):
    """Threads of a process whose devices hand tasks to each other."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._next = _Next()

    def start(self, loop: DeviceLoop, due: Run) -> None:
        """Have a task run: by the calling thread when it is done here, or by another."""
        mine = self._next
        if mine.request_id == 0:
            mine.request_id = due.task.request.id
        if mine.job is None and (mine.anyone or mine.request_id == due.task.request.id):
            mine.job = (loop, due)
        else:
            self._jobs.put((loop, due))

    def help_with(self, begin: Callable[[], None]) -> None:
        """Call `begin`, and run the request that it starts in the calling thread while it can."""
        mine = self._next
        if mine.anyone or mine.request_id is not None:  # it has something to do already
            begin()
            return
        mine.request_id = 0
        try:
            begin()
            while mine.job is not None:
                (loop, due), mine.job = mine.job, None
                loop.run(due)
        finally:
            mine.request_id = None
            if mine.job is not None:
                job, mine.job = mine.job, None
                self._jobs.put(job)

    def _end_one(self) -> None:
        self._jobs.put(None)

    def _work(self) -> None:
        mine = self._next
        mine.anyone = True
        while (job := self._jobs.get()) is not None:
            while job is not None:
                _run(job)
                job, mine.job = mine.job, None


class PumpingWorkers(BaseWorkers):
    """Threads of one device: whoever is idle waits for messages, and runs what they make ready.

    A device whose stages take long has a thread more, that receives while they run: so what is to
    run next is chosen among all that has come. For short ones waking it would cost more.
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

    def serve(self, channel: PumpedChannel) -> None:
        """Receive what comes by a channel."""
        self._channel = channel
        self.run_at_once(1)

    def run_at_once(self, num_streams: int) -> None:
        """Run so many tasks at once from now on."""
        self._num_streams = num_streams
        self.keep(num_streams + (self._usual_s > _LONG_S))

    def start(self, loop: DeviceLoop, due: Run) -> None:
        """Have a task run by the thread that is idle next."""
        self._jobs.append((loop, due))
        one_of_us = threading.current_thread() in self._threads
        if self._channel is not None and (
            not one_of_us or (self._count > 1 and len(self._jobs) > 1)
        ):
            self._channel.wake()

    def _end_one(self) -> None:
        self._num_to_end += 1
        if self._channel is not None:
            self._channel.wake()

    def _work(self) -> None:
        while self._receive():
            while True:
                try:
                    job = self._jobs.popleft()
                except IndexError:
                    break
                begun_s = time.monotonic()
                _run(job)
                self._note(time.monotonic() - begun_s)

    def _note(self, took_s: float) -> None:
        was_long = self._usual_s > _LONG_S
        self._usual_s += (took_s - self._usual_s) / 8
        if was_long != (self._usual_s > _LONG_S):
            self.run_at_once(self._num_streams)

    def _receive(self) -> bool:
        """Wait until there is a task; False if this thread is to end."""
        assert self._channel is not None
        with self._turn:
            while not self._jobs:
                with self._lock:
                    if self._num_to_end:
                        self._num_to_end -= 1
                        return False
                self._channel.pump(_LOOK_S)
        return True


def _run(job: _Job) -> None:
    loop, due = job
    with suppress(KeyboardInterrupt):  # raised by a program: nobody pressed a key here
        loop.run(due)
