"""Generated text: what a request for it says, and its tokens, one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec

from devices.errors import OverloadedError
from hetero.serve.errors import refused
from hetero.serve.served_model import ServedModel

#: Generations that go on at once, and those that may wait for a turn beside them.
_THREADS: Final = 64
_MOST: Final = 256
#: Fields of OpenAI's forms that change nothing here.
_IGNORED: Final = frozenset(
    {"user", "metadata", "store", "model", "service_tier", "parallel_tool_calls"}
)
#: Field -> the only value that is served.
_ONLY: Final[Mapping[str, object]] = {
    "n": 1, "best_of": 1, "logprobs": False, "echo": False, "suffix": "", "logit_bias": {},
    "tools": [], "tool_choice": "none", "presence_penalty": 0, "frequency_penalty": 0,
    "response_format": {"type": "text"},
}  # fmt: skip
_FULL: Final = msgspec.Meta(min_length=1)
#: A text to stop at, and how many there may be: each is looked for after each token.
_Stop = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_STOPS: Final = msgspec.Meta(max_length=16)


class GenerationRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request for generated text, in OpenAI's form or Triton's.

    `prompt`: a text, token ids, or a chat's messages.
    `stop`: texts before which the answer ends; 16 of 256 characters at most.
    `ignore_eos`: whether only these end it, as load generators ask.
    """

    prompt: Annotated[str, _FULL] | Annotated[list[Any], _FULL]
    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: _Stop | Annotated[list[_Stop], _STOPS] = []
    ignore_eos: bool = False
    stream: bool = False
    stream_options: dict[str, Any] = {}

    @property
    def sampling(self) -> dict[str, Any]:
        """More of `hetero.CompiledModel.generate`'s options."""
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
        return {name: getattr(self, name) for name in names}


def read_generation(
    document: Mapping[str, Any], prompt_name: str, **usual: Any
) -> GenerationRequest:
    """Return what a request asks for.

    `prompt_name`: the field of the prompt.
    `usual`: fields where the request says nothing.

    Raises ProtocolError: a field is of another type, or not offered here.
    """
    given = {name: v for name, v in document.items() if v is not None and name not in _IGNORED}
    for name in [name for name in _ONLY if name in given]:
        if (value := given.pop(name)) != _ONLY[name]:
            raise refused(f"{name}={value!r}: not offered here; leave it out.")
    if (most := given.pop("max_completion_tokens", None)) is not None:
        given.setdefault("max_tokens", most)
    if (prompt := given.pop(prompt_name, None)) is not None:
        given["prompt"] = prompt
    try:
        return msgspec.convert(usual | given, GenerationRequest)
    except msgspec.ValidationError as error:
        raise refused(f"{error}; the prompt is {prompt_name}.") from error


@dataclass(slots=True)
class Piece:
    """What has come since the piece before; the last one has the reason why it is the last."""

    text: str
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None


class Generations:
    """Runs generations, each step on a thread, so that none holds up the event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "generate")
        self._num_running = 0

    async def pieces(
        self, model: ServedModel, ids: list[int], request: GenerationRequest, is_continued: bool
    ) -> AsyncIterator[Piece]:
        """Yield what a model generates, a token or more at once; closing it ends the generation.

        `is_continued`: whether the text goes on with the prompt's, not with one of its own.

        Raises OverloadedError: too many go on already; ArgumentError: the model is no decoder, or
        an option or the prompt is out of its range.
        """
        if self._num_running >= _MOST:
            raise OverloadedError(f"{_MOST} texts are being generated already; try again later.")
        eos = () if request.ignore_eos else None
        generation = model.compiled.generate(ids, request.max_tokens, eos=eos, **request.sampling)
        self._num_running += 1
        stops = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)
        loop = asyncio.get_running_loop()
        stream = model.texts.stream(ids if is_continued else ())
        said, tokens = "", list[int]()
        try:
            while (
                token := await loop.run_in_executor(self._threads, next, generation, None)
            ) is not None:
                tokens.append(token)
                ended = generation.finish_reason
                if stream is not None:
                    # The token that ends a text is no part of it.
                    said += stream.add(token) if ended != "stop" else ""
                    said += stream.end() if ended else ""
                found = [at for at in map(said.find, stops) if at >= 0]
                if found:
                    yield Piece(said[: min(found)], tokens, "stop")
                    return
                whole = len(said) if ended else len(said) - _held(said, stops)
                if whole or ended or stream is None:
                    yield Piece(said[:whole], tokens, ended)
                    said, tokens = said[whole:], []
        finally:
            self._num_running -= 1
            generation.cancel()


def _held(said: str, stops: tuple[str, ...]) -> int:
    """Return how many characters at the end of a text may become one of those to stop at."""
    return max((n for s in stops for n in range(1, len(s)) if said.endswith(s[:n])), default=0)


def prompt_ids(model: ServedModel, prompt: str | list[Any]) -> list[int]:
    """Return a prompt's token ids; OpenAI's form may have a list of one prompt.

    Raises ProtocolError: it is neither a text nor a list of ids, or a text and the model has no
    tokenizer.
    """
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        [prompt] = prompt
    if isinstance(prompt, str):
        return model.texts.ids(prompt)
    if any(type(item) is not int for item in prompt):
        raise refused("a prompt is one text, or one list of token ids.")
    return prompt
