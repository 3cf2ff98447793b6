"""Worker threads: they run the tasks of a process's devices, as many at once as have streams.

Threads belong to no device: one that ends a task goes on with what that made ready, so that a
request goes through its stages without waiting for another thread to wake.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from scheduler.channels.messages import Task
from scheduler.device.loop import DeviceLoop

#: Seconds that a thread may take to end; one that is stuck in a program ends with the process.
_JOIN_S: Final = 5.0

_Job = tuple[DeviceLoop, Task]


class _Next(threading.local):
    """What the thread goes on with: None where it is no worker."""

    job: _Job | None = None
    #: Whether it takes every task, as a worker does.
    anyone = False
    #: Whose tasks it takes: 0 for those of the first to come, None for nobody's.
    request_id: int | None = None


class Workers:
    """Threads that run tasks."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._next = _Next()
        #: Threads that live, those included that end with what they run now.
        self._threads: set[threading.Thread] = set()
        self._count = 0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many threads there are."""
        return self._count

    def start(self, loop: DeviceLoop, task: Task) -> None:
        """Have a task run: by the calling thread when it is done here, or by another."""
        mine = self._next
        if mine.request_id == 0:
            mine.request_id = task.request.id
        if mine.job is None and (mine.anyone or mine.request_id == task.request.id):
            mine.job = (loop, task)
        else:
            self._jobs.put((loop, task))

    def keep(self, count: int) -> None:
        """Have so many threads from now on."""
        with self._lock:
            while self._count < count:
                name = f"{self._name}-{self._count}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.add(thread)
                self._count += 1
                thread.start()
            while self._count > count:
                self._count -= 1
                self._jobs.put(None)

    @contextmanager
    def helping(self) -> Iterator[None]:
        """Run the request that is started in the block in the calling thread, as far as it can."""
        mine = self._next
        if mine.anyone or mine.request_id is not None:  # it has something to do already
            yield
            return
        mine.request_id = 0
        try:
            yield
            while mine.job is not None:
                (loop, task), mine.job = mine.job, None
                loop.run(task)
        finally:
            mine.request_id = None
            if mine.job is not None:
                job, mine.job = mine.job, None
                self._jobs.put(job)

    def stop(self) -> None:
        """End the threads, each with what it runs now."""
        self.keep(0)
        for thread in self._threads - {threading.current_thread()}:
            thread.join(timeout=_JOIN_S)

    def _work(self) -> None:
        mine = self._next
        mine.anyone = True
        while (job := self._jobs.get()) is not None:
            while job is not None:
                loop, task = job
                with suppress(KeyboardInterrupt):  # raised by a program: nobody pressed a key here
                    loop.run(task)
                job, mine.job = mine.job, None
        with self._lock:
            self._threads.discard(threading.current_thread())
