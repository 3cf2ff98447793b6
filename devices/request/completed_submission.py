"""Submission of a request that the caller's thread ran to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from hetero.devices.plugin.program import Value
from hetero.devices.request.promise import Promise
from hetero.devices.request.response import Response, StageTiming
from hetero.devices.request.story import StoryLine


class CompletedSubmission(NamedTuple):
    """The response of a request, with the interface of a submission.

    Attributes
    ----------
    outputs, stage_timings
        See `hetero.devices.request.response.Response`.
    request_id : int
        Number of the request.
    story_of : callable
        Returns the history of a request by its number.
    """

    outputs: Mapping[str, Value]
    stage_timings: tuple[StageTiming, ...]
    request_id: int
    story_of: Callable[[int], Sequence[StoryLine]]

    @property
    def waited_s(self) -> float:
        """Seconds until admission: 0."""
        return 0.0

    @property
    def future(self) -> Promise[Response]:
        """A future that already has the response."""
        promise: Promise[Response] = Promise()
        promise.set_result(Response(self.outputs, self.stage_timings))
        return promise

    @property
    def story(self) -> Callable[[], Sequence[StoryLine]]:
        """A function that returns the request's history, without references to its tensors."""
        return partial(self.story_of, self.request_id)

    def cancel(self) -> bool:
        """Return False: the request has ended."""
        return False

    def pending_outputs(self) -> Mapping[str, Value]:
        """Return an empty mapping, because the run has ended."""
        return {}
