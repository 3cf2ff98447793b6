"""Continuous batching: sequences of one model share decode steps, and join and leave between them.

A caller that requests a token runs the step of its group. If all lanes are busy, the group waits
and joins the next group that finishes a step. Other callers of the group find their tokens
computed. A group that runs alone starts the following step together with each step: devices begin
it with the token that they have just chosen, while that token travels to its reader. Quick steps
on devices in process run in the caller's own thread instead, one at a time.

Alternatives measured: one thread that owns the steps, and runs up to 1, 2 or 8 tokens ahead of the
readers, as the engine loop of a server does. Of the median rate here, it reached 0.65, 0.51 and
1.46 times for one reader, 0.36, 0.54 and 0.36 times for four, and 0.84, 0.39 and 0.17 times for
eight, with 0.8 to 4 times the processor time per token. The 95th percentile of the gaps between
tokens was 0.65 to 2.4 times that of this design.
(`small_decoder(4)` on one ORT device in process, 64 tokens per sequence, 7 paired rounds each, on
two cores that were busy with other work.)
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

from hetero.apps.generate.batch_layout import BatchLayout
from hetero.apps.generate.cache_admission import CacheAdmission
from hetero.apps.generate.decoder_ports import Decoder
from hetero.apps.generate.prefill_chunks import ChunkSizer
from hetero.apps.generate.sequences import MAX_UNREAD, SequenceBatch, StepGroup, TokenSequence
from hetero.apps.generate.step_inputs import StepInputs
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

#: Lost KV caches are recomputed from their lineage, which gives the same tokens bit for bit, if
#: that takes at most this long; a device that does not respond is waited for as long.
_MAX_REPLAY_S: Final = 2.0
#: The limit is higher for long prompts: this many times the estimated prefill.
_MAX_REPLAY_PROMPTS: Final = 2.0
#: Maximum attempts at one token while devices keep failing.
_MAX_LOSSES: Final = 5


class Batcher:
    """All sequences of a compiled model.

    `layout`: arrangement of several sequences in one run; None if a run has a single row.
    `lanes`: number of steps that the devices run at once.
    `admission`: limits the sequences that run at once; None if their number is unlimited.
    `max_chunk`: maximum tokens of a prompt chunk; None for the usual one.
    `runs_in_caller`: whether the thread that waits for a step also runs it.
    """

    def __init__(
        self,
        decoder: Decoder,
        layout: BatchLayout | None,
        lanes: int,
        admission: CacheAdmission | None = None,
        max_chunk: int | None = None,
        runs_in_caller: Callable[[], bool] = lambda: False,
    ) -> None:
        self.decoder: Final = decoder
        self.admission: Final = admission
        self._layout: Final = layout
        self._lanes: Final = lanes
        #: Whether sequences of several calls share steps.
        self._joins_calls = layout is not None and layout.joins_calls
        self._chunks: Final = ChunkSizer(max_chunk)
        self._runs_in_caller: Final = runs_in_caller
        self._lock = threading.Lock()
        #: Groups whose step is running, and groups that wait for one of them to finish.
        self._stepping: set[StepGroup] = set()
        self._waiting: list[StepGroup] = []
        self._num_turns = 0

    def step(self, sequences: Sequence[TokenSequence]) -> list[int | None] | None:
        """Return the next token of each sequence, None for one that has ended; None after all."""
        if self.admission is not None:
            self.admission.wait(sequences)
        while not isinstance(turn := self._next_turn(sequences), list):
            if isinstance(turn, OneShotEvent):
                turn.wait()
                continue
            try:
                batch = turn.batch or self._prepare(turn)
                self._complete(turn, batch, self._infer(turn, batch))
            except BaseException as error:
                if self._error_to_raise(turn, error) is not None:
                    raise
        return _or_none(turn)

    async def step_async(self, sequences: Sequence[TokenSequence]) -> list[int | None] | None:
        """Do what `step` does, without blocking the event loop."""
        await self.wait_for_admission(sequences)
        while True:
            changed: Future[None] = Future()
            notify = partial(_complete_future, changed)
            turn = self._next_turn(sequences, notify)
            if isinstance(turn, list):
                return _or_none(turn)
            if isinstance(turn, StepGroup):
                if turn.batch or not turn.sequences[0].is_decoding:
                    self._start(turn, notify)
                else:  # joining KV caches waits for devices
                    run_in_thread(self._start, turn, notify)
            await wait_in_loop(changed)  # a task that is cancelled here leaves the step to others

    async def wait_for_admission(self, sequences: Sequence[TokenSequence]) -> None:
        """Wait until the devices have memory for the KV caches of sequences."""
        if self.admission is not None:
            await self.admission.wait_async(sequences)

    def states(self, sequences: Sequence[TokenSequence]) -> tuple[VariableState, ...]:
        """Return the states of sequences, after joining them into one batch if possible."""
        while True:
            changed = OneShotEvent()
            with self._lock:
                decoding = [sequence for sequence in sequences if sequence.is_decoding]
                busy = [sequence for sequence in decoding if sequence.group.is_busy]
                for sequence in busy:
                    sequence.callbacks.append(changed.set)
                fits = len(decoding) < 2 or (
                    self._layout is not None and self._layout.fits(decoding)
                )
                if decoding and fits and not busy:
                    for sequence in decoding:
                        sequence.group.sequences.remove(sequence)
                    group = StepGroup(decoding)
                    group.is_busy = True
                    break
            if not decoding:
                return ()
            if not busy:
                return tuple(state for sequence in decoding for state in self.states([sequence]))
            changed.wait()
        try:
            self._form_batch(group)
            assert group.batch is not None
            request = group.batch.request
        except BaseException as error:
            if self._error_to_raise(group, error) is not None:
                raise
            return ()
        with self._lock:
            self._release(group)
        return request.query_state()

    def end(self, sequences: Sequence[TokenSequence]) -> None:
        """Stop generating; cancel runs that serve only these sequences."""
        with self._lock:
            is_new = not all(sequence.is_complete for sequence in sequences)
            batches = {sequence.slot[0] for sequence in sequences if sequence.slot is not None}
            for sequence in sequences:
                sequence.end()
                _notify(sequence)
            unused = [b for b in batches if all(one.is_complete for one in b.sequences)]
        for batch in unused:
            batch.request.cancel()
        if is_new:
            self._chunks.observe_end()
        self.observe_end()

    def observe_end(self) -> None:
        """Let sequences that wait for memory begin, because others have ended."""
        if self.admission is not None:
            self.admission.notify()

    # Turns: which group runs the next step.

    def _next_turn(
        self, sequences: Sequence[TokenSequence], notify: Callable[[], object] | None = None
    ) -> list[int | None] | StepGroup | OneShotEvent:
        """Return tokens, a group whose step the caller has to run, or a signal to wait for.

        The group is marked busy. Instead of setting a signal, `notify` is called, if given; the
        caller then calls this again.
        """
        with self._lock:
            lacking = [one for one in sequences if not one.is_complete and not one.unread]
            if not lacking:
                return [sequence.read() for sequence in sequences]
            idle = [sequence for sequence in lacking if not sequence.group.is_busy]
            for sequence in idle:
                if not sequence.is_decoding:
                    self._begin_turn(sequence.group)
                    return sequence.group
            if idle:
                group = idle[0].group
                for sequence in idle:
                    self._join(group, sequence.group)
                has_lane = len(self._stepping) < self._lanes
                if group.skips_join or not self._joins_calls or has_lane:
                    self._begin_turn(group)
                    group.skips_join = False
                    group.batch = group.existing_batch
                    self._stepping.add(group)
                    return group
                if group not in self._waiting:
                    self._waiting.append(group)
            changed = OneShotEvent()
            for sequence in lacking:
                sequence.callbacks.append(notify or changed.set)
            return changed

    def _begin_turn(self, group: StepGroup) -> None:
        """Mark a group busy, and record whether any other group had a turn since its last one."""
        group.is_busy = True
        self._num_turns += 1
        group.had_previous_turn = group.last_turn == self._num_turns - 1
        group.last_turn = self._num_turns

    def _join(self, group: StepGroup, other: StepGroup) -> bool:
        """Move the sequences of another group to a group, if they fit; return whether they did."""
        sequences = [one for one in (*group.sequences, *other.sequences) if not one.is_complete]
        if group is other or self._layout is None or not sequences:
            return False
        if not self._layout.fits(sequences):
            return False
        group.sequences, other.sequences = sequences, []
        for sequence in sequences:
            sequence.group = group
        return True

    def _release(self, group: StepGroup) -> None:
        """End a group's turn; let waiting groups join it, so that each lane has an equal share."""
        group.is_busy, group.batch = False, None
        changed = group.sequences
        group.sequences = [sequence for sequence in changed if not sequence.is_complete]
        self._stepping.discard(group)
        if self._waiting and len(self._stepping) < self._lanes:
            changed = list(changed)
            waiting = [one for one in self._waiting if not one.is_busy and one.sequences]
            groups = {group, *self._stepping, *waiting}
            share = math.ceil(sum(len(one.sequences) for one in groups) / self._lanes)
            # A sequence whose prefill is incomplete, or was lost, cannot be joined.
            can_be_joined = bool(group.sequences) and all(s.is_decoding for s in group.sequences)
            base = group if can_be_joined or not waiting else waiting[0]
            self._waiting = []
            for other in waiting:
                changed += other.sequences
                if other is base:
                    continue
                if len(base.sequences) + len(other.sequences) > share:
                    self._waiting.append(other)
                elif not self._join(base, other):
                    other.skips_join = True
        for sequence in changed:
            _notify(sequence)

    # Steps of the group whose turn it is.

    def _prepare(self, group: StepGroup) -> SequenceBatch:
        """Return the batch of a busy group's step.

        Sequences whose readers are too slow leave the group.
        """
        with self._lock:
            active = [sequence for sequence in group.sequences if not sequence.is_complete]
            slow = [StepGroup([one]) for one in active if len(one.unread) >= MAX_UNREAD]
            for other in slow:
                other.is_busy = True
            group.sequences = [sequence for sequence in active if sequence.group is group]
        try:
            for other in slow:
                self._form_batch(other)
            if group.sequences:
                self._form_batch(group)
        finally:
            with self._lock:
                for other in slow:
                    self._release(other)
        if group.batch is None:
            raise RequestCancelledError("all sequences ended before their step.")
        return group.batch

    def _feeds(self, batch: SequenceBatch) -> dict[str, np.ndarray]:
        """Return the inputs of a batch's next run, and set the time limit for recomputation."""
        num_tokens = 0
        for sequence in batch.sequences:
            num_tokens += len(sequence.ids)
        replay_s = _MAX_REPLAY_PROMPTS * self._chunks.prompt_s(num_tokens)
        batch.request.restore_s = max(_MAX_REPLAY_S, replay_s)
        batch.is_early, batch.is_next_early = batch.is_next_early, False
        return batch.step_inputs.feeds()

    def _infer(self, group: StepGroup, batch: SequenceBatch) -> Results:
        """Run a step; in the calling thread unless the next step starts with it."""
        # An early step would need another thread, which costs more than it saves.
        if self._runs_in_caller() or not self._is_next_step_unchanged(group, batch):
            return batch.request.infer(self._feeds(batch), share_inputs=True)
        try:
            self._begin(group, batch)
            batch.request.wait()
        except KeyboardInterrupt:
            batch.request.cancel()  # the caller no longer waits for it
            raise
        return batch.request.results

    def _begin(self, group: StepGroup, batch: SequenceBatch) -> None:
        """Start a step, and the next one with it if the batch continues unchanged."""
        batch.request.start_async(self._feeds(batch), share_inputs=True)
        if self._is_next_step_unchanged(group, batch):
            next_feeds = batch.step_inputs.feeds_after()
            if next_feeds is not None:
                batch.is_next_early = batch.request.start_next(next_feeds)

    def _is_next_step_unchanged(self, group: StepGroup, batch: SequenceBatch) -> bool:
        """Whether a batch will run the next step unchanged: none ends and no others wait."""
        with self._lock:
            others_wait = self._waiting or not self._stepping <= {group}
            is_alone = group.had_previous_turn and not others_wait
        any_ends = any(sequence.next_is_last for sequence in batch.sequences)
        return bool(batch.request.feedback) and is_alone and not any_ends

    def _form_batch(self, group: StepGroup) -> None:
        """Set the batch of a group; join KV caches from other batches if necessary."""
        with self._lock:
            slots = [sequence.slot for sequence in group.sequences]
            group.batch = group.existing_batch
        if group.batch is not None:
            return
        rows_by_batch: dict[SequenceBatch, list[int]] = {}
        for slot in slots:
            if slot is not None:
                rows_by_batch.setdefault(slot[0], []).append(slot[1])
        sequences = [
            batch.sequences[row] for batch, rows in rows_by_batch.items() for row in rows
        ] or group.sequences
        request, past = sequences[0].create_request(), 0
        at_end = self._layout is not None and self._layout.padding == "begin"
        if rows_by_batch:
            assert self._layout is not None
            past = max(len(sequence.ids) for sequence in sequences) - 1
            try:
                request.join_states(
                    [(batch.request, rows) for batch, rows in rows_by_batch.items()],
                    self._layout.layouts(past),
                )
            except HeteroError as error:
                if isinstance(error, DeviceMemoryError):  # otherwise every step would try again
                    self._joins_calls = False
                raise TensorLostError(f"sequences cannot be batched: {error}") from error
        ids = next(port for port in request.model_inputs if port.name == self.decoder.ids)
        if ids.type == "tensor(int64)":  # the type of the sampled token
            request.feedback = {self.decoder.ids: self.decoder.token}
        step_inputs = StepInputs(
            self.decoder, request.model_inputs, sequences, at_end, past, self._chunks
        )
        new_batch = SequenceBatch(request, step_inputs, sequences)
        with self._lock:
            for row, sequence in enumerate(sequences):
                if not sequence.is_complete:
                    sequence.slot = new_batch, row
            group.sequences, group.batch = list(sequences), new_batch

    def _complete(self, group: StepGroup, batch: SequenceBatch, results: Results) -> None:
        """Append a step's tokens to the sequences, unless it was a prompt chunk."""
        seconds = 0.0
        for stage in batch.request.times.stages:
            seconds += stage.ended_s - stage.started_s
        tokens = results[self.decoder.token][:, 0].tolist()
        logits = results[self.decoder.logits][:, -1] if len(results) > 1 else None
        has_ended = is_used = False  # loops instead of generators: this runs for each token
        with self._lock:
            is_step = batch.step_inputs.complete_run(seconds)
            for row, sequence in enumerate(batch.sequences):
                if is_step and not sequence.is_complete:
                    sequence.add(tokens[row], None if logits is None else logits[row])
                    if len(sequence.ids) - 1 == self.decoder.changes_at and sequence.slot:
                        self._restart(sequence)
                if sequence.is_complete:
                    has_ended = True
                elif sequence.slot is not None and sequence.slot[0] is batch:
                    is_used = True
            if is_step:
                batch.step_inputs.add(tokens)
                if has_ended:
                    self._chunks.observe_end()
            self._release(group)
        if not is_used:
            batch.request.cancel()  # the step after the last, if it was started
        if has_ended:
            self.observe_end()

    def _restart(self, sequence: TokenSequence) -> None:
        """Recompute a sequence's KV cache from its tokens, at a length where the model changes."""
        sequence.slot = None
        sequence.group.sequences.remove(sequence)
        StepGroup([sequence])
        _notify(sequence)

    def _error_to_raise(self, group: StepGroup, error: BaseException) -> BaseException | None:
        """Handle the failure of a step; return the error, or None if the step is tried again."""
        with self._lock:
            sequences = [sequence for sequence in group.sequences if not sequence.is_complete]
            batch, is_own_error = group.batch, isinstance(error, HeteroError)
            # A step that was started early may have read tokens that were never computed.
            is_early = bool(sequences) and is_own_error and batch is not None and batch.is_early
            is_lost = isinstance(error, TensorLostError) and not is_early
            if batch is not None:
                batch.is_early = batch.is_next_early = False
            if is_lost or not is_own_error:  # restart each sequence by itself
                for sequence in sequences:
                    _log.info("KV cache of %d tokens is recomputed: %s", len(sequence.ids), error)
                    sequence.slot, sequence.num_losses = None, sequence.num_losses + 1
                    StepGroup([sequence])
                group.sequences = []
            self._release(group)
            for sequence in sequences:
                _notify(sequence)
        is_cancelled = isinstance(error, RequestCancelledError) and not sequences
        may_retry = is_lost and all(one.num_losses <= _MAX_LOSSES for one in sequences)
        if is_early or is_cancelled or may_retry:
            error.with_traceback(None)  # the traceback would keep the request and its caches
            return None
        return error

    def _start(self, group: StepGroup, notify: Callable[[BaseException | None], object]) -> None:
        """Start the step of a busy group; call `notify` at its end, with the error if it failed."""
        try:
            batch = group.batch or self._prepare(group)
            self._begin(group, batch)
            batch.request.future().add_done_callback(
                partial(self._complete_async, group, batch, notify)
            )
        except BaseException as error:
            notify(self._error_to_raise(group, error))

    def _complete_async(
        self,
        group: StepGroup,
        batch: SequenceBatch,
        notify: Callable[[BaseException | None], object],
        future: Future[Results],
    ) -> None:
        failure = None
        try:
            self._complete(group, batch, future.result())
        except BaseException as error:
            failure = self._error_to_raise(group, error)
        notify(failure)


def _or_none(tokens: list[int | None]) -> list[int | None] | None:
    return tokens if tokens.count(None) < len(tokens) else None


def _notify(sequence: TokenSequence) -> None:
    """Call the callbacks of a sequence, once."""
    callbacks, sequence.callbacks = sequence.callbacks, []
    for callback in callbacks:
        callback()


def _complete_future(changed: Future[None], error: BaseException | None = None) -> None:
    with suppress(InvalidStateError):  # already settled, or its task was cancelled
        if error is None:
            changed.set_result(None)
        else:
            changed.set_exception(error)


async def wait_in_loop(changed: Future[None]) -> None:
    """Wait for a future in an event loop."""
    import asyncio  # imported late: few programs use an event loop

    await asyncio.wrap_future(changed)


def run_in_thread(function: Callable[..., object], *arguments: object) -> None:
    """Run a blocking function in another thread of the event loop."""
    import asyncio

    asyncio.get_running_loop().run_in_executor(None, function, *arguments)
