"""A text that a decoder goes on with, token by token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterator, Sequence
from typing import Any, Final, Literal

import numpy as np

from devices.errors import ArgumentError, ArgumentTypeError, RequestCancelledError, TensorLostError
from devices.model.tensor_spec import TensorSpec
from devices.request.infer_request import InferRequest
from devices.request.results import Results
from hetero.generate.ports import Decoder
from hetero.generate.sampling import Sampling

FinishReason = Literal["stop", "length", "cancelled"]
#: How often one token is tried again after caches were lost with a device.
_MOST_LOSSES: Final = 5


class Generation(Iterator[int], AsyncIterator[int]):
    """What `CompiledModel.generate` returns: an iterator over the tokens that follow a prompt.

    ``for token in generation``, ``async for token in generation``, or ``await generation`` for the
    list of all. The next token is computed when it is asked for, so a reader that stops reading
    holds up nobody; caches are freed once the last was given, or it is cancelled or dropped.
    Where a device is lost with a cache, caches are made anew of the tokens so far.

    Attributes
    ----------
    prompt : tuple of int
        The ids that were given.
    tokens : list of int
        Those generated so far.
    logits : numpy.ndarray or None
        Scores that the last token was chosen by, [vocabulary], before any penalty; only of a model
        that was read with ``logits=True``.
    finish_reason : {"stop", "length", "cancelled"} or None
        Why it has ended: a token of ``stop`` or ``eos``, which is the last one given;
        ``max_new_tokens`` or the model's context; `cancel`. None while it goes on.
    """

    def __init__(
        self,
        request: InferRequest,
        decoder: Decoder,
        prompt: tuple[int, ...],
        sampling: Sampling,
        seed: int,
        most: int,
        ends: Collection[int],
    ) -> None:
        self.prompt: Final = prompt
        self.tokens: Final[list[int]] = []
        self.logits: np.ndarray | None = None
        self.finish_reason: FinishReason | None = None
        self._request: InferRequest | None = request
        draw = np.random.Generator(np.random.Philox(seed))
        self._steps: Final = _Inputs(decoder, request.model_inputs, prompt, sampling, draw)
        self._decoder = decoder
        self._most = most
        self._ends = frozenset(ends)
        self._losses = 0

    def __repr__(self) -> str:
        return f"<Generation: {len(self.tokens)} tokens, {self.finish_reason or 'goes on'}>"

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> int:
        request = self._request
        if request is None:
            raise StopIteration
        while True:
            try:
                return self._taken(request.infer(self._steps.feeds(), share_inputs=True))
            except RequestCancelledError:
                if self.finish_reason is None:
                    raise
                raise StopIteration from None
            except TensorLostError as error:
                self._lost(request, error)

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> int:
        request = self._request
        if request is None:
            raise StopAsyncIteration
        while True:
            try:
                request.start_async(self._steps.feeds(), share_inputs=True)
                return self._taken(await request)
            except RequestCancelledError:
                if self.finish_reason is None:
                    raise
                raise StopAsyncIteration from None
            except TensorLostError as error:
                self._lost(request, error)

    def __await__(self) -> Generator[Any, None, list[int]]:
        return self._all().__await__()

    async def _all(self) -> list[int]:
        async for _ in self:
            pass
        return self.tokens

    def cancel(self) -> None:
        """End it: the run in flight is cancelled and the caches are freed; again is harmless."""
        self._end("cancelled")

    def _taken(self, results: Results) -> int:
        """Take a step's token over."""
        token = int(results[self._decoder.token][0, 0])
        if len(results) > 1:
            self.logits = results[self._decoder.logits][0, -1]
        self._losses = 0
        self.tokens.append(token)
        self._steps.add(token)
        if token in self._ends:
            self._end("stop")
        elif len(self.tokens) >= self._most:
            self._end("length")
        return token

    def _lost(self, request: InferRequest, error: TensorLostError) -> None:
        """Have the next run make the caches anew, some being gone."""
        self._losses += 1
        if self._losses > _MOST_LOSSES:
            raise error
        request.reset_state()
        self._steps.begin_anew()

    def _end(self, reason: FinishReason) -> None:
        request, self._request = self._request, None
        if request is not None:
            self.finish_reason = reason
            request.cancel()  # the caches go with it


class _Inputs:
    """The inputs of a decoder's next step."""

    def __init__(
        self,
        decoder: Decoder,
        ports: Sequence[TensorSpec],
        prompt: tuple[int, ...],
        sampling: Sampling,
        draw: np.random.Generator,
    ) -> None:
        types = {port.name: port for port in ports}
        self._ids = np.asarray([prompt], types[decoder.ids].dtype)
        self._count = len(prompt)
        #: How many of them the caches have seen.
        self._past = 0
        self._decoder = decoder
        self._draw = draw
        self._sampling = sampling.row(decoder.vocabulary)
        self._sampling[0, -1] = draw.random(dtype=np.float32)
        self._penalizes = sampling.repetition_penalty != 1
        self._ones: np.ndarray[Any, Any] = np.empty(0)
        self._places: np.ndarray[Any, Any] = np.empty(0)
        if decoder.mask:
            self._ones = np.ones((1, 0), types[decoder.mask].dtype)
        if decoder.positions:
            port = types[decoder.positions]
            flat = port.shape is not None and len(port.shape) == 1
            self._places = np.empty(0 if flat else (1, 0), port.dtype)

    def add(self, token: int) -> None:
        """Go on to the step after one that gave `token`."""
        self._past = self._count
        if self._count == self._ids.shape[1]:
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)], axis=1)
        self._ids[0, self._count] = token
        self._count += 1
        # Once a token, however often it is tried.
        self._sampling[0, -1] = self._draw.random(dtype=np.float32)

    def begin_anew(self) -> None:
        """Have the next step see everything so far, its caches being empty."""
        self._past = 0

    def feeds(self) -> dict[str, np.ndarray]:
        """Return the inputs by name; they are views, to be read before the next call."""
        decoder, past, count = self._decoder, self._past, self._count
        new = self._ids[:, past:count]
        seen = self._ids[:, :count] if self._penalizes else new[:, :1]
        given = {
            decoder.ids: new,
            decoder.sampling: self._sampling,
            decoder.seen: seen.astype(np.int64, copy=False),
        }
        if decoder.mask:
            if count > self._ones.shape[1]:
                self._ones = np.ones((1, 2 * count), self._ones.dtype)
            given[decoder.mask] = self._ones[:, :count]
        if decoder.positions:
            if count > self._places.shape[-1]:
                places = np.arange(2 * count, dtype=self._places.dtype)
                self._places = places[None] if self._places.ndim == 2 else places
            given[decoder.positions] = self._places[..., past:count]
        if decoder.is_next:
            given[decoder.is_next] = np.asarray([past > 0])
        return given


def generate(
    decoder: Decoder,
    create: Callable[[], InferRequest],
    ids: Any,
    max_new_tokens: int,
    sampling: Sampling,
    seed: int | None,
    stop: Collection[int],
    eos: Collection[int] | None,
) -> Generation:
    """Return the generation of one prompt; see `CompiledModel.generate`.

    `create`: makes its request.
    """
    prompt = checked_prompt(decoder, ids)
    most = max_new_tokens
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
        raise ArgumentError(f"max_new_tokens={most!r}: wanted how many at most, 1 or more.")
    if decoder.context_length is not None:
        most = min(most, decoder.context_length - len(prompt))
    if seed is None:
        seed = int(np.random.default_rng().integers(2**63))
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**128:
        raise ArgumentError(f"seed={seed!r}: wanted a whole number from 0, or None for any.")
    ends = {*stop, *(decoder.eos if eos is None else eos)}
    if not all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in ends):
        raise ArgumentTypeError(f"stop={stop!r}, eos={eos!r}: wanted token ids.")
    return Generation(create(), decoder, prompt, sampling, int(seed), int(most), ends)


def checked_prompt(decoder: Decoder, ids: Any) -> tuple[int, ...]:
    """Return a prompt's ids.

    Raises ArgumentTypeError, ArgumentError: they are none, none of the vocabulary's, or too many.
    """
    try:
        given = np.asarray(ids)
    except ValueError:
        given = np.empty(0, object)
    if given.ndim == 2 and len(given) == 1:
        given = given[0]
    if given.ndim != 1 or given.dtype.kind not in ("iu" if given.size else "iuf"):
        raise ArgumentTypeError(
            f"ids={str(ids)[:80]}: wanted the prompt's token ids, as [1, 415, 29]; a tokenizer "
            "makes them of a text."
        )
    if not given.size:
        raise ArgumentError("ids are empty: a prompt has a token at least, often bos.")
    outside = given[(given < 0) | (given >= decoder.vocabulary)]
    if outside.size:
        raise ArgumentError(
            f"ids hold {int(outside[0])}; the model's vocabulary is 0 to {decoder.vocabulary - 1}. "
            "Use the tokenizer of this model."
        )
    if decoder.context_length is not None and given.size >= decoder.context_length:
        raise ArgumentError(
            f"the prompt has {given.size} tokens; the model takes {decoder.context_length} with "
            "those that follow. Shorten it."
        )
    return tuple(given.tolist())
