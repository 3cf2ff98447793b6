"""A deployment whose requests are joined into batches: each goes through the pipeline as one.

Callers are admitted, timed out, cancelled and answered one by one, by a request runner of their
own; a batch is one request of the deployment below.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from devices.errors import (
    ClusterError,
    DeviceLostError,
    HeteroError,
    OverloadedError,
    RequestCancelledError,
)
from devices.plugin.program import ExecutedNode, Payload, Value
from devices.plugin.remote import RemoteContext
from devices.request.answer import Answer, StageRun
from devices.request.promise import Promised
from devices.request.request import PLAIN, Request
from devices.request.run import LONGEST_S
from scheduler.client.batching import (
    BatchEnded,
    Batcher,
    BatchEvent,
    Batching,
    RequestArrived,
    RequestLeft,
)
from scheduler.client.bytes_in_flight import BytesInFlight
from scheduler.client.rows import count_rows, join_rows, kind_of, split_rows
from scheduler.client.runner import RequestRunner
from scheduler.executor import JoinableDeployment, Submission
from scheduler.vocabulary import events
from scheduler.vocabulary.limits import Limits
from scheduler.vocabulary.placement import Route
from scheduler.vocabulary.plan import Plan
from scheduler.vocabulary.record import StoryLine

#: What no caller's input is the reason of: trying the callers one by one would change nothing.
_NOT_OF_THE_INPUTS: Final = (
    DeviceLostError,
    ClusterError,
    OverloadedError,
    RequestCancelledError,
)


@dataclass(slots=True)
class _Caller:
    """A request that waits for others, or for its batch."""

    request: Request
    inputs: Mapping[str, Value]
    #: None where its inputs cannot be joined with others'.
    rows: int | None
    batch: _Batch | None = None


@dataclass(slots=True)
class _Batch:
    """A batch that was fired."""

    number: int
    #: Who is to be run next, each entry as one request.
    tries: list[list[_Caller]]
    running: list[_Caller] = field(default_factory=list)
    submission: Submission | None = None


class _Due(threading.local):
    """Batches that the thread is to run, the one that it runs first among them."""

    def __init__(self) -> None:
        self.batches: list[tuple[_Batch, Request]] = []


class BatchedDeployment:
    """A deployment that joins requests; a `scheduler.executor.Deployment`.

    A failed batch is tried again caller by caller, where an input may be the reason. What is told
    of a request's stages, times included, is told of its whole batch.

    `deployment`: closed with this one.
    `limits`: those of `deployment`, which count a batch as one request.
    """

    def __init__(self, deployment: JoinableDeployment, batching: Batching, limits: Limits) -> None:
        #: What runs the batches.
        self.below: Final = deployment
        self._batching = batching
        self._batcher = Batcher(batching)
        #: Those that still want an answer, by their requests' ids.
        self._callers: dict[int, _Caller] = {}
        #: Request -> what it was joined into: the id of that request, and words for it.
        self._joined: OrderedDict[int, list[tuple[int, str]]] = OrderedDict()
        self._remembered = limits.remembered
        self._lock = threading.Lock()
        self._due = _Due()
        self._closed = False
        self._clock = deployment.clock
        self._timer = self._clock.timer(self._look)
        plan = deployment.plan
        name = f"{plan.name} (batches)"
        self._runner = RequestRunner(
            replace(limits, requests=limits.requests * batching.size),
            self,
            routes=(Route(plan, ()),),  # what comes of a batch is whole
            name=name,
            ids=itertools.count(1),
            in_flight=BytesInFlight(),
            clock=self._clock,
            ended=deployment.caller_ended,
        )
        deployment.joins(self._runner)

    @property
    def plan(self) -> Plan:
        """What was deployed."""
        return self.below.plan

    @property
    def imported(self) -> Collection[int]:
        """Stages that were imported from their payloads; the others were compiled."""
        return self.below.imported

    @property
    def routes(self) -> tuple[Route, ...]:
        """The ways that batches take."""
        return self.below.routes

    @property
    def has_route(self) -> bool:
        """Whether there is one without devices that are gone for good."""
        return self.below.has_route

    @property
    def callback_executor(self) -> ThreadPoolExecutor:
        """Where requests' callbacks run."""
        return self.below.callback_executor

    def submit(self, inputs: Mapping[str, Value], request: Request = PLAIN) -> Submission:
        """Admit a request; see `scheduler.executor.Deployment.submit`.

        One that keeps outputs is not joined with others.
        """
        if request.keep:
            return self.below.submit(inputs, request)
        made = self._runner.submit(inputs, request)
        return replace(made, story=partial(self.story, made.request_id))

    def story(self, request_id: int) -> list[StoryLine]:
        """Return what happened to a request so far, and to the batches that it was in."""
        lines = self._runner.story(request_id)
        with self._lock:
            joined = tuple(self._joined.get(request_id, ()))
        for batch_id, words in joined:
            lines += (
                line._replace(what=f"{words}: {line.what}") for line in self.below.story(batch_id)
            )
        return sorted(lines, key=lambda line: line.time_s)

    def context(self) -> RemoteContext:
        """Return the memory of the device that takes the first inputs."""
        return self.below.context()

    def executed_nodes(self, stage: int) -> tuple[ExecutedNode, ...]:
        """Return a stage's runtime model."""
        return self.below.executed_nodes(stage)

    def export(self, stage: int) -> Payload:
        """Return a stage's device's own form of it."""
        return self.below.export(stage)

    def close(self) -> None:
        """Cancel what is in flight and unload the stages; again is harmless."""
        with self._lock:
            was_closed, self._closed = self._closed, True
        if not was_closed and self._runner.home.is_here:
            self._runner.close()
            self._timer.close()
        self.below.close()

    def close_later(self) -> None:
        """Close soon, in another thread; see `scheduler.executor.Deployment.close_later`."""
        closing = threading.Thread(target=self.close, name=f"{self.plan.name}-close", daemon=True)
        self._clock.later(closing.start)

    # What the callers' runner asks for.

    def start(self, request: Request, inputs: Mapping[str, Value]) -> None:
        """Have a request wait for others, or run it."""
        rows = count_rows(inputs)
        with self._lock:
            self._callers[request.id] = _Caller(request, inputs, rows)
        arrived = RequestArrived(
            self._runner.now_s(),
            request.id,
            request.id if rows is None else kind_of(inputs),
            self._batching.size if rows is None else rows,
        )
        self._handle(arrived, request)

    def drop(self, request: Request) -> None:
        """Take a request out of those that wait; stop its batch if nobody else is in it."""
        with self._lock:
            caller = self._callers.pop(request.id, None)
            batch = caller.batch if caller else None
            submission = batch.submission if batch and not self._wanted(batch.running) else None
        if caller and not batch:
            self._handle(RequestLeft(self._runner.now_s(), request.id))
        if submission:
            submission.cancel()

    def answer(
        self, inputs: Mapping[str, Value], made: Mapping[str, Value], runs: tuple[StageRun, ...]
    ) -> Answer:
        """Return a caller's answer: its rows of its batch's."""
        return Answer(made, runs)

    # Batches.

    def _handle(self, event: BatchEvent, own: Request = PLAIN) -> None:
        """Tell the batcher, and run what it fires; `own` is the calling thread's request."""
        with self._lock:
            fired = []
            for fire in self._batcher.handle(event):
                callers = [self._callers[i] for i in fire.request_ids if i in self._callers]
                fired.append(batch := _Batch(fire.batch, [callers]))
                for caller in callers:
                    caller.batch = batch
            due_s = self._batcher.next_due_s
            if due_s is not None:
                self._timer.by(due_s)
        for batch in fired:
            self._run(batch, own)

    def _run(self, batch: _Batch, own: Request = PLAIN) -> None:
        """Run those of a batch that are next; with the last of them it has ended.

        A batch that ends as it is begun leads to the next: the thread takes them one by one.
        """
        due = self._due.batches
        due.append((batch, own))
        if len(due) == 1:  # else a frame of this thread goes on with it
            try:
                while due:
                    self._run_one(*due[0])
                    del due[0]
            finally:
                left, due[:] = due[1:], ()
                for other in left:  # Ctrl-C came
                    self._clock.later(partial(self._run, *other))

    def _run_one(self, batch: _Batch, own: Request) -> None:
        callers: list[_Caller] = []
        with self._lock:
            while batch.tries and not callers:
                callers = self._wanted(batch.tries.pop(0))
            batch.running, batch.submission = callers, None
        if not callers:
            self._handle(BatchEnded(self._runner.now_s(), batch.number))
            return
        alone = len(callers) == 1 and callers[0].request.id == own.id
        request = Request(
            LONGEST_S,
            profile=any(caller.request.profile for caller in callers),
            waits=False,
            inline=own.inline and alone,
            priority=max(caller.request.priority for caller in callers),
        )
        try:
            self._submit(batch, callers, request)
        except (OverloadedError, DeviceLostError):
            # No room, or no device now: a thread that may wait for them does.
            work = partial(self._submit_waiting, batch, callers, request)
            self._clock.spawn(work, f"{self.plan.name}-batch")

    def _submit_waiting(self, batch: _Batch, callers: list[_Caller], request: Request) -> None:
        try:
            self._submit(batch, callers, request._replace(waits=True, inline=False))
        except HeteroError as error:
            self._failed(batch, callers, error)

    def _submit(self, batch: _Batch, callers: list[_Caller], request: Request) -> None:
        try:
            inputs = join_rows([caller.inputs for caller in callers])
            submission = self.below.submit(inputs, request)
        except (OverloadedError, DeviceLostError):
            raise
        except Exception as error:
            self._failed(batch, callers, error)
            return
        except BaseException:  # Ctrl-C
            cancelled = RequestCancelledError("the batch of this request was interrupted.")
            self._failed(batch, callers, cancelled)
            raise
        words = f"batch of {len(callers)}"
        with self._lock:
            batch.submission = submission
            for caller in callers:
                batches = self._joined.setdefault(caller.request.id, [])
                batches.append((submission.request_id, words))
            while len(self._joined) > self._remembered:
                self._joined.popitem(last=False)
            is_wanted = self._wanted(callers)
        if not is_wanted:
            submission.cancel()
        submission.future.add_done_callback(partial(self._ended, batch, callers))

    def _ended(self, batch: _Batch, callers: list[_Caller], made: Promised[Answer]) -> None:
        """Take in what a batch came to, and have its callers told."""
        error = made.exception()
        if error is not None:
            self._failed(batch, callers, error)
            return
        answer = made.result()
        if len(callers) == 1:
            self._run_next(batch, callers)
            self._deliver(callers, answer, [answer.outputs])
            return
        counts = [caller.rows or 0 for caller in callers]
        try:
            outputs = split_rows(answer.outputs, counts)
        except HeteroError as wrong:
            self._failed(batch, callers, wrong)
            return
        self._run_next(batch, callers)
        # This thread may be a device's, which has the next batch to run.
        self._clock.later(partial(self._deliver, callers, answer, outputs))

    def _deliver(
        self, callers: Sequence[_Caller], answer: Answer, outputs: Sequence[Mapping[str, Value]]
    ) -> None:
        made_nbytes = sum(run.output_nbytes for run in answer.stage_runs) // len(callers)
        for caller, own in zip(callers, outputs, strict=True):
            self._runner.handle(
                events.PartArrived(
                    self._runner.now_s(),
                    caller.request.id,
                    caller.request.attempt,
                    own,
                    answer.stage_runs,
                    made_nbytes,
                )
            )

    def _failed(self, batch: _Batch, callers: list[_Caller], error: BaseException) -> None:
        """Try the callers one by one, where an input may be the reason; else tell them all."""
        if len(callers) > 1 and not isinstance(error, _NOT_OF_THE_INPUTS):
            batch.tries = [[caller] for caller in callers]
            self._run(batch)
            return
        self._run_next(batch, callers)
        for caller in callers:
            request = caller.request
            self._runner.handle(
                events.AttemptFailed(
                    self._runner.now_s(), request.id, request.attempt, _copied(error)
                )
            )

    def _run_next(self, batch: _Batch, callers: Sequence[_Caller]) -> None:
        """Have the device go on before its callers hear of what they were in."""
        with self._lock:
            for caller in callers:
                self._callers.pop(caller.request.id, None)
        self._run(batch)

    def _wanted(self, callers: Sequence[_Caller]) -> list[_Caller]:
        return [caller for caller in callers if caller.request.id in self._callers]

    def _look(self) -> float | None:
        if self._closed:
            return None
        self._handle(events.TimePassed(self._runner.now_s()))
        with self._lock:
            return self._batcher.next_due_s


def _copied(error: BaseException) -> BaseException:
    """Return an error of a caller's own: each is raised in another thread."""
    if not isinstance(error, HeteroError):
        return error
    copied = type(error)(error.message, **error.data)
    copied.__cause__ = error.__cause__
    return copied
