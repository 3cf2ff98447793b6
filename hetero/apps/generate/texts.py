"""Texts that a decoder goes on with, the runs that have their caches, and who steps with whom."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import numpy as np

from hetero.apps.generate.steps import Steps, TextOptions
from hetero.devices.request.infer_request import InferRequest

#: Tokens that are computed ahead of a text's reader before others go on without it.
MOST_AHEAD: Final = 8
FinishReason = Literal["stop", "length", "cancelled"]


class Text:
    """What came of one prompt: its tokens, and when it ends.

    Tokens are computed before they are asked for where others of the same run ask for theirs.
    """

    def __init__(
        self, prompt: tuple[int, ...], options: TextOptions, create: Callable[[], InferRequest]
    ) -> None:
        self.options: Final = options
        #: Makes a request of its model.
        self.create: Final = create
        #: Of its reader.
        self.tokens: list[int] = []
        self.logits: np.ndarray | None = None
        self.finish_reason: FinishReason | None = None
        #: The prompt and what was computed; of that what was not read yet, with its logits.
        self.said: Final = list(prompt)
        self.ahead: Final[deque[tuple[int, np.ndarray | None]]] = deque()
        #: Whether nothing more is computed.
        self.is_complete = False
        self._reason: FinishReason = "length"
        self._draws: Final = np.random.Generator(np.random.Philox(options.seed))
        #: Drawn for the next token, however often that is tried, and for those after it.
        self._drawn: Final[deque[float]] = deque()
        #: With whom it steps, and where its caches are: a run and a row of it.
        self.group = Group([self])
        self.place: tuple[Run, int] | None = None
        #: How often in a row its caches were lost.
        self.losses = 0
        #: Called once when something of it has changed.
        self.waiters: list[Callable[[], Any]] = []

    @property
    def is_begun(self) -> bool:
        """Whether its caches hold all but its newest token."""
        return self.place is not None and self.place[0].steps.is_step

    def add(self, token: int, logits: np.ndarray | None) -> None:
        """Take over a token that was computed."""
        self.said.append(token)
        self.ahead.append((token, logits))
        self.losses = 0
        count = len(self.tokens) + len(self.ahead)
        if token in self.options.ends or count >= self.options.most:
            self._reason = "stop" if token in self.options.ends else "length"
            self.is_complete, self.place = True, None
        elif self._drawn:
            self._drawn.popleft()

    def read(self) -> int | None:
        """Return the next token that was computed; None after the last."""
        if not self.ahead:
            return None
        token, self.logits = self.ahead.popleft()
        self.tokens.append(token)
        if self.is_complete and not self.ahead:
            self.finish_reason = self._reason
        return token

    def end(self) -> None:
        """Have nothing more come of it."""
        self.finish_reason = self.finish_reason or "cancelled"
        self.is_complete, self.place = True, None
        self.ahead.clear()

    def drawn(self, after: int = 0) -> float:
        """Return a number from [0, 1) for the next token, or for one so many after it."""
        while len(self._drawn) <= after:
            self._drawn.append(self._draws.random(dtype=np.float32))
        return self._drawn[after]

    @property
    def is_last(self) -> bool:
        """Whether the next token is the last there may be."""
        return len(self.tokens) + len(self.ahead) + 1 >= self.options.most


class Run:
    """A request, and the texts whose caches are its states, row by row."""

    def __init__(self, request: InferRequest, steps: Steps, texts: Sequence[Text]) -> None:
        self.request: Final = request
        self.steps: Final = steps
        self.texts: Final = texts
        #: Whether its step, and the one after that, was started before its turn.
        self.is_early = self.is_next_early = False


class Group:
    """Texts that step together.

    `is_busy`: whether somebody has them step; `run` is what runs for them then.
    `goes_alone`: whether it steps without waiting, nobody being there whom it could join.
    """

    def __init__(self, texts: Sequence[Text]) -> None:
        self.texts = list(texts)
        self.is_busy = False
        self.run: Run | None = None
        self.goes_alone = False
        #: Which turn it had last, of all, and whether it had the one before as well.
        self.turn = 0
        self.is_again = False
        for text in texts:
            text.group = self

    @property
    def formed(self) -> Run | None:
        """The run whose rows its texts are, one by one, and are being read."""
        places = [text.place for text in self.texts]
        run = places[0][0] if places and places[0] else None
        is_whole = run is not None and places == [(run, row) for row in range(len(run.texts))]
        is_read = all(len(text.ahead) < MOST_AHEAD for text in self.texts)
        return run if is_whole and is_read else None
