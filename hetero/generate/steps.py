"""The steps of a decoder: what each run is given, for one text or for several as rows of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from devices.model.tensor_spec import TensorSpec
from hetero.generate.pace import Pace
from hetero.generate.ports import Decoder
from hetero.generate.sampling import Sampling


class Steps:
    """The inputs of a decoder's next step, from what was said so far.

    Shorter prompts of several begin with tokens that the mask leaves out.

    `ports`: the inputs of the compiled model.
    `seeds`: of each prompt.
    `pace`: says how much of a prompt one run sees.
    `sources`: inputs that are the same in each step.
    """

    def __init__(
        self,
        decoder: Decoder,
        ports: Sequence[TensorSpec],
        prompts: Sequence[tuple[int, ...]],
        sampling: Sampling,
        seeds: Sequence[int],
        sources: Mapping[str, npt.ArrayLike],
        pace: Pace,
    ) -> None:
        self._types: Final = {port.name: port for port in ports}
        self._decoder: Final = decoder
        self._sources: Final = dict(sources)
        self._draws: Final = [np.random.Generator(np.random.Philox(seed)) for seed in seeds]
        self._sampling: Final = np.repeat(sampling.row(decoder.vocabulary), len(prompts), axis=0)
        self._penalizes: Final = sampling.repetition_penalty != 1
        self._begins: Final = [max(map(len, prompts)) - len(prompt) for prompt in prompts]
        #: Tokens that there are, and those of them that the caches have seen.
        self._count = max(map(len, prompts))
        self._past = 0
        self._pace: Final = pace
        #: How many tokens the next run sees, and whether it is part of a prompt.
        self._size = 0
        self._room = 0
        self._ids = self._seen = self._mask = self._places = np.empty((len(prompts), 0), np.int64)
        self._make_room(self._count)
        for row, (begin, prompt) in enumerate(zip(self._begins, prompts, strict=True)):
            # Left out, and so that a penalty finds none but the row's own: its first token.
            self._ids[row, :begin] = prompt[0]
            self._ids[row, begin : self._count] = prompt
        self._draw()

    def feeds(self) -> dict[str, np.ndarray]:
        """Return the next run's inputs by name; they are views, to be read before the next call."""
        decoder, past = self._decoder, self._past
        left = self._count - past
        self._size = left  # rows of GroupQueryAttention have no parts
        if left > 1 and (len(self._begins) == 1 or decoder.pads):
            self._size = min(left, self._pace.size(begins=not past))
        if left - self._size == 1:  # see `pace.SMALLEST`
            self._size = left
        upto = past + self._size
        new = self._ids[:, past:upto]
        given = self._sources | {
            decoder.ids: new,
            decoder.sampling: self._sampling,
            decoder.seen: self._seen[:, : self._count] if self._penalizes else self._seen[:, :1],
        }
        if decoder.mask:
            given[decoder.mask] = self._mask[:, :upto]
        if decoder.positions:
            flat = len(self._types[decoder.positions].shape or (0, 0)) == 1
            given[decoder.positions] = self._places[0 if flat else slice(None), past:upto]
        for name, length in ((decoder.past_length, past), (decoder.total_length, upto)):
            if name:
                port = self._types[name]
                given[name] = np.full(np.shape(new)[: len(port.shape or ())], length, port.dtype)
        if decoder.is_next:
            given[decoder.is_next] = np.asarray([past > 0])
        return given

    def ran(self, seconds: float) -> bool:
        """Take in that the next run took so long; whether it saw all there is, so its token counts.

        Otherwise the next one sees more of the prompt.
        """
        if self._size == 1 and self._past:
            self._pace.stepped(seconds)
        else:
            self._pace.fed(self._size, seconds)
        if is_last := self._past + self._size == self._count:
            return is_last
        self._past += self._size
        return False

    def add(self, tokens: Sequence[int]) -> None:
        """Go on to the step after one that gave `tokens`, one for each text."""
        self._past = self._count
        if self._count == self._room:
            self._make_room(2 * self._count)
        self._ids[:, self._count] = self._seen[:, self._count] = tokens
        self._count += 1
        self._draw()

    def end(self) -> None:
        """Take no more."""
        self._pace.ended()

    def begin_anew(self) -> None:
        """Have the next step see everything so far, its caches being empty."""
        self._past = 0

    def _draw(self) -> None:
        """Draw a number for each text: once a token, however often that is tried."""
        self._sampling[:, -1] = [draw.random(dtype=np.float32) for draw in self._draws]

    def _make_room(self, room: int) -> None:
        """Have arrays that hold `room` tokens."""
        rows, decoder = len(self._begins), self._decoder

        def kind(name: str) -> Any:
            return self._types[name].dtype if name else np.int64

        ids = np.zeros((rows, room), kind(decoder.ids))
        ids[:, : self._room] = self._ids
        begins = np.asarray(self._begins)[:, None]
        places = np.arange(room)[None] - begins
        self._ids, self._room = ids, room
        self._seen = ids.astype(np.int64, copy=False)
        self._mask = (places >= 0).astype(kind(decoder.mask))
        self._places = np.maximum(places, 0).astype(kind(decoder.positions))
