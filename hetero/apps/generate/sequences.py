"""State of continuous batching: sequences, the batches that hold their KV caches, and groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import numpy as np

from hetero.apps.generate.step_inputs import SequenceOptions, StepInputs
from hetero.devices.request.infer_request import InferRequest

#: Maximum tokens computed ahead of a sequence's reader; then its batch continues without it.
MAX_UNREAD: Final = 8
FinishReason = Literal["stop", "length", "cancelled"]


class TokenSequence:
    """The tokens of one prompt.

    Tokens may be computed before the reader requests them, because other sequences of the batch
    request theirs.
    """

    def __init__(
        self,
        prompt: tuple[int, ...],
        options: SequenceOptions,
        create_request: Callable[[], InferRequest],
    ) -> None:
        self.options: Final = options
        #: Number of tokens at its end, including the prompt.
        self.max_length: Final = len(prompt) + options.max_new_tokens
        #: Whether the devices have memory for its KV cache.
        self.is_admitted = False
        #: Makes a request of its model.
        self.create_request: Final = create_request
        #: State that the reader sees: tokens read, scores of the last one, reason of the end.
        self.tokens: list[int] = []
        self.logits: np.ndarray | None = None
        self.finish_reason: FinishReason | None = None
        #: Ids of the prompt and of all computed tokens.
        self.ids: Final = list(prompt)
        #: Computed tokens that the reader has not read, with their logits.
        self.unread: Final[deque[tuple[int, np.ndarray | None]]] = deque()
        #: Whether no more tokens are computed.
        self.is_complete = False
        self._reason: FinishReason = "length"
        self._generator: Final = np.random.Generator(np.random.Philox(options.seed))
        #: Random numbers of the next tokens; a token that is computed again uses the same one.
        self._random_numbers: Final[deque[float]] = deque()
        #: The sequences that share its next step.
        self.group = StepGroup([self])
        #: The batch and row that hold its KV cache; None without a cache.
        self.slot: tuple[SequenceBatch, int] | None = None
        #: Number of consecutive losses of its KV cache.
        self.num_losses = 0
        #: Called once at the next change.
        self.callbacks: list[Callable[[], Any]] = []

    @property
    def is_decoding(self) -> bool:
        """Whether the prefill is complete: the KV cache holds all tokens except the newest."""
        return self.slot is not None and self.slot[0].step_inputs.is_decode_step

    def add(self, token: int, logits: np.ndarray | None) -> None:
        """Append a computed token."""
        self.ids.append(token)
        self.unread.append((token, logits))
        self.num_losses = 0
        count = len(self.tokens) + len(self.unread)
        if token in self.options.end_ids or count >= self.options.max_new_tokens:
            self._reason = "stop" if token in self.options.end_ids else "length"
            self.is_complete, self.slot = True, None
        elif self._random_numbers:
            self._random_numbers.popleft()

    def read(self) -> int | None:
        """Return the next computed token; None after the last."""
        if not self.unread:
            return None
        token, self.logits = self.unread.popleft()
        self.tokens.append(token)
        if self.is_complete and not self.unread:
            self.finish_reason = self._reason
        return token

    def end(self) -> None:
        """Stop computing tokens and drop the unread ones."""
        self.finish_reason = self.finish_reason or "cancelled"
        self.is_complete, self.slot = True, None
        self.unread.clear()

    def random_number(self, offset: int = 0) -> float:
        """Return the number in [0, 1) by which the token `offset` after the next is sampled."""
        while len(self._random_numbers) <= offset:
            self._random_numbers.append(self._generator.random(dtype=np.float32))
        return self._random_numbers[offset]

    @property
    def next_is_last(self) -> bool:
        """Whether the next token reaches the maximum."""
        return len(self.tokens) + len(self.unread) + 1 >= self.options.max_new_tokens


class SequenceBatch:
    """A request whose states are the KV caches of sequences, one row each."""

    def __init__(
        self, request: InferRequest, step_inputs: StepInputs, sequences: Sequence[TokenSequence]
    ) -> None:
        self.request: Final = request
        self.step_inputs: Final = step_inputs
        self.sequences: Final = sequences
        #: Whether the current step, and the next one, was started before it was requested.
        self.is_early = self.is_next_early = False


class StepGroup:
    """Sequences that share decode steps.

    `is_busy`: whether a thread runs their step; `batch` is the batch of that step.
    `skips_join`: whether its next step does not wait to join others, because it fits none.
    """

    def __init__(self, sequences: Sequence[TokenSequence]) -> None:
        self.sequences = list(sequences)
        self.is_busy = False
        self.batch: SequenceBatch | None = None
        self.skips_join = False
        #: Number of its last turn, and whether no other group had a turn before it.
        self.last_turn = 0
        self.had_previous_turn = False
        for sequence in sequences:
            sequence.group = self

    @property
    def existing_batch(self) -> SequenceBatch | None:
        """The batch whose rows are exactly these sequences, if their readers keep up."""
        batch: SequenceBatch | None = None
        for row, sequence in enumerate(self.sequences):  # loops: this runs for each token
            slot = sequence.slot
            if slot is None or slot[1] != row or len(sequence.unread) >= MAX_UNREAD:
                return None
            if batch is not None and slot[0] is not batch:
                return None
            batch = slot[0]
        if batch is None or len(batch.sequences) != len(self.sequences):
            return None
        return batch
