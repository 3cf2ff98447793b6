"""Generated text by HTTP: OpenAI's completions and chats, and Triton's generate extension."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from hetero.serve.errors import refused
from hetero.serve.generation import Generations, Piece, prompt_ids, read_generation
from hetero.serve.http_exchange import Exchange
from hetero.serve.rest_messages import dump_json, read_json
from hetero.serve.service import Service

#: A piece, and how many tokens there were where that is told, to a part of the answer.
Shape = Callable[[Piece | None, Mapping[str, int] | None], dict[str, Any]]


class Completions:
    """Answers requests for generated text."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._generations = Generations()

    async def models(self, exchange: Exchange, asked: Mapping[str, str]) -> None:
        """Answer with the models, or the one that is asked for, as OpenAI lists them."""
        repository = self._service.repository
        found = [repository.find(**asked)] if asked else repository.models()
        names = dict.fromkeys(model.name for model in found)
        rows = [{"id": n, "object": "model", "created": 0, "owned_by": "hetero"} for n in names]
        await exchange.answer_json(rows[0] if asked else {"object": "list", "data": rows})

    async def triton(self, stream: bool, exchange: Exchange, names: Mapping[str, str]) -> None:
        """Answer as Triton's generate extension does: whole, or piece by piece."""
        model = self._service.repository.find(**names)
        document = read_json(await exchange.body())
        if not isinstance(more := document.pop("parameters", None) or {}, dict):
            raise refused("parameters is an object.")
        document = {**document, "stream": stream, **more}
        asked = read_generation(document, "text_input", temperature=0.0, max_tokens=16)
        head = {"model_name": model.name, "model_version": model.version}

        def shape(piece: Piece | None, _: object) -> dict[str, Any]:
            assert piece is not None
            return {**head, "text_output": piece.text, "token_ids": piece.tokens}

        pieces = self._generations.pieces(model, prompt_ids(model, asked.prompt), asked, True)
        if stream:
            await _events(exchange, pieces, shape)
        else:
            await exchange.answer_json(shape(await _whole(exchange, pieces), None))

    async def openai(self, is_chat: bool, exchange: Exchange, _: object) -> None:
        """Answer as OpenAI does to a prompt, or to a chat's messages."""
        document = read_json(await exchange.body())
        field, most = ("messages", 256) if is_chat else ("prompt", 16)
        asked = read_generation(document, field, temperature=1.0, max_tokens=most)
        if not isinstance(name := document.get("model"), str):
            raise refused("model is the name of one.")
        model = self._service.repository.find(name)
        if is_chat and not isinstance(asked.prompt, list):
            raise refused("messages is a list of {role, content}.")
        ids = model.texts.chat_ids(asked.prompt) if is_chat else prompt_ids(model, asked.prompt)
        chunk = ".chunk" if asked.stream else ""
        head = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model.name,
            "object": f"chat.completion{chunk}" if is_chat else "text_completion",
        }

        def shape(piece: Piece | None, usage: Mapping[str, int] | None) -> dict[str, Any]:
            choices = []
            if piece is not None:
                message = {"role": "assistant", "content": piece.text}
                of_chat = {"delta" if asked.stream else "message": message}
                said = of_chat if is_chat else {"text": piece.text, "token_ids": piece.tokens}
                ends = {"logprobs": None, "finish_reason": piece.finish_reason}
                choices = [{"index": 0, **said, **ends}]
            return {**head, "choices": choices, **({"usage": usage} if usage else {})}

        pieces = self._generations.pieces(model, ids, asked, not is_chat)
        if asked.stream:
            prompt = len(ids) if asked.stream_options.get("include_usage") is True else None
            await _events(exchange, pieces, shape, prompt, end=b"data: [DONE]\n\n")
        else:
            piece = await _whole(exchange, pieces)
            await exchange.answer_json(shape(piece, _usage(len(ids), len(piece.tokens))))


def _usage(prompt: int, generated: int) -> dict[str, int]:
    total = prompt + generated
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": total}


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


async def _events(
    exchange: Exchange, pieces: AsyncIterator[Piece], shape: Shape,
    prompt: int | None = None, end: bytes = b"",
) -> None:  # fmt: skip
    """Answer with server-sent events; an error before the first is an answer of its own.

    `prompt`: tokens of the prompt, where the last event is to tell the usage.
    """

    async def write() -> None:
        generated = 0
        async with aclosing(pieces) as open_:  # type: ignore[type-var]  # it is a generator
            async for piece in open_:
                if not exchange.status:
                    await exchange.begin("text/event-stream")
                generated += len(piece.tokens)
                await exchange.write(b"data: %s\n\n" % dump_json(shape(piece, None)))
        if prompt is not None:
            usage = dump_json(shape(None, _usage(prompt, generated)))
            await exchange.write(b"data: %s\n\n" % usage)
        await exchange.write(end, last=True)

    await exchange.unless_gone(write())
