"""Generated text, token by token, for clients that may leave at any time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from devices.errors import OverloadedError
from hetero.generate.generation import Generation
from hetero.serve.errors import refused
from hetero.serve.generation_request import GenerationRequest
from hetero.serve.served_model import ServedModel

#: Generations that go on at once, and those that may wait for a turn beside them.
_THREADS: Final = 64
_MOST: Final = 256
#: What a decoder of bytes gives for a character that is not whole yet.
_INCOMPLETE: Final = "\ufffd"


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
        self, model: ServedModel, ids: list[int], request: GenerationRequest
    ) -> AsyncIterator[Piece]:
        """Yield what a model generates, a token or more at once; closing it ends the generation.

        Raises OverloadedError: too many go on already; ArgumentError: the model is no decoder, or
        an option or the prompt is out of its range.
        """
        if self._num_running >= _MOST:
            raise OverloadedError(f"{_MOST} texts are being generated already; try again later.")
        generation = model.compiled.generate(ids, request.max_tokens, **request.options)
        self._num_running += 1
        try:
            async for piece in self._read(model, generation, request.stop):
                yield piece
        finally:
            self._num_running -= 1
            generation.cancel()

    async def _read(
        self, model: ServedModel, generation: Generation, stops: tuple[str, ...]
    ) -> AsyncIterator[Piece]:
        loop = asyncio.get_running_loop()
        sent = 0
        held: list[int] = []
        while True:
            token = await loop.run_in_executor(self._threads, next, generation, None)
            if token is None:
                break
            held.append(token)
            ended = generation.finish_reason
            # The token that ends a text is no part of it.
            said = generation.tokens[:-1] if ended == "stop" else generation.tokens
            text = model.texts.text(said)
            found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
            if found:
                yield Piece(text[sent : min(found)], held, "stop")
                return
            if ended is None and (text.endswith(_INCOMPLETE) or _begins(text, stops)):
                continue  # it may become another character, or a text to stop at
            yield Piece(text[sent:], held, ended)
            sent, held = len(text), []
            if ended is not None:
                return


def _begins(text: str, stops: tuple[str, ...]) -> bool:
    """Whether the end of a text may become one of those to stop at."""
    return any(text.endswith(stop[:n]) for stop in stops for n in range(1, len(stop)))


def prompt_ids(model: ServedModel, prompt: str | list[object]) -> list[int]:
    """Return a prompt's token ids.

    Raises ProtocolError: it is neither a text nor a list of ids, or a text and the model has no
    tokenizer.
    """
    if isinstance(prompt, str):
        return model.texts.ids(prompt)
    if any(type(item) is not int for item in prompt):
        raise refused("a prompt is one text, or one list of token ids.")
    return prompt  # type: ignore[return-value]  # it was looked at
