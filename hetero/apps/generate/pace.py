"""How large the parts of prompts are, so that the tokens of other texts go on in between."""

from __future__ import annotations

import threading
from math import inf
from typing import Final

#: The fewest and the most tokens of a prompt that one run sees: of one alone ONNX Runtime rounds a
#: product otherwise, of 4 bits by up to 3 % of the logits, so that texts would depend on the parts.
SMALLEST: Final = 2
LARGEST: Final = 128
#: What a part may take: so many of the others' steps, or this share of those since the last part.
_STEPS: Final = 2.0
_SHARE: Final = 0.5


class Pace:
    """How large the next part of a prompt is, by what steps and parts took in stages' seconds.

    All texts of a compiled model share one. Where others had tokens since the last part was asked
    for, one takes about half as long as those did, or two steps; otherwise it is as large as may
    be. Sizes are powers of two, as devices may prepare for each shape.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: What a step took lately, how many there were since the last size, and what a part took.
        self._step_s = 0.0
        self._num_steps = 0
        self._last: tuple[int, float] | None = None
        #: What a token took of the last part that had several.
        self._token_s = inf

    def size(self, begins: bool) -> int:
        """Return how many tokens the next part of a prompt has, which `begins` with it or not."""
        with self._lock:
            others, self._num_steps = self._num_steps, 0
            if not others:
                return LARGEST
            size, seconds = self._last or (1, self._step_s)
            wanted_s = self._step_s * (_STEPS if begins else max(_STEPS, _SHARE * others))
            wanted = size * wanted_s / seconds if seconds > 0 else LARGEST
            return 1 << (min(max(int(wanted), SMALLEST), LARGEST).bit_length() - 1)

    def stepped(self, seconds: float) -> None:
        """Take in what a step of a text took."""
        with self._lock:
            self._step_s = (3 * self._step_s + seconds) / 4 if self._step_s else seconds
            self._num_steps += 1

    def ended(self) -> None:
        """Take in that a text ended; those that go on count again with their next steps."""
        with self._lock:
            self._num_steps = 0

    def fed(self, size: int, seconds: float) -> None:
        """Take in what a part of a prompt took."""
        with self._lock:
            self._last = size, seconds
            if size >= SMALLEST:
                self._token_s = seconds / size

    def prompt_s(self, size: int) -> float:
        """Return about how long stages run for a prompt of so many tokens; inf if none ran."""
        return size * self._token_s
