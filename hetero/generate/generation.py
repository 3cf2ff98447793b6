"""A text that a decoder goes on with, token by token."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Final, Generic, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt

from devices.errors import (
    ArgumentError,
    ArgumentTypeError,
    RequestCancelledError,
    TensorLostError,
    TensorNameError,
)
from devices.request.infer_request import InferRequest
from devices.request.results import Results
from devices.request.states import VariableState
from hetero.generate.pace import Pace
from hetero.generate.ports import Decoder
from hetero.generate.sampling import Sampling
from hetero.generate.steps import Steps

T = TypeVar("T")
#: All that a stream gave, once it has ended.
A = TypeVar("A")
#: Token ids.
Prompt = Sequence[int] | np.ndarray
FinishReason = Literal["stop", "length", "cancelled"]
#: How often one token is tried again after caches were lost with a device.
_MOST_LOSSES: Final = 5


class _Loop:
    """Runs step after step of one request, for one text or for several."""

    def __init__(self, request: InferRequest, decoder: Decoder, steps: Steps) -> None:
        self._request: InferRequest | None = request
        self._steps: Final = steps
        self._decoder: Final = decoder
        self._losses = 0
        #: Of the last step, [texts, vocabulary], where they are an output.
        self.logits: np.ndarray | None = None

    def step(self) -> list[int] | None:
        """Return each text's next token; None once it was ended."""
        while (request := self._request) is not None:
            try:
                results = request.infer(self._steps.feeds(), share_inputs=True)
            except RequestCancelledError as error:
                if self._request is not None:
                    raise
                error.with_traceback(None)  # see `_lost`
                break
            except TensorLostError as error:
                self._lost(request, error)
                continue
            if (tokens := self._taken(request, results)) is not None:
                return tokens
        return None

    async def step_async(self) -> list[int] | None:
        """Do the same in an event loop."""
        while (request := self._request) is not None:
            try:
                request.start_async(self._steps.feeds(), share_inputs=True)
                results = await request
            except RequestCancelledError as error:
                if self._request is not None:
                    raise
                error.with_traceback(None)  # see `_lost`
                break
            except TensorLostError as error:
                self._lost(request, error)
                continue
            if (tokens := self._taken(request, results)) is not None:
                return tokens
        return None

    def states(self) -> tuple[VariableState, ...]:
        """Return the request's states."""
        return () if self._request is None else self._request.query_state()

    def end(self) -> bool:
        """Cancel what runs and let go of the caches; whether it had not ended."""
        request, self._request = self._request, None
        if request is not None:
            request.cancel()
            self._steps.end()
        return request is not None

    def _taken(self, request: InferRequest, results: Results) -> list[int] | None:
        """Take a run's tokens over; None where it was not the last of the prompt."""
        self._losses = 0
        if not self._steps.ran(sum(run.run_s for run in request.times.stages)):
            return None
        tokens = results[self._decoder.token][:, 0].tolist()
        if len(results) > 1:
            self.logits = results[self._decoder.logits][:, -1]
        self._steps.add(tokens)
        return list(tokens)

    def _lost(self, request: InferRequest, error: TensorLostError) -> None:
        """Have the next run make the caches anew, some being gone."""
        self._losses += 1
        if self._losses > _MOST_LOSSES:
            raise error
        error.with_traceback(None)  # it leads to the request, and so would hold its caches
        request.reset_state()
        self._steps.begin_anew()


class _Text:
    """What came of one prompt: its tokens, and when it ends."""

    def __init__(self, most: int, ends: Collection[int]) -> None:
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._most = most
        self._ends = ends

    def add(self, token: int) -> None:
        """Take a token over."""
        self.tokens.append(token)
        if token in self._ends:
            self.finish_reason = "stop"
        elif len(self.tokens) >= self._most:
            self.finish_reason = "length"


class _Stream(Generic[T, A], Iterator[T], AsyncIterator[T]):
    """Steps as an iterator, also for asyncio, and awaited for all at once."""

    def __init__(self, texts: Sequence[_Text], loop: _Loop) -> None:
        self._texts: Final = texts
        self._loop: Final = loop

    def _given(self, tokens: list[int | None]) -> T:
        """Return a step as it is given out."""
        raise NotImplementedError

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        given = self._add(self._loop.step())
        if given is None:
            raise StopIteration
        return self._given(given)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        given = self._add(await self._loop.step_async())
        if given is None:
            raise StopAsyncIteration
        return self._given(given)

    def __await__(self) -> Generator[Any, None, A]:
        return self._all().__await__()

    async def _all(self) -> A:
        async for _ in self:
            pass
        return self._everything()

    def _everything(self) -> A:
        raise NotImplementedError

    def cancel(self) -> None:
        """End it: the run in flight is cancelled and the caches are freed; again is harmless."""
        if self._loop.end():
            for text in self._texts:
                text.finish_reason = text.finish_reason or "cancelled"

    def query_state(self) -> tuple[VariableState, ...]:
        """Return the caches, which are on their devices until asked for; none once it has ended."""
        return self._loop.states()

    def _add(self, tokens: list[int] | None) -> list[int | None] | None:
        """Take a step's tokens over, None for those of texts that have ended; None for none."""
        given: list[int | None] = []
        if tokens is None:
            return None
        for text, token in zip(self._texts, tokens, strict=True):
            goes_on = text.finish_reason is None
            given.append(token if goes_on else None)
            if goes_on:
                text.add(token)
        if all(text.finish_reason for text in self._texts):
            self._loop.end()
        return given if any(token is not None for token in given) else None


class Generation(_Stream[int, list[int]]):
    """What `CompiledModel.generate` returns: an iterator over the tokens that follow a prompt.

    ``for token in generation``, ``async for token in generation``, or ``await generation`` for the
    list of all. The next token is computed when it is asked for, so a reader that stops reading
    holds up nobody; caches are freed once the last was given, or it is cancelled or dropped.
    Where a device is lost with a cache, caches are made anew of the tokens so far. Long prompts
    are computed in parts, between which other texts go on.

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

    def __init__(self, prompt: tuple[int, ...], text: _Text, loop: _Loop) -> None:
        super().__init__([text], loop)
        self.prompt: Final = prompt
        self.tokens: Final = text.tokens

    def __repr__(self) -> str:
        return f"<Generation: {len(self.tokens)} tokens, {self.finish_reason or 'goes on'}>"

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it has ended; None while it goes on."""
        return self._texts[0].finish_reason

    @property
    def logits(self) -> np.ndarray | None:
        """Scores that the last token was chosen by."""
        return None if self._loop.logits is None else self._loop.logits[0]

    def _given(self, tokens: list[int | None]) -> int:
        assert tokens[0] is not None
        return tokens[0]

    def _everything(self) -> list[int]:
        return self.tokens


class BatchGeneration(_Stream[list[int | None], list[list[int]]]):
    """What `CompiledModel.generate` returns for several prompts: they go on together, row by row.

    A step gives a list of each text's next token, None for one that has ended. One run of the model
    computes the tokens of all.

    Attributes
    ----------
    prompts : tuple of tuple of int
        The ids that were given.
    tokens : list of list of int
        Those generated so far, of each prompt.
    finish_reasons : list
        As `Generation.finish_reason`, of each prompt.
    """

    def __init__(
        self, prompts: tuple[tuple[int, ...], ...], texts: Sequence[_Text], loop: _Loop
    ) -> None:
        super().__init__(texts, loop)
        self.prompts: Final = prompts
        self.tokens: Final = [text.tokens for text in texts]

    def __repr__(self) -> str:
        return f"<BatchGeneration: {len(self.prompts)} prompts, {self.finish_reasons}>"

    @property
    def finish_reasons(self) -> list[FinishReason | None]:
        """Why each has ended."""
        return [text.finish_reason for text in self._texts]

    def _given(self, tokens: list[int | None]) -> list[int | None]:
        return tokens

    def _everything(self) -> list[list[int]]:
        return self.tokens


def generate(
    decoder: Decoder,
    create: Callable[[], InferRequest],
    ids: Prompt | Sequence[Prompt],
    max_new_tokens: int,
    sampling: Sampling,
    seed: int | None,
    stop: Collection[int],
    eos: Collection[int] | None,
    sources: Mapping[str, npt.ArrayLike],
    pace: Pace,
) -> Generation | BatchGeneration:
    """Return the generation of a prompt, or of several; see `CompiledModel.generate`.

    `create`: makes its request.
    `pace`: of all texts of the model.
    """
    several = isinstance(ids, list | tuple) and bool(ids) and all(np.ndim(i) == 1 for i in ids)
    each: Sequence[Any] = list(ids) if several else [ids]
    prompts = tuple(checked_prompt(decoder, one) for one in each)
    longest = max(map(len, prompts))
    if sources.keys() != set(decoder.sources):
        raise TensorNameError(
            f"inputs={{{', '.join(map(repr, sources))}}}: wanted what an encoder made for each of "
            f"{', '.join(map(repr, decoder.sources)) or 'none'}.",
            missing=sorted(set(decoder.sources) - sources.keys()),
        )
    if not decoder.pads and any(len(prompt) < longest for prompt in prompts):
        raise ArgumentError(
            f"prompts have {', '.join(str(len(prompt)) for prompt in prompts)} tokens; this model "
            "takes those of one length together. Generate each by itself."
        )
    most = max_new_tokens
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
        raise ArgumentError(f"max_new_tokens={most!r}: wanted how many at most, 1 or more.")
    if decoder.context_length is not None:
        most = min(most, decoder.context_length - longest)
    if seed is None:
        seed = int(np.random.default_rng().integers(2**63))
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise ArgumentError(f"seed={seed!r}: wanted a whole number from 0, or None for any.")
    ends = frozenset([*stop, *(decoder.eos if eos is None else eos)])
    if not all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in ends):
        raise ArgumentTypeError(f"stop={stop!r}, eos={eos!r}: wanted token ids.")
    texts = [_Text(int(most), ends) for _ in prompts]
    request = create()
    seeds = [int(seed) + i for i in range(len(prompts))]
    steps = Steps(decoder, request.model_inputs, prompts, sampling, seeds, sources, pace)
    loop = _Loop(request, decoder, steps)
    if several:
        return BatchGeneration(prompts, texts, loop)
    return Generation(prompts[0], texts[0], loop)


def checked_prompt(decoder: Decoder, ids: npt.ArrayLike) -> tuple[int, ...]:
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
