"""Generated text: requests for it, and its tokens as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from hetero.apps.serve.errors import protocol_error
from hetero.apps.serve.served_model import ServedModel
from hetero.devices.errors import OverloadedError

if TYPE_CHECKING:
    from hetero.apps.generate.decoder_ports import Decoder
    from hetero.apps.generate.tokenizer import Detokenizer

#: Generations that run at once.
_THREADS: Final = 64
#: Sequences that run or wait.
MAX_SEQUENCES: Final = 256
#: Tokens of a sequence if neither the request nor the model limits them.
_DEFAULT_TOKENS: Final = 256
#: Fields of OpenAI's requests that have no effect here.
_IGNORED: Final = frozenset(
    {
        "user",
        "metadata",
        "store",
        "model",
        "service_tier",
        "parallel_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
    }
)
#: Field -> the only supported value.
_ONLY: Final[Mapping[str, object]] = {
    "best_of": 1,
    "logprobs": False,
    "top_logprobs": 0,
    "echo": False,
    "suffix": "",
    "logit_bias": {},
    "tools": [],
    "tool_choice": "none",
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "response_format": {"type": "text"},
    "modalities": ["text"],
}
_NOT_EMPTY: Final = msgspec.Meta(min_length=1)
#: A text that ends a sequence, and the number of them: each is searched after each token.
_Stop = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_STOPS: Final = msgspec.Meta(max_length=16)
_Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class GenerationRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request for generated text, in OpenAI's form or Triton's.

    `prompt`: a text or token ids, or several; or the messages of a chat.
    `max_tokens`: None fills the model's context, or is 256 if the model does not declare one.
    `n`: sequences for each prompt.
    `stop`: texts before which a sequence ends; at most 16 of 256 characters.
    `ignore_eos`: whether only these end it; load generators set this.
    `chat_template_kwargs`: more variables of the chat template, as in vLLM.
    """

    prompt: Annotated[str, _NOT_EMPTY] | Annotated[list[Any], _NOT_EMPTY]
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | None
    temperature: float
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQUENCES)] = 1
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: _Seed | None = None
    stop: _Stop | Annotated[list[_Stop], _STOPS] = []
    ignore_eos: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    stream: bool = False
    stream_options: dict[str, Any] = {}

    @property
    def sampling(self) -> dict[str, Any]:
        """Sampling options of `hetero.CompiledModel.generate`."""
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        options = {name: getattr(self, name) for name in names}
        # OpenAI's seeds may be negative.
        return options | {"seed": None if self.seed is None else self.seed % 2**64}


def read_generation(
    document: Mapping[str, Any], prompt_name: str, **defaults: Any
) -> GenerationRequest:
    """Return the request of a JSON document; `defaults` has values of absent fields."""
    fields = {
        name: value
        for name, value in document.items()
        if value is not None and name not in _IGNORED
    }
    for name in [name for name in _ONLY if name in fields]:
        value, only = fields.pop(name), _ONLY[name]
        # logprobs=0 requests the scores of the chosen tokens, unlike False.
        if value != only or isinstance(value, bool) != isinstance(only, bool):
            raise protocol_error(f"{name}={value!r} is not supported; leave it out.")
    if (max_tokens := fields.pop("max_completion_tokens", None)) is not None:
        fields["max_tokens"] = max_tokens  # the newer name takes precedence
    if (prompt := fields.pop(prompt_name, None)) is not None:
        fields["prompt"] = prompt
    try:
        return msgspec.convert(defaults | fields, GenerationRequest)
    except msgspec.ValidationError as error:
        message = f"{error}".replace("$.prompt", f"$.{prompt_name}")
        raise protocol_error(message.replace("`prompt`", f"`{prompt_name}`")) from error


def _decoder_of(model: ServedModel) -> Decoder:
    """Return the decoder that a model is; imported here, as most servers generate no text."""
    try:
        from hetero.apps.generate.decoder_ports import Decoder
    except ImportError as error:
        raise protocol_error(f"this server cannot generate text: {error}.") from error
    return Decoder.of(model.compiled.source)


def prompt_rows(model: ServedModel, request: GenerationRequest) -> list[list[int]]:
    """Return the token ids of each requested sequence: `n` for each prompt."""
    decoder, prompt = _decoder_of(model), request.prompt
    is_several = isinstance(prompt, list) and all(isinstance(one, str | list) for one in prompt)
    prompts: list[Any] = list(prompt) if is_several else [prompt]
    _check_count(len(prompts) * request.n)
    rows = [model.tokenizer.encode(one) if isinstance(one, str) else one for one in prompts]
    for ids in rows:
        _check_length(len(ids), decoder)
        if any(type(item) is not int for item in ids):
            raise protocol_error("expected a prompt: a text or token ids, or a list of such.")
    return [ids for ids in rows for _ in range(request.n)]


def chat_rows(model: ServedModel, request: GenerationRequest) -> list[list[int]]:
    """Return the token ids of each requested sequence: `n` for a chat, whose prompt is messages.

    Raises ProtocolError: the prompt is no list of messages, or not one for the model's template.
    """
    decoder = _decoder_of(model)
    if not isinstance(request.prompt, list):
        raise protocol_error("expected messages: a list of {role, content}.")
    ids = model.tokenizer.encode_chat(request.prompt, request.chat_template_kwargs)
    _check_length(len(ids), decoder)
    return [ids] * request.n


def _check_count(num_sequences: int) -> None:
    if num_sequences > MAX_SEQUENCES:
        raise protocol_error(
            f"the request has {num_sequences} sequences (prompts times n), expected at most "
            f"{MAX_SEQUENCES}."
        )


def _check_length(num_tokens: int, decoder: Decoder) -> None:
    """Raise ProtocolError for a prompt that fills the context, before its tokens are read."""
    if decoder.context_length is not None and num_tokens >= decoder.context_length:
        raise protocol_error(
            f"the prompt has {num_tokens} tokens, expected fewer than the model's context, "
            f"{decoder.context_length}."
        )


@dataclass(slots=True)
class Piece:
    """A part of a generated sequence; the last part has a finish reason.

    `row`: index of the sequence in its request.
    """

    row: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None


class _Sequence:
    """A sequence as it arrives, up to a stop; it has text if there is a tokenizer."""

    def __init__(self, row: int, stream: Detokenizer | None, stops: tuple[str, ...]) -> None:
        self._stream, self._stops = stream, stops
        self._next = Piece(row)

    def add(self, token: int, finish_reason: str | None) -> Piece | None:
        """Return the piece that a token completes; `finish_reason` marks the last token."""
        piece, text = self._next, self._next.text
        piece.tokens.append(token)
        if self._stream is not None:
            # The end token is not part of the text.
            text += self._stream.add(token) if finish_reason != "stop" else ""
            text += self._stream.end() if finish_reason else ""
        stops = [at for at in map(text.find, self._stops) if at >= 0]
        num_pending = 0
        if stops:
            text, finish_reason = text[: min(stops)], "stop"
        elif not finish_reason:  # the last characters may be the beginning of a stop
            beginnings = (stop[:n] for stop in self._stops for n in range(1, len(stop)))
            num_pending = max((len(b) for b in beginnings if text.endswith(b)), default=0)
        num_complete = len(text) - num_pending
        piece.text, piece.finish_reason = text[:num_complete], finish_reason
        if not (num_complete or finish_reason or self._stream is None):
            piece.text = text
            return None
        self._next = Piece(piece.row, text[num_complete:])
        return piece


class GenerationRunner:
    """Runs generations; each step runs on a thread, so that the event loop continues."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "generate")
        self._num_running = 0

    async def pieces(
        self,
        model: ServedModel,
        rows: list[list[int]],
        request: GenerationRequest,
        *,
        is_continuation: bool,
    ) -> AsyncIterator[Piece]:
        """Yield the pieces that a model generates; closing the iterator ends the generation.

        `is_continuation`: whether texts continue their prompts; otherwise they are new texts.
        """
        if self._num_running + len(rows) > MAX_SEQUENCES:
            raise OverloadedError(f"{self._num_running} sequences are running; try again later.")
        eos = () if request.ignore_eos else None
        context_length = _decoder_of(model).context_length
        max_tokens = request.max_tokens or context_length or _DEFAULT_TOKENS
        stops = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)
        loop, statistics = asyncio.get_running_loop(), model.statistics
        with statistics.count_generation(len(rows)):
            self._num_running += len(rows)
            generation = None
            try:
                generation = await loop.run_in_executor(
                    self._threads,
                    lambda: model.compiled.generate(rows, max_tokens, eos=eos, **request.sampling),
                )
                await generation.wait_for_admission()  # not on a thread, which others need
                streams = (model.tokenizer.stream(ids if is_continuation else ()) for ids in rows)
                sequences = [_Sequence(row, stream, stops) for row, stream in enumerate(streams)]
                while step := await loop.run_in_executor(self._threads, next, generation, None):
                    reasons = generation.finish_reasons
                    for row, (sequence, token) in enumerate(zip(sequences, step, strict=True)):
                        if token is None:
                            continue
                        statistics.num_tokens += 1
                        if (piece := sequence.add(token, reasons[row])) is None:
                            continue
                        if piece.finish_reason:
                            generation.cancel(row)
                        yield piece
            finally:
                self._num_running -= len(rows)
                if generation is not None:
                    generation.cancel()
