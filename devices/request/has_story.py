"""What became of a request's last run: its number, its story and where its time went."""

from __future__ import annotations

from abc import ABC, abstractmethod

from devices.request.answer import RequestTimes
from devices.request.run import Run
from devices.request.story import told


class HasStory(ABC):
    """Part of `InferRequest`."""

    _run: Run | None

    @abstractmethod
    def _ended_run(self, what: str) -> Run:
        """Return the last run, once it has ended."""

    @property
    def times(self) -> RequestTimes:
        """Where the time of the last run went: admission, stages and the rest, in seconds.

        Raises
        ------
        RequestBusyError, RequestNotStartedError
            It still runs, or never ran.
        """
        return self._ended_run("times").times

    @property
    def request_id(self) -> int | None:
        """The last run's number, which errors, traces and `CompiledModel.story` know it by."""
        return None if self._run is None else self._run.request_id

    def story(self) -> tuple[str, ...]:
        """Return what happened to the last run so far, line by line.

        Empty before the first run is admitted, and once many later requests have ended.

        Each line says when, in milliseconds since the run was submitted, in which attempt, and
        what: how it was admitted, started, replayed, answered or failed, and how each stage went.
        """
        run = self._run
        return () if run is None else told(run.story(), run.stage_runs)
