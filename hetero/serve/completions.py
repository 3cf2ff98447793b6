"""Generated text by HTTP: OpenAI's completions and chats, and Triton's generate extension."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from hetero.serve.errors import refused
from hetero.serve.generation import Generations, Piece, prompt_ids
from hetero.serve.generation_request import GenerationRequest, read_generation
from hetero.serve.http_exchange import Exchange
from hetero.serve.rest_request import read_json
from hetero.serve.rest_response import dump_json
from hetero.serve.served_model import ServedModel
from hetero.serve.service import Service

#: Makes a part of an answer: the piece, and how many tokens there were.
Shape = Callable[[Piece, Mapping[str, int] | None], dict[str, Any]]


class Completions:
    """Answers requests for generated text."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._generations = Generations()

    async def models(self, exchange: Exchange) -> None:
        """Answer with the models, as OpenAI lists them."""
        names = dict.fromkeys(model.name for model in self._service.repository.models())
        rows = [{"id": n, "object": "model", "created": 0, "owned_by": "hetero"} for n in names]
        await exchange.answer_json({"object": "list", "data": rows})

    async def completion(self, exchange: Exchange) -> None:
        """Answer a prompt as OpenAI's completions do."""
        document = read_json(await exchange.body())
        asked = read_generation(document, "prompt", temperature=1.0, max_tokens=16)
        model = self._model(document)

        def shape(piece: Piece) -> dict[str, Any]:
            return {"text": piece.text, "logprobs": None, "token_ids": piece.tokens}

        ids = prompt_ids(model, asked.prompt)
        answer = _OpenAi("cmpl", "text_completion", "text_completion", model, shape, shape)
        await self._answer(exchange, model, ids, asked, answer)

    async def chat(self, exchange: Exchange) -> None:
        """Answer a chat as OpenAI's do."""
        document = read_json(await exchange.body())
        asked = read_generation(document, "messages", temperature=1.0, max_tokens=256)
        model = self._model(document)
        if not isinstance(asked.prompt, list):
            raise refused("messages is a list of {role, content}.")
        ids = model.texts.ids(model.texts.prompt(asked.prompt))

        def whole(piece: Piece) -> dict[str, Any]:
            return {"message": {"role": "assistant", "content": piece.text}, "logprobs": None}

        def part(piece: Piece) -> dict[str, Any]:
            return {"delta": {"role": "assistant", "content": piece.text}, "logprobs": None}

        kinds = "chat.completion", "chat.completion.chunk"
        answer = _OpenAi("chatcmpl", *kinds, model, whole, part)
        await self._answer(exchange, model, ids, asked, answer)

    async def generate(self, exchange: Exchange, model: ServedModel, *, stream: bool) -> None:
        """Answer as Triton's generate extension does; `stream`: piece by piece."""
        document = read_json(await exchange.body())
        document = {**document, "stream": stream, **document.pop("parameters", {})}
        asked = read_generation(document, "text_input", temperature=0.0, max_tokens=16)

        def shape(piece: Piece, _: object) -> dict[str, Any]:
            return {
                "model_name": model.name,
                "model_version": model.version,
                "text_output": piece.text,
                "token_ids": piece.tokens,
            }

        ids = prompt_ids(model, asked.prompt)
        pieces = self._generations.pieces(model, ids, asked)
        if stream:
            await _events(exchange, _shaped(pieces, shape, None))
        else:
            await exchange.answer_json(shape(await _whole(exchange, pieces), None))

    def _model(self, document: Mapping[str, Any]) -> ServedModel:
        name = document.get("model")
        if not isinstance(name, str):
            raise refused("model is the name of one.")
        return self._service.repository.find(name)

    async def _answer(
        self,
        exchange: Exchange,
        model: ServedModel,
        ids: list[int],
        asked: GenerationRequest,
        answer: _OpenAi,
    ) -> None:
        pieces = self._generations.pieces(model, ids, asked)
        if not asked.stream:
            piece = await _whole(exchange, pieces)
            usage = _usage(len(ids), len(piece.tokens))
            await exchange.answer_json(answer.document(piece, usage))
            return
        shaped = _shaped(pieces, answer.chunk, len(ids) if asked.with_usage else None)
        await _events(exchange, shaped, end=b"data: [DONE]\n\n")


class _OpenAi:
    """The documents of one answer in OpenAI's form."""

    def __init__(
        self,
        prefix: str,
        kind: str,
        chunk_kind: str,
        model: ServedModel,
        whole: Callable[[Piece], dict[str, Any]],
        part: Callable[[Piece], dict[str, Any]],
    ) -> None:
        self._kind, self._chunk_kind = kind, chunk_kind
        self._whole, self._part = whole, part
        self._head = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model.name,
        }

    def document(self, piece: Piece, usage: Mapping[str, int]) -> dict[str, Any]:
        choice = {"index": 0, **self._whole(piece), "finish_reason": piece.finish_reason}
        return {**self._head, "object": self._kind, "choices": [choice], "usage": usage}

    def chunk(self, piece: Piece | None, usage: Mapping[str, int] | None) -> dict[str, Any]:
        choices = []
        if piece is not None:
            choices = [{"index": 0, **self._part(piece), "finish_reason": piece.finish_reason}]
        more = {"usage": usage} if usage is not None else {}
        return {**self._head, "object": self._chunk_kind, "choices": choices, **more}


def _usage(prompt: int, generated: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
    }


async def _whole(exchange: Exchange, pieces: AsyncIterator[Piece]) -> Piece:
    """Return all that comes as one piece; what comes ends once the client has gone."""

    async def read() -> Piece:
        all_ = Piece("")
        async with aclosing(pieces) as open_:  # type: ignore[type-var]  # it is a generator
            async for piece in open_:
                all_.text += piece.text
                all_.tokens += piece.tokens
                all_.finish_reason = piece.finish_reason
        return all_

    return await exchange.unless_gone(read())


async def _shaped(
    pieces: AsyncIterator[Piece], shape: Callable[..., dict[str, Any]], prompt: int | None
) -> AsyncIterator[dict[str, Any]]:
    """Yield a document for each piece; behind them one with the usage, where `prompt` counts."""
    generated = 0
    async with aclosing(pieces) as open_:  # type: ignore[type-var]
        async for piece in open_:
            generated += len(piece.tokens)
            yield shape(piece, None)
    if prompt is not None:
        yield shape(None, _usage(prompt, generated))


async def _events(
    exchange: Exchange, documents: AsyncIterator[dict[str, Any]], end: bytes = b""
) -> None:
    """Answer with server-sent events; an error before the first is an answer of its own."""

    async def write() -> None:
        async with aclosing(documents) as open_:  # type: ignore[type-var]
            first = await anext(open_)
            await exchange.begin("text/event-stream")
            await exchange.write(b"data: %s\n\n" % dump_json(first))
            async for document in open_:
                await exchange.write(b"data: %s\n\n" % dump_json(document))
        await exchange.write(end, last=True)

    await exchange.unless_gone(write())
