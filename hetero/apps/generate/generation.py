"""A text that a decoder goes on with, token by token."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Collection,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from threading import Lock
from typing import Any, Final, Generic, Self, TypedDict, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from hetero.apps.generate.ports import Decoder, checked_ids
from hetero.apps.generate.rows import Rows
from hetero.apps.generate.sampling import Sampling
from hetero.apps.generate.steps import TextOptions
from hetero.apps.generate.texts import FinishReason, Text
from hetero.apps.generate.together import Together
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.errors import (
    ArgumentError,
    ArgumentTypeError,
    TensorNameError,
    TensorShapeError,
)
from hetero.devices.request.variable_states import VariableState

T = TypeVar("T")
#: All that a stream gave, once it has ended.
A = TypeVar("A")
#: Token ids.
Prompt = Sequence[int] | np.ndarray


#: One batcher for all generations of a compiled model.
_batchers: Final[WeakKeyDictionary[CompiledModel, Together]] = WeakKeyDictionary()
_batchers_lock: Final = Lock()


def batcher_of(compiled: CompiledModel) -> Together:
    """Return the batcher that all generations of a compiled model share."""
    with _batchers_lock:
        batcher = _batchers.get(compiled)
        if batcher is None:
            decoder, configs = Decoder.of(compiled.source), compiled.request.configs
            devices = compiled.get_property("EXECUTION_DEVICES")
            lanes = sum(configs[device].get("NUM_STREAMS", 1) for device in devices)
            batcher = Together(decoder, Rows.of(compiled.source, decoder), max(1, lanes))
            _batchers[compiled] = batcher
        return batcher


class _Stream(Generic[T, A], Iterator[T], AsyncIterator[T]):
    """Steps as an iterator, also for asyncio, and awaited for all at once."""

    tokens: A

    def __init__(self, texts: Sequence[Text], together: Together) -> None:
        self._texts: Final = texts
        self._together: Final = together

    def __del__(self) -> None:
        for text in self._texts:  # nobody reads it any more; others go on without it
            text.is_complete, text.place = True, None

    def _given(self, tokens: list[int | None]) -> T:
        """Return a step as it is given out."""
        raise NotImplementedError

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        given = self._together.step(self._texts)
        if given is None:
            raise StopIteration
        return self._given(given)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        given = await self._together.step_async(self._texts)
        if given is None:
            raise StopAsyncIteration
        return self._given(given)

    def __await__(self) -> Generator[Any, None, A]:
        return self._all().__await__()

    async def _all(self) -> A:
        async for _ in self:
            pass
        return self.tokens

    def cancel(self) -> None:
        """End it: the run in flight is cancelled and the caches are freed; again is harmless."""
        self._together.end(self._texts)

    def query_state(self) -> tuple[VariableState, ...]:
        """Return the caches, which are on their devices until asked for; none once it has ended."""
        return self._together.states(self._texts)


class Generation(_Stream[int, list[int]]):
    """What `CompiledModel.generate` returns: an iterator over the tokens that follow a prompt.

    ``for token in generation``, ``async for token in generation``, or ``await generation`` for the
    list of all. The next token is computed when it is asked for, the one after it begins then too,
    and a few come before where others step with this one; a reader that stops reading holds up
    nobody. Caches are freed once the last was given, or it is cancelled or dropped. A cache that is
    lost with a device is made again by its stage, elsewhere, or by all of the tokens so far. Long
    prompts are computed in parts, between which other texts go on.

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

    def __init__(self, prompt: tuple[int, ...], text: Text, together: Together) -> None:
        super().__init__([text], together)
        self.prompt: Final = prompt
        self.tokens = text.tokens

    def __repr__(self) -> str:
        return f"<Generation: {len(self.tokens)} tokens, {self.finish_reason or 'goes on'}>"

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it has ended; None while it goes on."""
        return self._texts[0].finish_reason

    @property
    def logits(self) -> np.ndarray | None:
        """Scores that the last token was chosen by."""
        return self._texts[0].logits

    def _given(self, tokens: list[int | None]) -> int:
        assert tokens[0] is not None
        return tokens[0]


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
        self, prompts: tuple[tuple[int, ...], ...], texts: Sequence[Text], together: Together
    ) -> None:
        super().__init__(texts, together)
        self.prompts: Final = prompts
        self.tokens = [text.tokens for text in texts]

    def __repr__(self) -> str:
        return f"<BatchGeneration: {len(self.prompts)} prompts, {self.finish_reasons}>"

    def cancel(self, row: int | None = None) -> None:
        """End it, or the text of one prompt; again is harmless."""
        self._together.end(self._texts if row is None else [self._texts[row]])

    @property
    def finish_reasons(self) -> list[FinishReason | None]:
        """Why each has ended."""
        return [text.finish_reason for text in self._texts]

    def _given(self, tokens: list[int | None]) -> list[int | None]:
        return tokens


class GenerationOptions(TypedDict, total=False):
    """Options of `generate`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int | None
    stop: Collection[int]
    eos: Collection[int] | None
    inputs: Mapping[str, npt.ArrayLike] | None


@overload
def generate(
    compiled: CompiledModel,
    ids: Prompt,
    max_new_tokens: int = ...,
    **options: Unpack[GenerationOptions],
) -> Generation: ...


@overload
def generate(
    compiled: CompiledModel,
    ids: Sequence[Prompt],
    max_new_tokens: int = ...,
    **options: Unpack[GenerationOptions],
) -> BatchGeneration: ...


def generate(
    compiled: CompiledModel,
    ids: Prompt | Sequence[Prompt],
    max_new_tokens: int = 256,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    stop: Collection[int] = (),
    eos: Collection[int] | None = None,
    inputs: Mapping[str, npt.ArrayLike] | None = None,
) -> Generation | BatchGeneration:
    """Return an iterator over the tokens that follow a prompt; it also works with asyncio.

    Any number of generations may run at once. Those that request a token at the same time share
    one decode step (continuous batching).

    Parameters
    ----------
    compiled : CompiledModel
        A compiled decoder, read by `hetero.read_decoder`.
    ids : sequence of int, or of such
        The prompt; or several prompts, which are generated as one batch.
    max_new_tokens : int
        Maximum number of tokens to generate; fewer if the model's context ends.
    temperature : float
        0 takes the most likely token. Otherwise scores are divided by it, and one token is drawn.
    top_k : int
        Draw from this many of the most likely tokens; 0 for all.
    top_p : float
        Draw from the most likely tokens whose probabilities add up to this.
    min_p : float
        Draw from tokens with at least this share of the highest probability.
    repetition_penalty : float
        Divides the positive scores of tokens that the sequence already has, and multiplies the
        negative ones.
    seed : int, optional
        Seed of the draws, which are the same on every device; random by default. Prompt ``i`` of
        several uses ``seed + i``.
    stop : collection of int
        Tokens that end the sequence, in addition to those of `eos`.
    eos : collection of int, optional
        Replaces the model's own end tokens; empty for none.
    inputs : mapping of str to array, optional
        Outputs of an encoder, as ``{"encoder_hidden_states": array}``, which each step reads.

    Returns
    -------
    Generation or BatchGeneration
        `BatchGeneration` for several prompts.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        The model is not a decoder; ids are outside its vocabulary, or longer than its context; or
        an option is out of range.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    together = batcher_of(compiled)
    sources = inputs or {}
    decoder = together.decoder
    several = isinstance(ids, list | tuple) and bool(ids) and all(np.ndim(i) == 1 for i in ids)
    each: Sequence[Any] = list(ids) if several else [ids]
    prompts = tuple(checked_prompt(decoder, one) for one in each)
    if not isinstance(sources, Mapping):
        raise ArgumentTypeError(f"inputs={sources!r}: wanted a dict, of arrays by name.")
    if sources.keys() != set(decoder.sources):
        raise TensorNameError(
            f"inputs={{{', '.join(map(repr, sources))}}}: wanted what an encoder made for each of "
            f"{', '.join(map(repr, decoder.sources)) or 'none'}.",
            missing=sorted(set(decoder.sources) - sources.keys()),
        )
    most = max_new_tokens
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
        raise ArgumentError(f"max_new_tokens={most!r}: wanted how many at most, 1 or more.")
    context = np.inf if decoder.context_length is None else decoder.context_length
    if seed is None:
        seed = int(np.random.default_rng().integers(2**63))
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise ArgumentError(f"seed={seed!r}: wanted a whole number from 0, of 64 bits, or None.")
    own = decoder.eos if eos is None else checked_ids("eos", eos)
    ends = frozenset([*checked_ids("stop", stop), *own])
    given = {name: np.asarray(source) for name, source in sources.items()}
    for name, source in given.items():
        if source.ndim == 0 or (several and len(source) not in (1, len(prompts))):
            raise TensorShapeError(
                f"inputs[{name!r}] has shape {list(source.shape)}: wanted an array of one row, or "
                "of one for each prompt."
            )
    texts = []
    for i, prompt in enumerate(prompts):
        options = TextOptions(
            sampling.row(decoder.vocabulary),
            sampling.repetition_penalty != 1,
            int(seed) + i,
            int(min(most, context - len(prompt))),
            ends,
            {n: s[i : i + 1] if len(s) == len(prompts) else s for n, s in given.items()},
        )
        texts.append(Text(prompt, options, compiled.create_infer_request))
    if several:
        return BatchGeneration(prompts, texts, together)
    return Generation(prompts[0], texts[0], together)


def checked_prompt(decoder: Decoder, ids: npt.ArrayLike) -> tuple[int, ...]:
    """Return a prompt's ids; raise where they are none, none of the vocabulary's, or too many."""
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
