"""Worker threads that run the tasks of a process's devices, one thread per stream.

Threads are not bound to a device: after a task, a thread continues with the task that became ready,
so that a request passes its stages without waking other threads. For tasks from other processes,
the thread that waits for the channel also runs the tasks.
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
from hetero.scheduler.types.events import TaskRun
from hetero.scheduler.types.messages import Message

_log = logging.getLogger(__name__)

#: Seconds to wait for a thread to end; a thread stuck in a program ends with the process.
_JOIN_S: Final = 5.0

#: Minimum run time of a task, in seconds, that justifies waking a thread for the tasks behind it.
_HAND_OVER_S: Final = 0.0002
#: Seconds after which a task that was expected to be short counts as long.
_WATCH_S: Final = 0.005
#: Average run time of tasks, in seconds, during which messages must not wait.
_LONG_S: Final = 0.01
#: Average run time from which the next task is chosen among all that have arrived.
_CHOSEN_S: Final = 0.001
#: Share of these limits below which the receiving thread ends again, so that it does not come and
#: go; and number of tasks in a row with no choice among waiting ones, for the same reason.
_HYSTERESIS: Final = 0.5
_CALM_TASKS: Final = 64
#: Maximum number of short tasks whose outputs are sent together.
_TOGETHER: Final = 16
#: Seconds after which a wait for messages is renewed.
_LOOK_S: Final = 0.5
#: Request id of workers: they accept the tasks of every request.
_ANY: Final = 0

_Job = tuple[DeviceLoop, TaskRun]


class _ThreadState(threading.local):
    """State of a thread: its next job, and the request whose tasks it accepts."""

    job: _Job | None = None
    request_id: int | None = None


class BaseWorkers(ABC):
    """Thread pool of variable size that runs tasks."""

    def __init__(self, name: str) -> None:
        self._name = name
        #: Live threads by ident, including those that end after their present task.
        self._threads: dict[int | None, threading.Thread] = {}
        #: Number of threads, without those that are ending.
        self.count = 0
        self._lock = threading.Lock()

    @abstractmethod
    def _run_tasks(self) -> None:
        """Run tasks until this thread has to end."""

    @abstractmethod
    def _end_one(self) -> None:
        """Signal one of the threads to end."""

    def keep(self, count: int) -> None:
        """Resize the pool to `count` threads, or to as many as the system permits.

        Raises OverloadedError: the system permits no thread at all.
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
        """End the threads after their present tasks."""
        self.keep(0)
        for ident, thread in list(self._threads.items()):
            if ident != threading.get_ident():
                thread.join(timeout=_JOIN_S)

    def _live(self) -> None:
        with self._lock:  # until `_keep` has registered this thread
            pass
        self._run_tasks()
        with self._lock:
            del self._threads[threading.get_ident()]


class Workers(BaseWorkers):
    """Thread pool of a process whose devices pass tasks to each other.

    One thread runs all short tasks: waking another takes longer, and the two would compete for the
    interpreter's lock. Before a task that is usually long, a thread wakes another for the queued
    tasks. If a task takes longer than expected, the executor's clock wakes a thread.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name)
        self._clock = clock
        self._timer = clock.timer(self._check_stalls)
        self._jobs: deque[_Job] = deque()
        self._thread_state = _ThreadState()
        self._state = threading.Lock()
        #: Idents of threads that run no long task, and will take queued jobs soon.
        self._quick_threads: set[int] = set()
        #: Number of threads that were woken and have not started yet.
        self._num_starting = 0
        #: Number of threads that are not waiting.
        self._num_awake = 0
        #: First queued job at the last check of the timer.
        self._first_job: _Job | None = None
        #: Wake-up calls; False ends one thread.
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def start(self, loop: DeviceLoop, due: TaskRun) -> None:
        """Schedule a task, on the calling thread if it may run it next, otherwise on another."""
        thread_state = self._thread_state
        if thread_state.job is None and thread_state.request_id in (_ANY, due.task.request.id):
            thread_state.job = (loop, due)
        else:
            self._enqueue((loop, due))

    def keep(self, count: int) -> None:
        """Resize the pool; see `BaseWorkers.keep`."""
        super().keep(count)
        with self._state:
            self._wake_one()  # a new thread may take jobs that were queued before

    @property
    def are_idle(self) -> bool:
        """Whether every thread is waiting."""
        return not (self._num_starting or self._num_awake)

    def help_with(self, request_id: int, begin: Callable[[], None]) -> None:
        """Call `begin` and run the tasks of the request that it starts in the calling thread."""
        thread_state = self._thread_state
        if thread_state.request_id is not None:  # the thread has tasks already
            begin()
            return
        thread_state.request_id = request_id
        job: _Job | None = None
        try:
            begin()
            while (job := thread_state.job) is not None:
                thread_state.job = None
                job[0].run(job[1])
        except BaseException as error:  # Ctrl-C may come before the task runs
            if job is not None:
                job[0].give_up(job[1].task, error)
            raise
        finally:
            thread_state.request_id = None
            next_job, thread_state.job = thread_state.job, None
            if next_job is not None and next_job is not job:
                self._enqueue(next_job)

    def receiver(self, receive: Receiver, is_brief: Callable[[Message], bool]) -> Receiver:
        """Wrap a client's receiver so that it does not delay the next task of a worker.

        `is_brief`: returns whether processing a message costs less than waking another thread.
        """

        def take(message: Message) -> None:
            thread_state = self._thread_state
            is_busy = thread_state.request_id == _ANY and thread_state.job is not None
            if is_busy and not is_brief(message):
                self._clock.call_soon(partial(receive, message))
            else:
                receive(message)

        return take

    def _enqueue(self, job: _Job) -> None:
        with self._state:
            self._jobs.append(job)
            if self._num_awake >= self.count:  # each thread looks for jobs before it waits
                return
            if self._quick_threads or self._num_starting:
                if self._timer.due_s == inf:
                    self._first_job = self._jobs[0]
                    self._timer.make_due_by(self._clock.now_s() + _WATCH_S)
            else:
                self._wake_one()

    def _wake_one(self) -> None:
        """Wake a thread for queued jobs, unless another thread will take them soon."""
        if self._num_awake >= self.count:
            return
        if self._jobs and not (self._quick_threads or self._num_starting):
            self._num_starting += 1
            self._calls.put(True)

    def _end_one(self) -> None:
        self._calls.put(False)

    def _run_tasks(self) -> None:
        me = threading.get_ident()
        self._thread_state.request_id = _ANY
        while self._calls.get():
            with self._state:
                self._num_starting -= 1
                self._num_awake += 1
                self._quick_threads.add(me)
            while job := self._next_job(me):
                if job[1].stage.ewma_s > _HAND_OVER_S:
                    with self._state:
                        self._quick_threads.discard(me)
                        if self._jobs:
                            self._wake_one()
                _run(job)
                self._quick_threads.add(me)

    def _next_job(self, me: int) -> _Job | None:
        """Return the next job of this thread; None if it has to wait."""
        thread_state = self._thread_state
        if (job := thread_state.job) is not None:
            thread_state.job = None
            return job
        with self._state:
            if self._jobs:
                return self._jobs.popleft()
            self._quick_threads.discard(me)
            self._num_awake -= 1
            return None

    def _check_stalls(self) -> float | None:
        """Wake a thread if a job has been queued behind an unexpectedly long task."""
        with self._state:
            before, self._first_job = self._first_job, self._jobs[0] if self._jobs else None
            if self._first_job is None or self._num_awake >= self.count:
                return None
            if self._first_job is before:  # no thread has taken it
                self._quick_threads.clear()
                self._wake_one()
            return self._clock.now_s() + _WATCH_S


class PumpingWorkers(BaseWorkers):
    """Thread pool of one device: an idle thread waits for messages and runs the ready tasks.

    The outputs of several short tasks are sent together, so that the next device wakes less often.
    An additional thread receives while long tasks run, or shorter ones if several tasks wait, so
    that the next one is chosen among all of them. Otherwise the thread would only take a core from
    the running task: measured with squeezenet, whose tasks take 3 ms on two cores, 0.1 ms of each.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._channel: PumpedChannel | None = None
        self._jobs: deque[_Job] = deque()
        #: Lock of the thread that waits for messages.
        self._execution_lock = threading.Lock()
        self._num_to_end = 0
        self._num_streams = 1
        #: Moving average of the run time of tasks.
        self._ewma_s = 0.0
        #: Whether a thread receives while tasks run, and number of tasks without a need for it.
        self._has_receiver = False
        self._num_calm = 0

    def serve(self, channel: PumpedChannel) -> None:
        """Start to receive messages from a channel."""
        self._channel = channel
        self.run_at_once(1)

    def run_at_once(self, num_streams: int) -> None:
        """Set the number of tasks that run at once."""
        with self._lock:
            self._num_streams = num_streams
            self._keep(num_streams + self._has_receiver)

    def start(self, loop: DeviceLoop, due: TaskRun) -> None:
        """Queue a task for the next idle thread."""
        self._jobs.append((loop, due))
        if self._channel is not None and (
            threading.get_ident() not in self._threads or (self.count > 1 and len(self._jobs) > 1)
        ):
            self._channel.wake()

    def _end_one(self) -> None:
        self._num_to_end += 1
        if self._channel is not None:
            self._channel.wake()

    def _run_tasks(self) -> None:
        assert self._channel is not None
        num_waits, num_run, most = 0, 0, 0
        while self._receive():
            if (waits := self._channel.num_waits) != num_waits:
                num_waits = waits
                # Half of the tasks of the last wake-up: the next device runs them meanwhile.
                most, num_run = min(num_run // 2, _TOGETHER), 0
            if most > 1 and self.count == 1 and self._ewma_s < _HAND_OVER_S:
                self._channel.cork()
                try:
                    num_run += self._run_all(most)
                finally:
                    self._channel.uncork()
            else:
                num_run += self._run_all(0)

    def _run_all(self, most: int) -> int:
        """Run the queued tasks, and up to `most` that arrive meanwhile; return their number."""
        num_run, jobs = 0, self._jobs
        while jobs or (num_run < most and self._pump(0)):
            try:
                job = jobs.popleft()
            except IndexError:  # another thread has taken it, or the message was no task
                continue
            started_s = time.monotonic()
            _run(job)
            self._note(time.monotonic() - started_s, job[0])
            num_run += 1
        return num_run

    def _note(self, took_s: float, loop: DeviceLoop) -> None:
        self._ewma_s += (took_s - self._ewma_s) / 8
        if not self._has_receiver and self._ewma_s < _CHOSEN_S:  # most tasks are short
            return
        needs_receiver = self._needs_receiver(loop)
        if needs_receiver != self._has_receiver:
            with self._lock:
                self._has_receiver = needs_receiver
                self._keep(self._num_streams + self._has_receiver)

    def _needs_receiver(self, loop: DeviceLoop) -> bool:
        """Return whether a thread has to receive while tasks run; call it after each task."""
        share = _HYSTERESIS if self._has_receiver else 1.0
        if self._ewma_s < _CHOSEN_S * share:
            return False
        if self._ewma_s > _LONG_S * share:
            return True
        while not self._has_receiver and self._pump(0):  # the first task starts, and others wait
            pass
        self._num_calm = 0 if loop.num_waiting else self._num_calm + 1
        return not self._num_calm or (self._has_receiver and self._num_calm < _CALM_TASKS)

    def _receive(self) -> bool:
        """Wait for a task; return False if this thread has to end."""
        with self._execution_lock:
            while not self._jobs:
                if self._num_to_end:
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
        except Exception:  # a bad message must not stop the device from receiving
            _log.exception("device=%s: failed to process a message", self._name)
            return 0


def _run(job: _Job) -> None:
    loop, due = job
    try:
        loop.run(due)
    except Exception:  # the task's client has received the error
        _log.exception("a task failed unexpectedly")
