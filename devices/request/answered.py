"""A request that was answered while it was submitted: its caller's thread ran it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from hetero.devices.plugin.program import Value
from hetero.devices.request.promise import Promise
from hetero.devices.request.response import Response, StageTiming
from hetero.devices.request.story import StoryLine


class Answered(NamedTuple):
    """The answer of a request, in place of its submission; it can be used as one.

    Attributes
    ----------
    outputs, stage_timings
        As of `hetero.devices.request.response.Response`.
    request_id : int
        The request's number.
    story_of : callable
        Returns the story of a request by its number.
    """

    outputs: Mapping[str, Value]
    stage_timings: tuple[StageTiming, ...]
    request_id: int
    story_of: Callable[[int], Sequence[StoryLine]]

    @property
    def waited_s(self) -> float:
        """Seconds until it was admitted: none."""
        return 0.0

    @property
    def future(self) -> Promise[Response]:
        """The answer, as of a request that is awaited."""
        promise: Promise[Response] = Promise()
        promise.set_result(Response(self.outputs, self.stage_timings))
        return promise

    @property
    def story(self) -> Callable[[], Sequence[StoryLine]]:
        """What returns the request's story; it holds nothing else of the request."""
        return partial(self.story_of, self.request_id)

    def cancel(self) -> bool:
        """Return False: the request has ended."""
        return False

    def pending_outputs(self) -> Mapping[str, Value]:
        """Return nothing: no output is to come."""
        return {}
