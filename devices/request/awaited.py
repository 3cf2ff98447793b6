"""A request's answer as a future, and `await request`."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Generator
from concurrent.futures import Future
from functools import partial
from typing import Any

from devices.request.results import Results
from devices.request.run import Run
from devices.request.target import RequestTarget


class Awaited(ABC):
    """Part of `InferRequest`."""

    _target: RequestTarget
    _lock: threading.RLock
    _run: Run | None

    @abstractmethod
    def cancel(self) -> None:
        """Ask a running request to stop."""

    @abstractmethod
    def _started_run(self, what: str) -> Run:
        """Return the last run; RequestNotStartedError if there is none."""

    @abstractmethod
    def _settle(self, run: Run, share: bool) -> Results:
        """Return a run's answer, or raise its error."""

    def future(self) -> Future[Results]:
        """Return what the last run answers, for those who wait for several things at once.

        It has an answer, or the run's error, once the run and its callback have ended. To cancel
        it cancels the run. ``await request`` is the same for asyncio, and returns the results.

        Raises
        ------
        RequestNotStartedError
            It never ran.
        """
        return self._future_of(self._started_run("future"))

    def __await__(self) -> Generator[Any, None, Results]:
        import asyncio  # here, as few have a loop: it is not needed at every start

        return asyncio.wrap_future(self.future()).__await__()

    def _future_of(self, run: Run) -> Future[Results]:
        future: Future[Results] = Future()
        future.add_done_callback(partial(self._cancelled_by, run))
        with self._lock:
            run.futures.append(future)
        if run.ended.is_set():  # else whoever ends it sees the future
            self._answer_futures(run)
        return future

    def _cancelled_by(self, run: Run, future: Future[Results]) -> None:
        if future.cancelled() and run is self._run:
            self.cancel()

    def _answer_futures(self, run: Run) -> None:
        """Give a run that has ended to all who wait for it."""
        with self._lock:
            futures, run.futures = run.futures, []
        for future in futures:
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if run.callback_error is not None:
                    raise run.callback_error
                with self._lock:  # the next run does not start meanwhile
                    results = self._settle(run, True)
                future.set_result(results)
            except BaseException as error:  # whoever waits raises it
                future.set_exception(error)

    def _hand_to_futures(self, run: Run) -> None:
        """Do so in a thread that does not compute."""
        try:
            self._target.callback_executor.submit(self._answer_futures, run)
        except RuntimeError:  # closed with the run in flight
            self._answer_futures(run)
