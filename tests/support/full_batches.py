"""Full decoding batches: a step ends only when all other sequences wait for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest

import hetero
from hetero.apps.generate.batcher import Batcher
from hetero.apps.generate.sequences import SequenceBatch, StepGroup
from tests.scheduler.endpoints import wait_for


class FullBatches:
    """Delays the end of each step until all other sequences wait, and records its rows.

    `on_full`: called once, in the first step of all sequences.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, on_full: Callable[[], object] | None = None
    ) -> None:
        self.sequences: list[Any] = []
        self.rows: list[int] = []
        self.on_full = on_full
        complete = Batcher._complete

        def delayed(batcher: Batcher, group: StepGroup, batch: SequenceBatch, results: Any) -> None:
            if batch.step_inputs.is_decode_step:
                self.rows.append(len(batch.sequences))
                wait_for(lambda: self._all_wait(batcher, group))
                if self.on_full is not None and len(batch.sequences) == len(self.sequences):
                    call, self.on_full = self.on_full, None
                    call()
            complete(batcher, group, batch, results)

        patch.setattr(Batcher, "_complete", delayed)

    def of(self, generations: Sequence[hetero.Generation]) -> None:
        """Wait for the sequences of these generations from now on."""
        self.sequences = [one for generation in generations for one in generation._sequences]

    def _all_wait(self, batcher: Batcher, group: StepGroup) -> bool:
        return all(
            one.is_complete or one.group is group or one.group in batcher._waiting
            for one in self.sequences
        )


def read(generations: Sequence[hetero.Generation], counts: Sequence[int | None]) -> None:
    """Read `counts` tokens of each generation in a thread of its own; None reads all."""
    with ThreadPoolExecutor(len(generations)) as pool:
        list(pool.map(lambda g, n: list(islice(g, n)), generations, counts))
