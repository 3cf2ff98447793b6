"""One HTTP request and its response, by ASGI: the body read within bounds, the answer written."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from hetero.serve.errors import refused
from hetero.serve.options import ServerOptions
from hetero.serve.rest_messages import dump_json, number_of, packed
from hetero.serve.tensors import Raw

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]
T = TypeVar("T")
_access: Final = logging.getLogger("hetero.serve.access")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
#: Where `hetero.serve.http_protocol` leaves a whole body that it has read itself.
BODY: Final = "hetero.body"
#: Where it leaves what became of a request that `ServingApp.answer_now` has begun, or its error.
BEGUN: Final = "hetero.begun"
#: Seconds after which a request that is not answered yet listens for its client's end.
_LISTEN_S: Final = 0.02
#: Bytes of a body up to which it is written in one piece.
_ONE_PIECE_NBYTES: Final = 65536


def trace_of(header: str) -> str:
    """Return a ``traceparent`` (W3C Trace Context) as it is; empty if it is none."""
    return header if _TRACEPARENT.fullmatch(header) else ""


class ClientGone(Exception):  # noqa: N818 - nothing is wrong: nobody waits any more
    """The client has closed the connection."""


class Exchange:
    """A request as it came, and the response to it; `options` have the bounds of its body."""

    def __init__(
        self, scope: dict[str, Any], receive: Receive, send: Send, options: ServerOptions
    ) -> None:
        self.method: Final[str] = scope["method"]
        self.path: Final[str] = scope["path"]
        self.headers: Final[dict[bytes, bytes]] = dict(scope["headers"])
        self.scope: Final = scope
        self._receive, self._send, self._options = receive, send, options
        #: What was answered: for the access log.
        self.status = self.sent_nbytes = self.received_nbytes = 0
        #: Whether more events may come.
        self.has_events = False

    def header(self, name: bytes) -> str:
        """Return a header, by its name in lower case; empty where it was not sent."""
        return self.headers.get(name, b"").decode("latin-1")

    async def body(self) -> Raw:
        """Return the request's body; ClientGone: only a part of it was sent."""
        if number_of(self.headers.get(b"content-length", b"")) > self._options.body_nbytes:
            raise self._too_large()
        if (whole := self.scope.get(BODY)) is None:
            try:
                async with asyncio.timeout(self._options.body_s):
                    whole = await self._whole()
            except TimeoutError as error:
                patience_s = self._options.body_s
                raise refused(f"the body did not come within {patience_s:g} s.", 408) from error
        self.received_nbytes = len(whole)
        return whole

    async def _whole(self) -> Raw:
        parts: list[bytes] = []
        nbytes, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            nbytes += len(parts[-1])
            if nbytes > self._options.body_nbytes:
                raise self._too_large()
            more = message.get("more_body", False)
        whole: Raw | None = self.scope.get(BODY)
        return b"".join(parts) if whole is None else whole

    def _too_large(self) -> Exception:
        most = self._options.body_nbytes
        return refused(f"the body has more than the {most} bytes allowed.", 413)

    async def unless_gone(self, run: Coroutine[Any, Any, T]) -> T:
        """Return what `run` does; cancel it and raise ClientGone once the client has gone."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        listeners: list[asyncio.Task[None]] = []

        async def listen() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            task.cancel()

        timer = loop.call_later(_LISTEN_S, lambda: listeners.append(loop.create_task(listen())))
        try:
            return await run
        except asyncio.CancelledError:
            if listeners and listeners[0].done():
                task.uncancel()
                raise ClientGone from None
            raise
        finally:
            timer.cancel()
            for listener in listeners:
                listener.cancel()

    async def begin_events(self) -> None:
        """Begin a response of server-sent events, of which `write` is told the last."""
        self.status, self.has_events = 200, True
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write_event(self, document: Any, *, last: bool = False) -> None:
        """Write a JSON document as an event of such a response."""
        await self.write(b"data: %s\n\n" % dump_json(document), last=last)

    async def write(self, piece: Raw, *, last: bool = False) -> None:
        """Write a piece of a response."""
        self.sent_nbytes += len(piece)
        self.has_events = self.has_events and not last
        await self._send({"type": "http.response.body", "body": piece, "more_body": not last})

    async def answer(
        self, status: int, parts: Sequence[Raw] = (), kind: bytes = b"application/json",
        headers: Headers = (), *, may_pack: bool = False,
    ) -> None:  # fmt: skip
        """Write the response, packed as the client accepts it if it may be."""
        written = []
        if may_pack and b"accept-encoding" in self.headers:
            accepted = self.header(b"accept-encoding")
            if sum(map(len, parts)) > _ONE_PIECE_NBYTES:  # others need not wait for it
                encoding, parts = await asyncio.to_thread(packed, parts, accepted)
            else:
                encoding, parts = packed(parts, accepted)
            if encoding:
                written.append((b"content-encoding", encoding.encode()))
        nbytes = sum(map(len, parts))
        if parts:
            written.append((b"content-type", kind))
        written = [(b"content-length", b"%d" % nbytes), *headers, *written]
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": written})
        pieces = parts if nbytes > _ONE_PIECE_NBYTES else [b"".join(parts)]
        for left, piece in zip(range(len(pieces) - 1, -1, -1), pieces, strict=True):
            await self.write(piece, last=not left)

    def log(self, took_s: float) -> None:
        """Log the request, which has ended, as a line of JSON."""
        line: dict[str, Any] = {
            "client": (self.scope.get("client") or [None])[0],
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "took_s": round(took_s, 6),
            "received_nbytes": self.received_nbytes,
            "sent_nbytes": self.sent_nbytes,
        }
        if trace := trace_of(self.header(b"traceparent")):
            _, line["trace_id"], line["parent_id"], _ = trace.split("-")
        _access.info(dump_json(line).decode())

    async def answer_json(self, document: Any, status: int = 200, headers: Headers = ()) -> None:
        """Write a JSON document."""
        await self.answer(status, [dump_json(document)], headers=headers)
