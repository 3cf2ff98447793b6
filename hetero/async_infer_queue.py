"""AsyncInferQueue: a fixed pool of requests that keeps a compiled model busy."""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hetero.compile.compiled_model import CompiledModel
from hetero.compile.deployed_model import DeployedModel
from hetero.devices.errors import ArgumentError, ArgumentTypeError, DeadlineError, RequestBusyError
from hetero.devices.request.infer_request import InferRequest, check_callback
from hetero.devices.request.results import Results
from hetero.devices.request.run import MAX_TIMEOUT_S

if TYPE_CHECKING:  # imported on use, because it slows every start and few programs need it
    import asyncio

T = TypeVar("T")
QueueCallback = Callable[[InferRequest, Any], None]


class _QueueState:
    """State shared by a queue and its jobs, without references to them that form a cycle."""

    def __init__(self) -> None:
        #: Notified when a job ends.
        self.condition = threading.Condition()
        self.callback: QueueCallback | None = None
        self.error: BaseException | None = None
        #: Thread -> index of the job whose callback it runs.
        self.jobs_by_callback_thread: dict[int, int] = {}
        #: Indices of jobs that have ended, in order; some may have been started again.
        self.ended_jobs: OrderedDict[int, None] = OrderedDict()

    def job_ended(self, index: int) -> None:
        """Record that a job has ended, and notify waiting threads."""
        with self.condition:
            self.ended_jobs[index] = None
            self.ended_jobs.move_to_end(index)
            self.condition.notify_all()


class _Job(InferRequest):
    """A request that notifies its queue when it has ended, even if it was started directly."""

    def __init__(self, target: DeployedModel, state: _QueueState, index: int) -> None:
        super().__init__(target)
        state.ended_jobs[index] = None
        self._machine.on_end = partial(state.job_ended, index)
        self.set_callback(partial(_on_completion, weakref.ref(self), state, index))

    def is_idle(self) -> bool:
        """Return whether the job can be started: no run and no callback is in progress."""
        run = self._machine.run
        return run is None or run.end.is_set() or self.is_calling_back()

    def is_calling_back(self) -> bool:
        """Return whether the current thread runs the job's callback."""
        return self._machine.is_calling_back()

    def start_future(self, timeout_s: float | None, inputs: Any) -> Callable[[], Future[Results]]:
        """Start a run without the queue's callback; return a function that creates its future."""
        run = self._machine.start(inputs, None, False, timeout_s)
        return partial(self._machine.future_of, run)


def _on_completion(job: weakref.ref[_Job], state: _QueueState, index: int, userdata: Any) -> None:
    request, thread = job(), threading.get_ident()
    assert request is not None  # the request calls this function
    state.jobs_by_callback_thread[thread] = index
    try:
        state.error = state.error or _error_of(request)
        if state.callback is not None:
            state.callback(request, userdata)
    except BaseException as error:  # also SystemExit of the callback; wait_all raises it
        state.error = state.error or error
    finally:
        del state.jobs_by_callback_thread[thread]


def _error_of(request: InferRequest) -> BaseException | None:
    """Return the error of a run that has ended, if it failed."""
    try:
        _ = request.results
    except BaseException as error:
        return error
    return None


async def _next_results(running: dict[asyncio.Future[Results], Any]) -> list[tuple[Any, Results]]:
    """Wait for the first of the running futures; remove and return all that are done."""
    import asyncio

    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    done = [future for future in running if future.done()]
    return [(running.pop(future), future.result()) for future in done]


class AsyncInferQueue:
    """A pool of infer requests (jobs); `start_async` runs a request on an idle one.

    Parameters
    ----------
    model : CompiledModel
        The model that the requests run.
    jobs : int
        The number of requests; 0 for `OPTIMAL_NUMBER_OF_INFER_REQUESTS`.

    Notes
    -----
    Requests end in any order; jobs may also be started directly. The next `wait_all` raises the
    first error of a request or a callback, including ``SystemExit`` and ``KeyboardInterrupt``. The
    queue remains usable.

    A wait raises DeadlineError if no job ends within the model's ``REQUEST_TIMEOUT_S``.
    """

    def __init__(self, model: CompiledModel, jobs: int = 0) -> None:
        if not isinstance(model, CompiledModel):
            raise ArgumentTypeError(
                "model: expected a CompiledModel, as returned by Core.compile_model; got "
                f"{type(model).__name__}."
            )
        if not isinstance(jobs, int) or jobs < 0:
            error_type = ArgumentError if isinstance(jobs, int) else ArgumentTypeError
            raise error_type(
                f"jobs: expected an integer >= 0 (0 for the optimal number), got {jobs!r}."
            )
        num_jobs = jobs or model.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        self._state = _QueueState()
        self._timeout_s = min(model.get_property("REQUEST_TIMEOUT_S"), MAX_TIMEOUT_S)
        self._jobs = [_Job(model.target, self._state, i) for i in range(num_jobs)]

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[InferRequest]:
        return iter(self._jobs)

    def __getitem__(self, index: int) -> InferRequest:
        return self._jobs[index]

    @property
    def userdata(self) -> list[Any]:
        """The user data of each job's last start."""
        return [job.userdata for job in self._jobs]

    def set_callback(self, callback: QueueCallback) -> None:
        """Set the callback ``callback(request, userdata)``, which runs in another thread.

        It is also called for a request that has failed: `request.results` raises the error, which
        `wait_all` raises as well. A callback may call `start_async`. If no other job is idle, this
        starts the callback's own job again, and discards its results.
        """
        check_callback(callback)
        self._state.callback = callback

    def start_async(
        self,
        inputs: Any = None,
        userdata: Any = None,
        share_inputs: bool = False,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Wait for an idle job and start a request on it.

        Parameters
        ----------
        inputs, share_inputs
            As for `InferRequest.start_async`.
        userdata : object, optional
            The second argument of the callback.
        timeout_s : float, optional
            Seconds until the request fails with DeadlineError, including the wait for a job.

        Raises
        ------
        TensorError
            The inputs do not match the model; the queue remains usable.
        DeadlineError
            No job became idle in time.
        RequestBusyError
            The call came from a callback of this queue and would wait for a job.
        """
        self._start_on_idle_job(
            lambda job, left_s: job.start_async(inputs, userdata, share_inputs, timeout_s=left_s),
            timeout_s,
        )

    async def stream(
        self, requests: Iterable[tuple[Any, Any]], *, timeout_s: float | None = None
    ) -> AsyncIterator[tuple[Any, Results]]:
        """Run requests concurrently on all jobs: ``async for userdata, results in ...``.

        Parameters
        ----------
        requests : iterable of (userdata, inputs)
            As for `start_async`. The next one is read when a job is idle. The queue's callback is
            not called.
        timeout_s : float, optional
            Seconds per request, including the wait for a job.

        Yields
        ------
        userdata, Results
            In the order in which the requests end. The first error cancels the others.

        Raises
        ------
        ArgumentTypeError
            A request is not a pair.
        """
        import asyncio

        running: dict[asyncio.Future[Results], Any] = {}
        try:
            for request in requests:
                # A dictionary with two inputs would unpack as a pair of names.
                if not isinstance(request, tuple | list) or len(request) != 2:
                    raise ArgumentTypeError(
                        "stream: expected pairs (userdata, inputs), got "
                        f"{type(request).__name__}; use enumerate(requests) to number them."
                    )
                userdata, inputs = request
                while len(running) >= len(self):
                    for result in await _next_results(running):
                        yield result
                start = partial(_Job.start_future, inputs=inputs)
                future_of_run = await asyncio.to_thread(self._start_on_idle_job, start, timeout_s)
                running[asyncio.wrap_future(future_of_run())] = userdata
            while running:
                for result in await _next_results(running):
                    yield result
        finally:
            for future in running:
                future.cancel()

    def is_ready(self) -> bool:
        """Return whether a job is idle, so that `start_async` would not wait."""
        with self._state.condition:
            return self._first_idle() is not None

    def get_idle_request_id(self) -> int:
        """Wait for an idle job and return its index."""
        return self._wait(self._first_idle, None)

    def wait_all(self) -> None:
        """Wait until every job is idle; raise the first error since the last call.

        Raises
        ------
        RequestBusyError
            The call came from a callback of this queue, and could wait for itself.
        """
        self._wait(lambda: all(job.is_idle() for job in self._jobs) or None, None)
        error, self._state.error = self._state.error, None
        if error is not None:
            raise error

    def _start_on_idle_job(
        self, start: Callable[[_Job, float | None], T], timeout_s: float | None
    ) -> T:
        """Wait for an idle job and start a request on it with `start`."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            job = self._jobs[self._wait(self._first_idle, deadline_s)]
            remaining_s = None if deadline_s is None else deadline_s - time.monotonic()
            try:
                return start(job, remaining_s)
            except RequestBusyError:  # another thread started the job
                continue

    def _first_idle(self) -> int | None:
        """Return the index of an idle job; in a callback, of its own job if no other is idle."""
        ended_jobs = self._state.ended_jobs
        while ended_jobs:
            index = next(iter(ended_jobs))
            if self._jobs[index].is_idle() and not self._jobs[index].is_calling_back():
                return index
            del ended_jobs[index]  # it was started again, and is added when it ends
        own_index = self._state.jobs_by_callback_thread.get(threading.get_ident())
        return (
            None if own_index is None or not self._jobs[own_index].is_calling_back() else own_index
        )

    def _wait(self, poll: Callable[[], T | None], deadline_s: float | None) -> T:
        """Wait until `poll` returns a result, and return it."""
        with self._state.condition:
            while (result := poll()) is None:
                if threading.get_ident() in self._state.jobs_by_callback_thread:
                    raise RequestBusyError(
                        f"a callback of a queue with {len(self)} jobs would wait for jobs whose "
                        "callbacks have not ended. Start at most one request per callback, create "
                        "the queue with more jobs, or wait in another thread.",
                        state="busy",
                    )
                remaining_s = (
                    self._timeout_s if deadline_s is None else deadline_s - time.monotonic()
                )
                if remaining_s <= 0 or not self._state.condition.wait(remaining_s):
                    raise DeadlineError(
                        f"none of {len(self)} jobs ended in time. Increase timeout_s or the "
                        "model's REQUEST_TIMEOUT_S, or check whether a callback hangs."
                    )
            return result
