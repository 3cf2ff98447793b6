"""Texts that are sure to meet: a step ends only once all the others wait for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest

import hetero
from hetero.apps.generate.texts import Group, Run
from hetero.apps.generate.together import Together
from tests.scheduler.parties import wait_for


class Meeting:
    """Has a step end only once all other texts wait for it, and notes the rows of each.

    `when_met`: called once, in the first step of all texts.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, when_met: Callable[[], object] | None = None
    ) -> None:
        self.texts: list[Any] = []
        self.rows: list[int] = []
        self.when_met = when_met
        answered = Together._answered

        def held(together: Together, group: Group, run: Run, results: Any) -> None:
            if run.steps.is_step:
                self.rows.append(len(run.texts))
                wait_for(lambda: self._are_there(together, group))
                if self.when_met is not None and len(run.texts) == len(self.texts):
                    call, self.when_met = self.when_met, None
                    call()
            answered(together, group, run, results)

        patch.setattr(Together, "_answered", held)

    def of(self, generations: Sequence[hetero.Generation]) -> None:
        """Wait for these from now on."""
        self.texts = [text for generation in generations for text in generation._texts]

    def _are_there(self, together: Together, group: Group) -> bool:
        return all(
            text.is_complete or text.group is group or text.group in together._waiting
            for text in self.texts
        )


def read(generations: Sequence[hetero.Generation], counts: Sequence[int | None]) -> None:
    """Read so many tokens of each, all of None, each in a thread."""
    with ThreadPoolExecutor(len(generations)) as pool:
        list(pool.map(lambda g, n: list(islice(g, n)), generations, counts))
