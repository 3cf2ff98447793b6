"""Generated text: what a request for it says, and its tokens, one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec

from hetero.apps.generate.ports import Decoder
from hetero.apps.generate.text import TextStream
from hetero.apps.serve.errors import protocol_error
from hetero.apps.serve.served_model import ServedModel
from hetero.devices.errors import OverloadedError

#: Generations that go on at once, and those that may wait for a turn beside them.
_THREADS: Final = 64
_MOST: Final = 256
#: Tokens of a text where neither the request nor the model says how many.
_USUAL: Final = 256
#: Fields of OpenAI's forms that change nothing here.
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
#: Field -> the only value that is served.
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
_FULL: Final = msgspec.Meta(min_length=1)
#: A text to stop at, and how many there may be: each is looked for after each token.
_Stop = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_STOPS: Final = msgspec.Meta(max_length=16)
_Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class GenerationRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request for generated text, in OpenAI's form or Triton's.

    `prompt`: a text or token ids, or several; or a chat's messages.
    `max_tokens`: None: as many as the model's context has, or 256 where nothing says how many.
    `n`: how many texts of each prompt.
    `stop`: texts before which the answer ends; 16 of 256 characters at most.
    `ignore_eos`: whether only these end it, as load generators ask.
    `chat_template_kwargs`: what else a chat's template is told, as vLLM has it.
    """

    prompt: Annotated[str, _FULL] | Annotated[list[Any], _FULL]
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None
    temperature: float
    n: Annotated[int, msgspec.Meta(ge=1, le=_MOST)] = 1
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
        """More of `hetero.CompiledModel.generate`'s options."""
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
        told = {name: getattr(self, name) for name in names}
        return told if self.seed is None else told | {"seed": self.seed % 2**64}  # may be negative


def read_generation(
    document: Mapping[str, Any], prompt_name: str, **usual: Any
) -> GenerationRequest:
    """Return what a request asks for; `usual` has fields where it says nothing."""
    given = {name: v for name, v in document.items() if v is not None and name not in _IGNORED}
    for name in [name for name in _ONLY if name in given]:
        value, only = given.pop(name), _ONLY[name]
        # logprobs=0 asks for the chosen tokens' scores: it is not False.
        if value != only or isinstance(value, bool) != isinstance(only, bool):
            raise protocol_error(f"{name}={value!r}: not offered here; leave it out.")
    if (most := given.pop("max_completion_tokens", None)) is not None:
        given["max_tokens"] = most  # the newer name, where both are given
    if (prompt := given.pop(prompt_name, None)) is not None:
        given["prompt"] = prompt
    try:
        return msgspec.convert(usual | given, GenerationRequest)
    except msgspec.ValidationError as error:
        said = f"{error}".replace("$.prompt", f"$.{prompt_name}")
        raise protocol_error(said.replace("`prompt`", f"`{prompt_name}`")) from error


@dataclass(slots=True)
class Piece:
    """What has come of a text since its piece before; its last one has the reason why it is that.

    `row`: which text it is of, where several are generated.
    """

    row: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None


class _Row:
    """A text as it comes, up to one of those to stop at; it is text where there is a tokenizer."""

    def __init__(self, row: int, stream: TextStream | None, stops: tuple[str, ...]) -> None:
        self._stream, self._stops = stream, stops
        self._next = Piece(row)

    def add(self, token: int, ended: str | None) -> Piece | None:
        """Return the next piece, if the token makes one; `ended` says why it is the last token."""
        piece, text = self._next, self._next.text
        piece.tokens.append(token)
        if self._stream is not None:
            # The token that ends a text is no part of it.
            text += self._stream.add(token) if ended != "stop" else ""
            text += self._stream.end() if ended else ""
        found = [at for at in map(text.find, self._stops) if at >= 0]
        held = 0
        if found:
            text, ended = text[: min(found)], "stop"
        elif not ended:  # its end may become a text to stop at
            begun = (s[:n] for s in self._stops for n in range(1, len(s)))
            held = max((len(begin) for begin in begun if text.endswith(begin)), default=0)
        whole = len(text) - held
        piece.text, piece.finish_reason = text[:whole], ended
        if not (whole or ended or self._stream is None):
            piece.text = text
            return None
        self._next = Piece(piece.row, text[whole:])
        return piece


class Generations:
    """Runs generations, each step on a thread, so that none holds up the event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "generate")
        self._num_running = 0

    async def pieces(
        self,
        model: ServedModel,
        rows: list[list[int]],
        request: GenerationRequest,
        is_continued: bool,
    ) -> AsyncIterator[Piece]:
        """Yield what a model generates, a token or more at once; closing it ends the generation.

        `is_continued`: whether texts go on with their prompts', not with ones of their own.
        """
        if self._num_running + len(rows) > _MOST:
            raise OverloadedError(f"{_MOST} texts may be generated at once; try again later.")
        eos = () if request.ignore_eos else None
        most = request.max_tokens or Decoder.of(model.compiled.source).context_length or _USUAL
        stops = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)
        loop, counts = asyncio.get_running_loop(), model.statistics
        with counts.count_generation(len(rows)):
            generation = model.compiled.generate(rows, most, eos=eos, **request.sampling)
            self._num_running += len(rows)
            try:
                streams = (model.texts.stream(ids if is_continued else ()) for ids in rows)
                texts = [_Row(row, stream, stops) for row, stream in enumerate(streams)]
                while step := await loop.run_in_executor(self._threads, next, generation, None):
                    reasons = generation.finish_reasons
                    for row, (text, token) in enumerate(zip(texts, step, strict=True)):
                        if token is None:
                            continue
                        counts.num_tokens += 1
                        if (piece := text.add(token, reasons[row])) is None:
                            continue
                        if piece.finish_reason:
                            generation.cancel(row)
                        yield piece
            finally:
                self._num_running -= len(rows)
                generation.cancel()


def prompt_rows(model: ServedModel, request: GenerationRequest) -> list[list[int]]:
    """Return the token ids of each text that is asked for: `n` of each prompt."""
    given = request.prompt
    is_several = isinstance(given, list) and all(isinstance(one, str | list) for one in given)
    rows = []
    for prompt in given if is_several else [given]:
        ids = model.texts.ids(prompt) if isinstance(prompt, str) else prompt
        if any(type(item) is not int for item in ids):
            raise protocol_error(
                "a prompt is a text, or a list of token ids; or there are several such."
            )
        rows += [ids] * request.n
    return rows


def chat_rows(model: ServedModel, request: GenerationRequest) -> list[list[int]]:
    """Return the token ids of each text that is asked for: `n` of a chat, its messages the prompt.

    Raises ProtocolError: they are no messages, or none that the model's template takes.
    """
    if not isinstance(request.prompt, list):
        raise protocol_error("messages is a list of {role, content}.")
    return [model.texts.chat_ids(request.prompt, request.chat_template_kwargs)] * request.n
