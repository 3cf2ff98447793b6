"""Texts of one model that go on at once: who steps with whom, and whose turn it is.

Whoever asks for a token runs the step of its group, unless as many steps as devices are under way:
then its group joins one of those as soon as that has ended. Others of the group find their tokens
computed. Where no others step, the next step starts with each: devices begin it with the token that
the last one has chosen, while that goes to its reader.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Final

import numpy as np

from hetero.apps.generate.pace import Pace
from hetero.apps.generate.ports import Decoder
from hetero.apps.generate.rows import Rows
from hetero.apps.generate.steps import Steps
from hetero.apps.generate.texts import MOST_AHEAD, Group, Run, Text
from hetero.devices.errors import (
    DeviceMemoryError,
    HeteroError,
    RequestCancelledError,
    TensorLostError,
)
from hetero.devices.plugin.one_shot_event import OneShotEvent
from hetero.devices.request.results import Results
from hetero.devices.request.variable_states import VariableState

_log = logging.getLogger(__name__)

#: So that no token is changed, lost caches are made again run by run, where that takes stages no
#: longer than this: one that is not heard is waited for as long. Or so many times a prompt's.
_EXACTLY_S: Final = 2.0
_EXACTLY_PROMPTS: Final = 2.0
#: How often one token is tried again after caches were lost with a device.
_MOST_LOSSES: Final = 5


class Together:
    """All texts of a compiled model.

    `rows`: what rows may be; None where there is one.
    `lanes`: how many steps its devices run at once.
    """

    def __init__(self, decoder: Decoder, rows: Rows | None, lanes: int) -> None:
        self.decoder: Final = decoder
        self._rows: Final = rows
        self._lanes: Final = lanes
        #: Whether texts of several calls are joined.
        self._meets = rows is not None and rows.meets
        self._pace: Final = Pace()
        self._lock = threading.Lock()
        #: Groups of which a step is under way, and those that wait until one of these has ended.
        self._stepping: set[Group] = set()
        self._waiting: list[Group] = []
        self._num_turns = 0

    def step(self, texts: Sequence[Text]) -> list[int | None] | None:
        """Return the next token of each text, None of one that has ended; None once all have."""
        while not isinstance(turn := self._turn(texts), list):
            if isinstance(turn, OneShotEvent):
                turn.wait()
                continue
            try:
                run = turn.run or self._prepared(turn)
                self._answered(turn, run, self._infer(turn, run))
            except BaseException as error:
                if self._why(turn, error) is not None:
                    raise
        return _or_none(turn)

    async def step_async(self, texts: Sequence[Text]) -> list[int | None] | None:
        """Do the same in an event loop."""
        while True:
            changed: Future[None] = Future()
            end = partial(_settle, changed)
            turn = self._turn(texts, end)
            if isinstance(turn, list):
                return _or_none(turn)
            if isinstance(turn, Group):
                if turn.run or not turn.texts[0].is_begun:
                    self._start(turn, end)
                else:  # devices put caches together meanwhile
                    aside(self._start, turn, end)
            await until(changed)  # whoever is cancelled here leaves the step to the others

    def states(self, texts: Sequence[Text]) -> tuple[VariableState, ...]:
        """Return the states of texts, which are rows of one run then, if they can be."""
        while True:
            woken = OneShotEvent()
            with self._lock:
                live = [text for text in texts if text.is_begun]
                busy = [text for text in live if text.group.is_busy]
                for text in busy:
                    text.waiters.append(woken.set)
                is_one = len(live) < 2 or (self._rows is not None and self._rows.fit(live))
                if live and is_one and not busy:
                    for text in live:
                        text.group.texts.remove(text)
                    group = Group(live)
                    group.is_busy = True
                    break
            if not live:
                return ()
            if not busy:
                return tuple(state for text in live for state in self.states([text]))
            woken.wait()
        try:
            self._form(group)
            assert group.run is not None
            request = group.run.request
        except BaseException as error:
            if self._why(group, error) is not None:
                raise
            return ()
        with self._lock:
            self._release(group)
        return request.query_state()

    def end(self, texts: Sequence[Text]) -> None:
        """Have nothing more come of texts: what runs for them alone is cancelled."""
        with self._lock:
            is_new = not all(text.is_complete for text in texts)
            runs = {text.place[0] for text in texts if text.place is not None}
            for text in texts:
                text.end()
                _tell(text)
            ended = [run for run in runs if all(text.is_complete for text in run.texts)]
        for run in ended:
            run.request.cancel()
        if is_new:
            self._pace.ended()

    # Whose turn it is.

    def _turn(
        self, texts: Sequence[Text], wake: Callable[[], object] | None = None
    ) -> list[int | None] | Group | OneShotEvent:
        """Return the texts' tokens; or a group that the caller has to have step, which is busy.

        Else it has to wait for the signal, or until `wake` is called, and ask again.
        """
        with self._lock:
            lacking = [text for text in texts if not text.is_complete and not text.ahead]
            if not lacking:
                return [text.read() for text in texts]
            idle = [text for text in lacking if not text.group.is_busy]
            begins = next((text for text in idle if not text.is_begun), None)
            if begins is not None:
                self._begin_turn(begins.group)
                return begins.group
            if idle:
                group = idle[0].group
                for text in idle:
                    self._join(group, text.group)
                if group.goes_alone or not self._meets or len(self._stepping) < self._lanes:
                    self._begin_turn(group)
                    group.goes_alone = False
                    group.run = group.formed
                    self._stepping.add(group)
                    return group
                if group not in self._waiting:
                    self._waiting.append(group)
            woken = OneShotEvent()
            for text in lacking:
                text.waiters.append(wake or woken.set)
            return woken

    def _begin_turn(self, group: Group) -> None:
        """Have a group be busy, which knows then whether others had turns since its last."""
        group.is_busy = True
        self._num_turns += 1
        group.is_again = group.turn == self._num_turns - 1
        group.turn = self._num_turns

    def _join(self, group: Group, other: Group) -> bool:
        """Have another group's texts step with a group, where they may."""
        texts = [text for text in (*group.texts, *other.texts) if not text.is_complete]
        if group is other or self._rows is None or not texts or not self._rows.fit(texts):
            return False
        group.texts, other.texts = texts, []
        for text in texts:
            text.group = group
        return True

    def _release(self, group: Group) -> None:
        """Have a group wait to be asked; those that wait join it, as far as there is one a lane."""
        group.is_busy, group.run = False, None
        told = group.texts
        group.texts = [text for text in told if not text.is_complete]
        self._stepping.discard(group)
        if self._waiting and len(self._stepping) < self._lanes:
            told = list(told)
            waiting = [g for g in self._waiting if not g.is_busy and g.texts]
            every = {group, *self._stepping, *waiting}
            share = math.ceil(sum(len(one.texts) for one in every) / self._lanes)
            # None may join a text whose prompt is not computed yet, or which begins anew.
            is_begun = bool(group.texts) and all(text.is_begun for text in group.texts)
            base = group if is_begun or not waiting else waiting[0]
            self._waiting = []
            for other in waiting:
                told += other.texts
                if other is base:
                    continue
                if len(base.texts) + len(other.texts) > share:
                    self._waiting.append(other)
                elif not self._join(base, other):
                    other.goes_alone = True
        for text in told:
            _tell(text)

    # A step.

    def _prepared(self, group: Group) -> Run:
        """Return what a busy group's step runs.

        Texts whose readers are behind leave it.
        """
        with self._lock:
            live = [text for text in group.texts if not text.is_complete]
            behind = [Group([text]) for text in live if len(text.ahead) >= MOST_AHEAD]
            for other in behind:
                other.is_busy = True
            group.texts = [text for text in live if text.group is group]
        try:
            for other in behind:
                self._form(other)
            if group.texts:
                self._form(group)
        finally:
            with self._lock:
                for other in behind:
                    self._release(other)
        if group.run is None:
            raise RequestCancelledError("all texts ended before their step.")
        return group.run

    def _feeds(self, run: Run) -> dict[str, np.ndarray]:
        """Return a run's inputs; whether lost caches are had back, the request is told before."""
        prompts_s = self._pace.prompt_s(sum(len(text.said) for text in run.texts))
        run.request.restore_s = max(_EXACTLY_S, _EXACTLY_PROMPTS * prompts_s)
        run.is_early, run.is_next_early = run.is_next_early, False
        return run.steps.feeds()

    def _infer(self, group: Group, run: Run) -> Results:
        """Return what comes of a step, in the calling thread where the next does not start too."""
        if not self._goes_on(group, run):
            return run.request.infer(self._feeds(run), share_inputs=True)
        try:
            self._begin(group, run)
            run.request.wait()
        except KeyboardInterrupt:
            run.request.cancel()  # its caller has gone
            raise
        return run.request.results

    def _begin(self, group: Group, run: Run) -> None:
        """Start a step; with it the next where texts go on, for which devices need no word then."""
        run.request.start_async(self._feeds(run), share_inputs=True)
        if self._goes_on(group, run) and (after := run.steps.feeds_after()) is not None:
            run.is_next_early = run.request.start_next(after)

    def _goes_on(self, group: Group, run: Run) -> bool:
        """Whether a run's texts will go on together, as none is at its end and no others step."""
        with self._lock:
            is_alone = group.is_again and not self._waiting and self._stepping <= {group}
        is_last = any(text.is_last for text in run.texts)
        return bool(run.request.feedback) and is_alone and not is_last

    def _form(self, group: Group) -> None:
        """Have a run whose rows are a group's texts."""
        with self._lock:
            places = [text.place for text in group.texts]
            group.run = group.formed
        if group.run is not None:
            return
        parts: dict[Run, list[int]] = {}
        for place in places:
            if place is not None:
                parts.setdefault(place[0], []).append(place[1])
        texts = [run.texts[row] for run, rows in parts.items() for row in rows] or group.texts
        request, past = texts[0].create(), 0
        at_end = self._rows is not None and self._rows.padding == "begin"
        if parts:
            assert self._rows is not None
            past = max(len(text.said) for text in texts) - 1
            try:
                request.join_states(
                    [(run.request, rows) for run, rows in parts.items()], self._rows.layouts(past)
                )
            except HeteroError as error:
                if isinstance(error, DeviceMemoryError):  # else each step would try it again
                    self._meets = False
                raise TensorLostError(f"texts cannot go on together: {error}") from error
        ids = next(port for port in request.model_inputs if port.name == self.decoder.ids)
        if ids.type == "tensor(int64)":  # as the token is
            request.feedback = {self.decoder.ids: self.decoder.token}
        steps = Steps(self.decoder, request.model_inputs, texts, at_end, past, self._pace)
        run = Run(request, steps, texts)
        with self._lock:
            for row, text in enumerate(texts):
                if not text.is_complete:
                    text.place = run, row
            group.texts, group.run = list(texts), run

    def _answered(self, group: Group, run: Run, results: Results) -> None:
        """Take a run's tokens over, if it saw all that was said."""
        seconds = sum(stage.run_s for stage in run.request.times.stages)
        tokens = results[self.decoder.token][:, 0].tolist()
        logits = results[self.decoder.logits][:, -1] if len(results) > 1 else None
        with self._lock:
            if run.steps.ran(seconds):
                for row, text in enumerate(run.texts):
                    if not text.is_complete:
                        text.add(tokens[row], None if logits is None else logits[row])
                        if len(text.said) - 1 == self.decoder.changes_at and text.place:
                            self._begin_anew(text)
                run.steps.add(tokens)
                if any(text.is_complete for text in run.texts):
                    self._pace.ended()
            self._release(group)
            is_over = not any(text.place and text.place[0] is run for text in run.texts)
        if is_over:
            run.request.cancel()  # the step after the last, if it was started

    def _begin_anew(self, text: Text) -> None:
        """Have a text's next step make its caches, by itself: they are of another kind from now."""
        text.place = None
        text.group.texts.remove(text)
        Group([text])
        _tell(text)

    def _why(self, group: Group, error: BaseException) -> BaseException | None:
        """Take in that a step failed; return why, unless it is to be tried again."""
        with self._lock:
            texts = [text for text in group.texts if not text.is_complete]
            run, is_ours = group.run, isinstance(error, HeteroError)
            # It was begun on what may not have come to be: it is begun again on what there is.
            is_early = bool(texts) and is_ours and run is not None and run.is_early
            is_lost = isinstance(error, TensorLostError) and not is_early
            if run is not None:
                run.is_early = run.is_next_early = False
            if is_lost or not is_ours:  # it is begun anew, each by itself
                for text in texts:
                    _log.info("caches of %d tokens are made anew: %s", len(text.said), error)
                    text.place, text.losses = None, text.losses + 1
                    Group([text])
                group.texts = []
            self._release(group)
            for text in texts:
                _tell(text)
        is_cancelled = isinstance(error, RequestCancelledError) and not texts
        is_recent = is_lost and all(text.losses <= _MOST_LOSSES for text in texts)
        if is_early or is_cancelled or is_recent:
            error.with_traceback(None)  # it leads to the request, and so would hold its caches
            return None
        return error

    def _start(self, group: Group, end: Callable[[BaseException | None], object]) -> None:
        """Have a busy group step, and call `end` then, with the error if it failed."""
        try:
            run = group.run or self._prepared(group)
            self._begin(group, run)
            run.request.future().add_done_callback(partial(self._ended, group, run, end))
        except BaseException as error:
            end(self._why(group, error))

    def _ended(
        self,
        group: Group,
        run: Run,
        end: Callable[[BaseException | None], object],
        answered: Future[Results],
    ) -> None:
        why = None
        try:
            self._answered(group, run, answered.result())
        except BaseException as error:
            why = self._why(group, error)
        end(why)


def _or_none(tokens: list[int | None]) -> list[int | None] | None:
    return tokens if any(token is not None for token in tokens) else None


def _tell(text: Text) -> None:
    """Wake whoever waits for a text."""
    waiters, text.waiters = text.waiters, []
    for wake in waiters:
        wake()


def _settle(changed: Future[None], error: BaseException | None = None) -> None:
    with suppress(InvalidStateError):  # nobody waits any more, or it was told before
        if error is None:
            changed.set_result(None)
        else:
            changed.set_exception(error)


async def until(changed: Future[None]) -> None:
    """Wait in an event loop."""
    import asyncio  # here, as few have a loop: it is not needed at every start

    await asyncio.wrap_future(changed)


def aside(work: Callable[..., object], *given: object) -> None:
    """Have another thread do what an event loop should not wait for."""
    import asyncio

    asyncio.get_running_loop().run_in_executor(None, work, *given)
