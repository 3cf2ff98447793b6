"""Generation of tokens after a prompt: iterators over one sequence or a batch of them."""

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
from threading import Lock
from typing import Any, Final, Generic, Self, TypedDict, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from hetero.apps.generate.batch_layout import BatchLayout
from hetero.apps.generate.batcher import Batcher
from hetero.apps.generate.cache_admission import CacheAdmission
from hetero.apps.generate.chunk_memory import longest_chunk
from hetero.apps.generate.decoder_ports import Decoder, checked_ids
from hetero.apps.generate.sampling import Sampling
from hetero.apps.generate.sequences import FinishReason, TokenSequence
from hetero.apps.generate.step_inputs import SequenceOptions
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.errors import (
    ArgumentError,
    ArgumentTypeError,
    TensorNameError,
    TensorShapeError,
)
from hetero.devices.request.infer_request import InferRequest
from hetero.devices.request.variable_states import VariableState

T = TypeVar("T")
#: Type of all steps together.
A = TypeVar("A")
#: Token ids.
Prompt = Sequence[int] | np.ndarray


#: One batcher for all generations of a compiled model.
_batchers: Final[WeakKeyDictionary[CompiledModel, Batcher]] = WeakKeyDictionary()
_batchers_lock: Final = Lock()


def batcher_of(compiled: CompiledModel) -> Batcher:
    """Return the batcher that all generations of a compiled model share."""
    with _batchers_lock:
        batcher = _batchers.get(compiled)
        if batcher is None:
            decoder, configs = Decoder.of(compiled.source), compiled.request.configs
            devices = compiled.get_property("EXECUTION_DEVICES")
            lanes = sum(configs[device].get("NUM_STREAMS", 1) for device in devices)
            layout = BatchLayout.of(compiled.source, decoder)
            length = _cache_length(compiled, layout)
            admission = _cache_admission(compiled, length)
            max_chunk = longest_chunk(compiled, decoder, length)
            target = compiled.target
            batcher = Batcher(
                decoder,
                layout,
                max(1, lanes),
                admission,
                max_chunk,
                lambda: target.deployment.runs_in_caller,
            )
            _batchers[compiled] = batcher
        return batcher


def _cache_length(compiled: CompiledModel, layout: BatchLayout | None) -> int | None:
    """Return the length of the KV caches for which a model was planned; None if unknown."""
    axes = {} if layout is None else layout.axes
    lengths = [
        shape[axis]
        for name, shape in compiled.request.hetero_config["PLAN_SHAPES"].items()
        if name in axes and (axis := axes[name][1]) is not None
    ]
    return max(lengths, default=None)


def _cache_admission(compiled: CompiledModel, length: int | None) -> CacheAdmission | None:
    """Return the admission of sequences to a compiled model; None if their number is unlimited."""
    options = compiled.request.hetero_config
    if not options["MAX_SEQUENCES"]:
        return None
    return CacheAdmission(options["MAX_SEQUENCES"], length, options["REQUEST_TIMEOUT_S"])


class _Stream(Generic[T, A], Iterator[T], AsyncIterator[T]):
    """Iterator over decode steps, for threads and asyncio; awaiting it returns all tokens."""

    tokens: A

    def __init__(self, sequences: Sequence[TokenSequence], batcher: Batcher) -> None:
        self._sequences: Final = sequences
        self._batcher: Final = batcher

    def __del__(self) -> None:
        for sequence in self._sequences:  # no reader is left; its batch continues without it
            sequence.is_complete, sequence.slot = True, None
        self._batcher.observe_end()

    def _item(self, tokens: list[int | None]) -> T:
        """Return the item that the iterator yields for a step."""
        raise NotImplementedError

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        tokens = self._batcher.step(self._sequences)
        if tokens is None:
            raise StopIteration
        return self._item(tokens)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        tokens = await self._batcher.step_async(self._sequences)
        if tokens is None:
            raise StopAsyncIteration
        return self._item(tokens)

    def __await__(self) -> Generator[Any, None, A]:
        return self._all_tokens().__await__()

    async def _all_tokens(self) -> A:
        async for _ in self:
            pass
        return self.tokens

    async def wait_for_admission(self) -> None:
        """Wait until the devices have memory for the KV caches; requesting a token does so too."""
        await self._batcher.wait_for_admission(self._sequences)

    def cancel(self) -> None:
        """Stop generating: cancel the run in flight and free the KV caches. May be repeated."""
        self._batcher.end(self._sequences)

    def query_state(self) -> tuple[VariableState, ...]:
        """Return the KV caches; they stay on their devices until read. Empty after the end."""
        return self._batcher.states(self._sequences)


class Generation(_Stream[int, list[int]]):
    """Iterator over the tokens that follow a prompt; see `CompiledModel.generate`.

    Use ``for token in generation``, ``async for token in generation``, or ``await generation`` for
    the list of all tokens. Requesting a token starts the step after it as well. If other sequences
    share the batch, a few tokens are computed ahead; a slow reader does not delay the others. The
    KV caches are freed after the last token, or if the generation is cancelled or dropped. A cache
    that is lost with a device is recomputed elsewhere, from its lineage or from the tokens so far.
    Long prompts are processed in chunks, between which other sequences continue.

    Attributes
    ----------
    prompt : tuple of int
        Token ids of the prompt.
    tokens : list of int
        Tokens generated so far.
    logits : numpy.ndarray or None
        Scores from which the last token was chosen, [vocabulary], before any penalty; only if the
        model was read with ``logits=True``.
    finish_reason : {"stop", "length", "cancelled"} or None
        ``stop``: the last token is one of ``stop`` or ``eos``. ``length``: ``max_new_tokens`` or
        the model's context is reached. ``cancelled``: `cancel` was called. None before the end.
    """

    def __init__(self, prompt: tuple[int, ...], sequence: TokenSequence, batcher: Batcher) -> None:
        super().__init__([sequence], batcher)
        self.prompt: Final = prompt
        self.tokens = sequence.tokens

    def __repr__(self) -> str:
        return f"<Generation: {len(self.tokens)} tokens, {self.finish_reason or 'running'}>"

    @property
    def finish_reason(self) -> FinishReason | None:
        """Reason of the end; None before it."""
        return self._sequences[0].finish_reason

    @property
    def logits(self) -> np.ndarray | None:
        """Scores from which the last token was chosen."""
        return self._sequences[0].logits

    def _item(self, tokens: list[int | None]) -> int:
        assert tokens[0] is not None
        return tokens[0]


class BatchGeneration(_Stream[list[int | None], list[list[int]]]):
    """Iterator over the steps of several prompts, one row each; see `CompiledModel.generate`.

    A step is a list of the next token of each prompt, None for one that has ended. One run of the
    model computes the tokens of all prompts.

    Attributes
    ----------
    prompts : tuple of tuple of int
        Token ids of the prompts.
    tokens : list of list of int
        Tokens generated so far, for each prompt.
    finish_reasons : list
        `Generation.finish_reason` of each prompt.
    """

    def __init__(
        self,
        prompts: tuple[tuple[int, ...], ...],
        sequences: Sequence[TokenSequence],
        batcher: Batcher,
    ) -> None:
        super().__init__(sequences, batcher)
        self.prompts: Final = prompts
        self.tokens = [sequence.tokens for sequence in sequences]

    def __repr__(self) -> str:
        return f"<BatchGeneration: {len(self.prompts)} prompts, {self.finish_reasons}>"

    def cancel(self, row: int | None = None) -> None:
        """Stop generating, for all prompts or for one. May be repeated."""
        self._batcher.end(self._sequences if row is None else [self._sequences[row]])

    @property
    def finish_reasons(self) -> list[FinishReason | None]:
        """Reason of the end of each prompt; None before it."""
        return [sequence.finish_reason for sequence in self._sequences]

    def _item(self, tokens: list[int | None]) -> list[int | None]:
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

    Any number of generations may run at once. Generations that request a token at the same time
    share one decode step (continuous batching).

    Parameters
    ----------
    compiled : CompiledModel
        A compiled decoder, read by `hetero.read_decoder`.
    ids : sequence of int, or of such
        The prompt; or several prompts, which are generated as one batch.
    max_new_tokens : int
        Maximum number of tokens to generate; fewer if the model's context ends, or the memory for
        KV caches (``MAX_SEQUENCES``).
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
    return start_generation(
        batcher_of(compiled),
        compiled.create_infer_request,
        ids,
        max_new_tokens,
        sampling,
        seed,
        stop,
        eos,
        inputs or {},
    )


def start_generation(
    batcher: Batcher,
    create_request: Callable[[], InferRequest],
    ids: Prompt | Sequence[Prompt],
    max_new_tokens: int,
    sampling: Sampling,
    seed: int | None,
    stop: Collection[int],
    eos: Collection[int] | None,
    sources: Mapping[str, npt.ArrayLike],
) -> Generation | BatchGeneration:
    """Check the arguments of `generate` and return the generation.

    `create_request`: makes a request of the batcher's model.
    `sources`: outputs of an encoder, by input name.
    """
    decoder = batcher.decoder
    is_batch = isinstance(ids, list | tuple) and bool(ids) and all(np.ndim(i) == 1 for i in ids)
    id_lists: Sequence[Any] = list(ids) if is_batch else [ids]
    admission = batcher.admission
    max_length = None if admission is None else admission.max_length(len(id_lists))
    prompts = tuple(checked_prompt(decoder, id_list, max_length) for id_list in id_lists)
    if not isinstance(sources, Mapping):
        raise ArgumentTypeError(f"inputs={sources!r}: expected a dict of arrays by input name.")
    if sources.keys() != set(decoder.sources):
        raise TensorNameError(
            f"inputs={{{', '.join(map(repr, sources))}}}: expected the encoder's output for each "
            f"of {', '.join(map(repr, decoder.sources)) or 'no input'}.",
            missing=sorted(set(decoder.sources) - sources.keys()),
        )
    limit = max_new_tokens
    if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 1:
        raise ArgumentError(f"max_new_tokens={limit!r}: expected a whole number, 1 or more.")
    context = min(n for n in (decoder.context_length, max_length, np.inf) if n is not None)
    if seed is None:
        seed = int(np.random.default_rng().integers(2**63))
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise ArgumentError(f"seed={seed!r}: expected an unsigned 64-bit integer or None.")
    eos_ids = decoder.eos if eos is None else checked_ids("eos", eos)
    ends = frozenset([*checked_ids("stop", stop), *eos_ids])
    arrays = {name: np.asarray(source) for name, source in sources.items()}
    for name, source in arrays.items():
        if source.ndim == 0 or (is_batch and len(source) not in (1, len(prompts))):
            raise TensorShapeError(
                f"inputs[{name!r}] has shape {list(source.shape)}: expected one row, or one row "
                "for each prompt."
            )
    sequences = []
    for i, prompt in enumerate(prompts):
        options = SequenceOptions(
            sampling.row(decoder.vocabulary),
            sampling.repetition_penalty != 1,
            int(seed) + i,
            int(min(limit, context - len(prompt))),
            ends,
            {n: s[i : i + 1] if len(s) == len(prompts) else s for n, s in arrays.items()},
        )
        sequences.append(TokenSequence(prompt, options, create_request))
    if is_batch:
        return BatchGeneration(prompts, sequences, batcher)
    return Generation(prompts[0], sequences[0], batcher)


def checked_prompt(
    decoder: Decoder, ids: npt.ArrayLike, max_length: int | None = None
) -> tuple[int, ...]:
    """Return the ids of a prompt as a tuple.

    `max_length`: maximum number of tokens whose KV cache fits the devices' memory.
    Raises ArgumentError: the prompt is empty, longer than the context, or outside the vocabulary.
    ArgumentTypeError: it is not a sequence of integers.
    """
    try:
        array = np.asarray(ids)
    except ValueError:
        array = np.empty(0, object)
    if array.ndim == 2 and len(array) == 1:
        array = array[0]
    if array.ndim != 1 or array.dtype.kind not in ("iu" if array.size else "iuf"):
        raise ArgumentTypeError(
            f"ids={str(ids)[:80]}: expected the token ids of the prompt, for example "
            "[1, 415, 29]; a tokenizer turns text into ids."
        )
    if not array.size:
        raise ArgumentError("ids are empty: a prompt has at least one token, often bos.")
    outside = array[(array < 0) | (array >= decoder.vocabulary)]
    if outside.size:
        raise ArgumentError(
            f"ids contain {int(outside[0])}; the vocabulary is 0 to {decoder.vocabulary - 1}. "
            "Use the tokenizer of this model."
        )
    if decoder.context_length is not None and array.size >= decoder.context_length:
        raise ArgumentError(
            f"the prompt has {array.size} tokens; the context of the model is "
            f"{decoder.context_length}, including generated tokens. Shorten the prompt."
        )
    if max_length is not None and array.size >= max_length:
        raise ArgumentError(
            f"the prompt has {array.size} tokens; the devices have memory for the KV cache of "
            f"{max_length} tokens of each sequence, including generated tokens. Shorten the "
            "prompt, or set a larger DEVICE_MEMORY_NBYTES."
        )
    return tuple(array.tolist())
