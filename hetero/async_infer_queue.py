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

if TYPE_CHECKING:  # few have a loop: it is imported where it is used, not at every start
    import asyncio

T = TypeVar("T")
QueueCallback = Callable[[InferRequest, Any], None]


class _Shared:
    """What a queue and its jobs both know; it holds no job, so that a dropped queue is gone."""

    def __init__(self) -> None:
        #: Notified whenever a job ends.
        self.changed = threading.Condition()
        self.callback: QueueCallback | None = None
        self.error: BaseException | None = None
        #: Thread -> index of the job whose callback it is inside.
        self.calling_back: dict[int, int] = {}
        #: Jobs that have ended, by index, the first one first; some may have been started since.
        self.ended: OrderedDict[int, None] = OrderedDict()

    def end(self, index: int) -> None:
        """Take in that a job has ended, and wake those who wait for one."""
        with self.changed:
            self.ended[index] = None
            self.ended.move_to_end(index)
            self.changed.notify_all()


class _Job(InferRequest):
    """A request that tells its queue when it has ended, whoever started it."""

    def __init__(self, target: DeployedModel, shared: _Shared, index: int) -> None:
        super().__init__(target)
        shared.ended[index] = None
        self._machine.on_end = partial(shared.end, index)
        self.set_callback(partial(_finished, weakref.ref(self), shared, index))

    def is_idle(self) -> bool:
        """Whether it may be started: no run is on its way, nor another thread's callback."""
        run = self._machine.run
        return run is None or run.end.is_set() or self.is_calling_back()

    def is_calling_back(self) -> bool:
        """Whether this thread runs its callback."""
        return self._machine.is_calling_back()

    def begin(self, timeout_s: float | None, inputs: Any) -> Callable[[], Future[Results]]:
        """Start a run that the queue's callback does not hear of; return what makes its future."""
        run = self._machine.start(inputs, None, False, timeout_s)
        return partial(self._machine.future_of, run)


def _finished(job: weakref.ref[_Job], shared: _Shared, index: int, userdata: Any) -> None:
    request, thread = job(), threading.get_ident()
    assert request is not None  # it is what calls
    shared.calling_back[thread] = index
    try:
        _ = request.results  # raises what the run raised
        if shared.callback is not None:
            shared.callback(request, userdata)
    except BaseException as error:  # the callback's, sys.exit's included: wait_all raises it
        shared.error = shared.error or error
    finally:
        del shared.calling_back[thread]


async def _ended(running: dict[asyncio.Future[Results], Any]) -> list[tuple[Any, Results]]:
    """Return those that have ended of what runs, waiting for one, and take them out."""
    import asyncio

    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    ended = [future for future in running if future.done()]
    return [(running.pop(future), future.result()) for future in ended]


class AsyncInferQueue:
    """A pool of infer requests; `start_async` takes an idle one, waiting for it if need be.

    Parameters
    ----------
    model : CompiledModel
        What the requests run.
    jobs : int
        How many requests; 0 takes `OPTIMAL_NUMBER_OF_INFER_REQUESTS`.

    Notes
    -----
    Requests finish in any order; jobs may also be started directly. Whatever a callback raises
    (``SystemExit`` and ``KeyboardInterrupt`` included), or a request that fails, is raised by the
    next `wait_all`, the first only, once; the queue stays usable.

    A wait ends with DeadlineError where no job has ended for the model's ``REQUEST_TIMEOUT_S``.
    """

    def __init__(self, model: CompiledModel, jobs: int = 0) -> None:
        if not isinstance(model, CompiledModel):
            raise ArgumentTypeError(
                f"a queue is of a CompiledModel, which Core.compile_model makes; got "
                f"{type(model).__name__}."
            )
        if not isinstance(jobs, int) or jobs < 0:
            kind = ArgumentError if isinstance(jobs, int) else ArgumentTypeError
            raise kind(f"jobs={jobs!r}: wanted a whole number >= 0; 0 lets the model choose.")
        count = jobs or model.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        self._shared = _Shared()
        self._timeout_s = min(model.get_property("REQUEST_TIMEOUT_S"), MAX_TIMEOUT_S)
        self._jobs = [_Job(model.target, self._shared, i) for i in range(count)]

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[InferRequest]:
        return iter(self._jobs)

    def __getitem__(self, index: int) -> InferRequest:
        return self._jobs[index]

    @property
    def userdata(self) -> list[Any]:
        """The user data of each job's latest start."""
        return [job.userdata for job in self._jobs]

    def set_callback(self, callback: QueueCallback) -> None:
        """Call ``callback(request, userdata)`` after each request, in a thread of its own.

        A callback may call `start_async`: where no other job is idle, the callback's own job is
        started again, and its results are no longer available.
        """
        check_callback(callback)
        self._shared.callback = callback

    def start_async(
        self,
        inputs: Any = None,
        userdata: Any = None,
        share_inputs: bool = False,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Start a request on an idle job, waiting until there is one.

        Parameters
        ----------
        inputs, share_inputs
            As for `InferRequest.start_async`.
        userdata : object, optional
            What the callback is given.
        timeout_s : float, optional
            Seconds until the answer must be there, waiting for a job included.

        Raises
        ------
        TensorError
            If the inputs do not fit; the queue stays usable.
        DeadlineError
            No job was idle in time.
        RequestBusyError
            A callback of this queue would have to wait for a job.
        """
        self._begin(
            lambda job, left_s: job.start_async(inputs, userdata, share_inputs, timeout_s=left_s),
            timeout_s,
        )

    async def stream(
        self, requests: Iterable[tuple[Any, Any]], *, timeout_s: float | None = None
    ) -> AsyncIterator[tuple[Any, Results]]:
        """Run requests, as many at once as there are jobs: ``async for name, results in ...``.

        Parameters
        ----------
        requests : iterable of (userdata, inputs)
            As for `start_async`. The next is taken once a job is idle. The queue's callback is not
            called.
        timeout_s : float, optional
            Seconds that each may take, waiting for a job included.

        Yields
        ------
        userdata, Results
            As the requests end. The first that fails ends the others, and is raised.

        Raises
        ------
        ArgumentTypeError
            A request is no pair.
        """
        import asyncio

        running: dict[asyncio.Future[Results], Any] = {}
        try:
            for request in requests:
                # A dict of inputs would pass for a pair of its names.
                if not isinstance(request, tuple | list) or len(request) != 2:
                    raise ArgumentTypeError(
                        "a stream takes pairs (userdata, inputs), got "
                        f"{type(request).__name__}; to number requests write enumerate(requests)."
                    )
                userdata, inputs = request
                while len(running) >= len(self):
                    for pair in await _ended(running):
                        yield pair
                start = partial(_Job.begin, inputs=inputs)
                begun = await asyncio.to_thread(self._begin, start, timeout_s)
                running[asyncio.wrap_future(begun())] = userdata
            while running:
                for pair in await _ended(running):
                    yield pair
        finally:
            for left in running:
                left.cancel()

    def is_ready(self) -> bool:
        """Whether a job is idle, so that `start_async` would not wait."""
        with self._shared.changed:
            return self._first_idle() is not None

    def get_idle_request_id(self) -> int:
        """Wait until a job is idle and return its index."""
        return self._wait(self._first_idle, None)

    def wait_all(self) -> None:
        """Wait until every job is idle; raise the first error since the last call.

        Raises
        ------
        RequestBusyError
            A callback of this queue would wait for others, which may wait for it.
        """
        self._wait(lambda: all(job.is_idle() for job in self._jobs) or None, None)
        error, self._shared.error = self._shared.error, None
        if error is not None:
            raise error

    def _begin(self, start: Callable[[_Job, float | None], T], timeout_s: float | None) -> T:
        """Start a request on an idle job, waiting until there is one."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            job = self._jobs[self._wait(self._first_idle, deadline_s)]
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            try:
                return start(job, left_s)
            except RequestBusyError:  # another thread took it
                continue

    def _first_idle(self) -> int | None:
        """Return an idle job's index; in a callback, its own job's if no other is idle."""
        ended = self._shared.ended
        while ended:
            index = next(iter(ended))
            if self._jobs[index].is_idle() and not self._jobs[index].is_calling_back():
                return index
            del ended[index]  # it was started, and is here again once it ends
        own = self._shared.calling_back.get(threading.get_ident())
        return None if own is None or not self._jobs[own].is_calling_back() else own

    def _wait(self, find: Callable[[], T | None], deadline_s: float | None) -> T:
        """Wait until `find` finds something, and return that."""
        with self._shared.changed:
            while (found := find()) is None:
                if threading.get_ident() in self._shared.calling_back:
                    raise RequestBusyError(
                        f"a callback of a queue of {len(self)} jobs would wait for jobs that end "
                        "only after their callbacks. Start one request for each that has ended, "
                        "make the queue longer, or wait in another thread.",
                        state="busy",
                    )
                left_s = self._timeout_s if deadline_s is None else deadline_s - time.monotonic()
                if left_s <= 0 or not self._shared.changed.wait(left_s):
                    raise DeadlineError(
                        f"none of {len(self)} jobs has ended in time. Allow more time (timeout_s, "
                        "or the model's REQUEST_TIMEOUT_S), or look for a callback that hangs."
                    )
            return found
