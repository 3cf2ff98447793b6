"""Recovery of a model whose device runs out of memory during a request: another plan runs it again.

A device is planned around once. The old deployment is closed before the new one loads its stages,
so that the device has their memory; requests that this cancels run again as well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from hetero.devices.errors import DeviceMemoryError, HeteroError, RequestCancelledError
from hetero.devices.plugin.program import Value
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.promise import FutureLike, Promise
from hetero.devices.request.request import Request
from hetero.devices.request.response import Response
from hetero.devices.request.story import StoryLine
from hetero.scheduler.executor import Deployment, Submission

_log = logging.getLogger(__name__)

#: Loads another plan of the model; called after the old deployment was closed.
Deploy = Callable[[], Deployment]
#: Plans the model with less memory for the device of an error; None if that is impossible.
PlanAgain = Callable[[DeviceMemoryError], Deploy | None]


class RecoverableModel(Protocol):
    """A model whose deployment may be replaced."""

    deployment: Deployment


class MemoryRecovery:
    """Replaces the deployment of a model after a device ran out of memory."""

    def __init__(self, plan_again: PlanAgain) -> None:
        self._plan_again = plan_again
        self._lock = threading.Lock()

    def recover(self, model: RecoverableModel, failed: Deployment, error: BaseException) -> bool:
        """Replace the deployment on which a request failed; return whether the model has another.

        Concurrent callers wait for the first one.
        """
        with self._lock:
            if model.deployment is not failed:
                return True
            if not isinstance(error, DeviceMemoryError):
                return False
            deploy = self._plan_again(error)
            if deploy is None:
                return False
            failed.close()
            model.deployment = deploy()
            return True


class RecoverableSubmission:
    """A submission that runs again on another plan if a device runs out of memory."""

    def __init__(
        self,
        model: RecoverableModel,
        recovery: MemoryRecovery,
        submission: Submission,
        deployment: Deployment,
        values: Mapping[str, Value],
        request: Request,
    ) -> None:
        self._model = model
        self._recovery = recovery
        self._values = values
        self._request = request
        self._cancellation = threading.Event()
        self._submission: Submission | CompletedSubmission = submission
        self._future: Promise[Response] = Promise()
        submission.future.add_done_callback(partial(self._receive, deployment))

    @property
    def future(self) -> Promise[Response]:
        """Future of the response."""
        return self._future

    @property
    def request_id(self) -> int:
        """Number of the request in the present deployment."""
        return self._submission.request_id

    @property
    def waited_s(self) -> float:
        """Seconds until admission."""
        return self._submission.waited_s

    @property
    def story(self) -> Callable[[], Sequence[StoryLine]]:
        """Function that returns the history of the run."""
        return self._submission.story

    def cancel(self) -> object:
        """Cancel the run."""
        self._cancellation.set()
        return self._submission.cancel()

    def pending_outputs(self) -> Mapping[str, Value]:
        """Return references to the resident outputs of the run in flight."""
        return self._submission.pending_outputs()

    def _receive(self, deployment: Deployment, future: FutureLike[Response]) -> None:
        """Pass on a result or an error; run again after an error that a new plan may avoid."""
        error = future.exception()
        if error is None:
            self._future.set_result(future.result())
        elif isinstance(error, DeviceMemoryError | RequestCancelledError) and not (
            self._cancellation.is_set()
        ):
            # Compiling takes long, and this thread may belong to the deployment.
            threading.Thread(
                target=self._recover, args=(deployment, error), name="recover-memory", daemon=True
            ).start()
        else:
            self._future.set_exception(error)

    def _recover(self, deployment: Deployment, error: BaseException) -> None:
        try:
            is_recovered = self._recovery.recover(self._model, deployment, error)
            if self._cancellation.is_set():
                raise RequestCancelledError(
                    "the request was cancelled while its model was planned again"
                ) from error
            if not is_recovered:
                raise error
            deployment = self._model.deployment
            self._submission = deployment.submit(self._values, self._request)
            if self._cancellation.is_set():  # meanwhile: `cancel` had only the previous run
                self._submission.cancel()
            self._submission.future.add_done_callback(partial(self._receive, deployment))
        except BaseException as raised:
            if not isinstance(raised, HeteroError):
                _log.exception("the model could not be planned again")
            self._future.set_exception(raised)
