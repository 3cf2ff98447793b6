"""Generated text by HTTP: OpenAI's completions and chats, and Triton's generate extension."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from hetero.apps.serve.errors import protocol_error
from hetero.apps.serve.exchange import Exchange
from hetero.apps.serve.generation import (
    GenerationRequest,
    Generations,
    Piece,
    chat_rows,
    prompt_rows,
    read_generation,
)
from hetero.apps.serve.rest_messages import parse_json
from hetero.apps.serve.service import Service

#: Pieces, and how many tokens were generated where that is told, to a part of the answer.
Shape = Callable[[Sequence[Piece], int | None], dict[str, Any]]


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
        exchange.respond_json(rows[0] if asked else {"object": "list", "data": rows})

    async def triton(self, stream: bool, exchange: Exchange, names: Mapping[str, str]) -> None:
        """Answer as Triton's generate extension does: whole, or piece by piece."""
        model = self._service.repository.find(**names)
        document = parse_json(exchange.body)
        if not isinstance(more := document.pop("parameters", None) or {}, dict):
            raise protocol_error("parameters is an object.")
        document = {**document, **more, "stream": stream, "stream_options": None}
        asked = read_generation(document, "text_input", temperature=0.0, max_tokens=16)
        head = {"model_name": model.name, "model_version": model.version}

        def shape(pieces: Sequence[Piece], _: object) -> dict[str, Any]:
            piece = pieces[0]
            return {**head, "text_output": piece.text, "token_ids": piece.tokens}

        rows = await asyncio.to_thread(prompt_rows, model, asked)
        if len(rows) > 1:
            raise protocol_error(
                "text_input is one prompt here; /v1/completions takes several, and n."
            )
        pieces = self._generations.pieces(model, rows, asked, is_continued=True)
        await exchange.cancel_on_disconnect(_answer(exchange, pieces, shape, asked))

    async def openai(self, is_chat: bool, exchange: Exchange, _: object) -> None:
        """Answer as OpenAI does to a prompt, or to a chat's messages."""
        document = parse_json(exchange.body)
        field, most = ("messages", None) if is_chat else ("prompt", 16)
        asked = read_generation(document, field, temperature=1.0, max_tokens=most)
        if not isinstance(name := document.get("model"), str):
            raise protocol_error("model is the name of one.")
        model = self._service.repository.find(name)
        # A long prompt takes its tokenizer seconds, in which others are answered.
        rows = await asyncio.to_thread(chat_rows if is_chat else prompt_rows, model, asked)
        chunk = ".chunk" if asked.stream else ""
        head = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model.name,
            "object": f"chat.completion{chunk}" if is_chat else "text_completion",
        }
        tells_usage = not asked.stream or asked.stream_options.get("include_usage") is True
        begun: set[int] = set()

        def shape(pieces: Sequence[Piece], generated: int | None) -> dict[str, Any]:
            choices = []
            for piece in pieces:
                said: dict[str, Any] = {"text": piece.text, "token_ids": piece.tokens}
                if is_chat:
                    role = {} if piece.row in begun else {"role": "assistant"}
                    said = {"delta" if asked.stream else "message": role | {"content": piece.text}}
                    begun.add(piece.row)
                ends = {"logprobs": None, "finish_reason": piece.finish_reason}
                choices.append({"index": piece.row, **said, **ends})
            usage = None
            if generated is not None:
                prompt = sum(map(len, rows[:: asked.n]))
                usage = {
                    "prompt_tokens": prompt,
                    "completion_tokens": generated,
                    "total_tokens": prompt + generated,
                }
            return {**head, "choices": choices, **({"usage": usage} if tells_usage else {})}

        pieces = self._generations.pieces(model, rows, asked, is_continued=not is_chat)
        work = _answer(exchange, pieces, shape, asked, b"data: [DONE]\n\n")
        await exchange.cancel_on_disconnect(work)


async def _answer(
    exchange: Exchange,
    pieces: AsyncIterator[Piece],
    shape: Shape,
    asked: GenerationRequest,
    end: bytes = b"",
) -> None:
    """Answer with all that comes, or piece by piece, and `end`.

    An error before the first piece is an answer of its own.
    """
    texts: dict[int, Piece] = {}
    async with aclosing(pieces) as open_:  # type: ignore[type-var]  # it is a generator
        async for piece in open_:
            if asked.stream:
                if not exchange.has_events:
                    exchange.begin_events()
                await exchange.write_event(shape([piece], None))
            whole = texts.setdefault(piece.row, Piece(piece.row))
            whole.text += piece.text
            whole.tokens += piece.tokens
            whole.finish_reason = piece.finish_reason
    told, count = sorted(texts.items()), sum(len(text.tokens) for text in texts.values())
    if not asked.stream:
        exchange.respond_json(shape([text for _, text in told], count))
        return
    if asked.stream_options.get("include_usage") is True:
        await exchange.write_event(shape([], count))
    exchange.end_events(end)
