"""AsyncInferQueue: a fixed pool of requests that keeps a compiled model busy."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from devices.infer_request import InferRequest
from hetero.compiled_model import CompiledModel

QueueCallback = Callable[[InferRequest, Any], None]


class AsyncInferQueue:
    """A pool of infer requests; `start_async` takes an idle one, waiting for it if need be.

    Parameters
    ----------
    compiled_model : CompiledModel
        What the requests run.
    jobs : int
        How many requests; 0 takes `OPTIMAL_NUMBER_OF_INFER_REQUESTS`.

    Notes
    -----
    Requests finish in any order. A callback that raises, or a request that fails, is reported by
    the next `wait_all`, once; the queue stays usable.
    """

    def __init__(self, compiled_model: CompiledModel, jobs: int = 0) -> None:
        if jobs < 0:
            raise ValueError(f"jobs={jobs}: a queue has at least one job; 0 lets the model choose.")
        count = jobs or compiled_model.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        self._requests = [compiled_model.create_infer_request() for _ in range(count)]
        self._idle = deque(range(count))
        self._changed = threading.Condition()
        self._callback: QueueCallback | None = None
        self._errors: list[BaseException] = []
        #: The user data of each job's latest start.
        self.userdata: list[Any] = [None] * count
        for index, request in enumerate(self._requests):
            request.set_callback(self._finished, index)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[InferRequest]:
        return iter(self._requests)

    def __getitem__(self, index: int) -> InferRequest:
        return self._requests[index]

    def set_callback(self, callback: QueueCallback) -> None:
        """Call ``callback(request, userdata)`` after each request, in a thread of its own."""
        self._callback = callback

    def start_async(
        self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False
    ) -> None:
        """Start a request on an idle job, waiting until there is one.

        Raises
        ------
        TensorError
            If the inputs do not fit; the queue stays usable.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._idle)
            index = self._idle.popleft()
            self.userdata[index] = userdata
        try:
            self._requests[index].start_async(inputs, None, share_inputs)
        except BaseException:
            self._release(index)
            raise

    def is_ready(self) -> bool:
        """Whether a job is idle, so that `start_async` would not wait."""
        return bool(self._idle)

    def get_idle_request_id(self) -> int:
        """Wait until a job is idle and return its index."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle)
            return self._idle[0]

    def wait_all(self) -> None:
        """Wait until every job is idle; raise the first error since the last call."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._idle) == len(self._requests))
            errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def _finished(self, index: int) -> None:
        request = self._requests[index]
        try:
            _ = request.results  # raises what the run raised
            if self._callback is not None:
                self._callback(request, self.userdata[index])
        except Exception as error:  # the user's callback may raise anything; wait_all reports it
            self._errors.append(error)
        finally:
            self._release(index)

    def _release(self, index: int) -> None:
        with self._changed:
            self._idle.append(index)
            self._changed.notify_all()
