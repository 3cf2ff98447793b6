"""Generated text over HTTP: OpenAI's completions and chats, and Triton's generate extension."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from hetero.apps.serve.errors import protocol_error
from hetero.apps.serve.exchange import Exchange
from hetero.apps.serve.generation import (
    GenerationRequest,
    GenerationRunner,
    Piece,
    chat_rows,
    prompt_rows,
    read_generation,
)
from hetero.apps.serve.rest_messages import parse_json
from hetero.apps.serve.service import Service

#: Bytes of a request; some million tokens. Parsing them holds Python's lock for milliseconds.
_MAX_REQUEST_NBYTES: Final = 2**22
#: Returns a part of a response: its pieces, and the number of generated tokens at the end.
Shape = Callable[[Sequence[Piece], int | None], dict[str, Any]]


class Completions:
    """Answers requests for generated text."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._runner = GenerationRunner()

    async def models(self, exchange: Exchange, names: Mapping[str, str]) -> None:
        """Answer with all models, or the named one, in OpenAI's form."""
        repository = self._service.repository
        models = [repository.find(**names)] if names else repository.models()
        ids = dict.fromkeys(model.name for model in models)
        rows = [{"id": i, "object": "model", "created": 0, "owned_by": "hetero"} for i in ids]
        exchange.respond_json(rows[0] if names else {"object": "list", "data": rows})

    async def triton(self, stream: bool, exchange: Exchange, names: Mapping[str, str]) -> None:
        """Answer in the form of Triton's generate extension: whole, or as events."""
        model = self._service.repository.find(**names)
        document = _parse(exchange)
        if not isinstance(parameters := document.pop("parameters", None) or {}, dict):
            raise protocol_error(f"parameters={parameters!r}, expected an object.")
        document = {**document, **parameters, "stream": stream, "stream_options": None}
        request = read_generation(document, "text_input", temperature=0.0, max_tokens=16)
        head = {"model_name": model.name, "model_version": model.version}

        def shape(pieces: Sequence[Piece], _: object) -> dict[str, Any]:
            piece = pieces[0]
            return {**head, "text_output": piece.text, "token_ids": piece.tokens}

        rows = await asyncio.to_thread(prompt_rows, model, request)
        if len(rows) > 1:
            raise protocol_error("text_input has to be one prompt; /v1/completions takes several.")
        pieces = self._runner.pieces(model, rows, request, is_continuation=True)
        await exchange.cancel_on_disconnect(_answer(exchange, pieces, shape, request))

    async def openai(self, is_chat: bool, exchange: Exchange, _: object) -> None:
        """Answer a prompt, or the messages of a chat, in OpenAI's form."""
        document = _parse(exchange)
        prompt_name, max_tokens = ("messages", None) if is_chat else ("prompt", 16)
        request = read_generation(document, prompt_name, temperature=1.0, max_tokens=max_tokens)
        if not isinstance(name := document.get("model"), str):
            raise protocol_error(f"model={name!r}, expected the name of a model.")
        model = self._service.repository.find(name)
        # The tokenizer takes seconds for a long prompt.
        rows = await asyncio.to_thread(chat_rows if is_chat else prompt_rows, model, request)
        chunk = ".chunk" if request.stream else ""
        head = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model.name,
            "object": f"chat.completion{chunk}" if is_chat else "text_completion",
        }
        has_usage = not request.stream or request.stream_options.get("include_usage") is True
        rows_with_role: set[int] = set()

        def choice_of(piece: Piece) -> dict[str, Any]:
            choice: dict[str, Any] = {"text": piece.text, "token_ids": piece.tokens}
            if is_chat:
                role = {} if piece.row in rows_with_role else {"role": "assistant"}
                rows_with_role.add(piece.row)
                message = role | {"content": piece.text}
                choice = {"delta" if request.stream else "message": message}
            end = {"logprobs": None, "finish_reason": piece.finish_reason}
            return {"index": piece.row, **choice, **end}

        def shape(pieces: Sequence[Piece], num_generated: int | None) -> dict[str, Any]:
            usage = None
            if num_generated is not None:
                num_prompt = sum(map(len, rows[:: request.n]))
                usage = {
                    "prompt_tokens": num_prompt,
                    "completion_tokens": num_generated,
                    "total_tokens": num_prompt + num_generated,
                }
            choices = [choice_of(piece) for piece in pieces]
            return {**head, "choices": choices, **({"usage": usage} if has_usage else {})}

        pieces = self._runner.pieces(model, rows, request, is_continuation=not is_chat)
        work = _answer(exchange, pieces, shape, request, b"data: [DONE]\n\n")
        await exchange.cancel_on_disconnect(work)


def _parse(exchange: Exchange) -> dict[str, Any]:
    if len(exchange.body) > _MAX_REQUEST_NBYTES:
        raise protocol_error(
            f"the body has {len(exchange.body)} bytes, expected at most {_MAX_REQUEST_NBYTES}.", 413
        )
    document: dict[str, Any] = parse_json(exchange.body)
    return document


async def _answer(
    exchange: Exchange,
    pieces: AsyncIterator[Piece],
    shape: Shape,
    request: GenerationRequest,
    end: bytes = b"",
) -> None:
    """Answer with all pieces at once, or with events that end with `end`.

    An error before the first piece is a response of its own.
    """
    sequences: dict[int, Piece] = {}
    async with aclosing(pieces) as iterator:  # type: ignore[type-var]  # it is a generator
        async for piece in iterator:
            if request.stream:
                if not exchange.has_events:
                    exchange.begin_events()
                await exchange.write_event(shape([piece], None))
            sequence = sequences.setdefault(piece.row, Piece(piece.row))
            sequence.text += piece.text
            sequence.tokens += piece.tokens
            sequence.finish_reason = piece.finish_reason
    num_generated = sum(len(sequence.tokens) for sequence in sequences.values())
    if not request.stream:
        in_order = [sequence for _, sequence in sorted(sequences.items())]
        exchange.respond_json(shape(in_order, num_generated))
        return
    if request.stream_options.get("include_usage") is True:
        await exchange.write_event(shape([], num_generated))
    exchange.end_events(end)
