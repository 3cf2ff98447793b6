"""One HTTP request and its response, by ASGI: the body read within bounds, the answer written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from hetero.serve.errors import refused
from hetero.serve.rest_response import Part, dump_json, packed

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
#: Seconds after which a request that is not answered yet listens for its client's end.
_LISTEN_S: Final = 0.02
T = TypeVar("T")
#: Parts of a body up to which it is written in one piece, bytes.
_ONE_PIECE_NBYTES: Final = 65536


class ClientGone(Exception):  # noqa: N818 - nothing is wrong: nobody waits any more
    """The client has closed the connection."""


class Exchange:
    """A request as it came, and the response to it.

    `most_nbytes`: bytes that its body may have.
    `patience_s`: seconds that its body may take.
    """

    def __init__(
        self, scope: dict[str, Any], receive: Receive, send: Send, most_nbytes: int,
        patience_s: float,
    ) -> None:  # fmt: skip
        self.method: Final[str] = scope["method"]
        self.path: Final[str] = scope["path"]
        self.query: Final[bytes] = scope.get("query_string", b"")
        self.client: Final = scope.get("client")
        self._headers = dict(scope["headers"])
        self._receive, self._send = receive, send
        self._most_nbytes, self._patience_s = most_nbytes, patience_s
        #: What was answered: for the access log.
        self.status = 0
        self.sent_nbytes = 0
        self.received_nbytes = 0

    def header(self, name: bytes) -> str:
        """Return a header, by its name in lower case; empty where it was not sent."""
        value: bytes = self._headers.get(name, b"")
        return value.decode("latin-1")

    def has(self, name: bytes) -> bool:
        """Return whether a header was sent."""
        return name in self._headers

    async def body(self) -> bytes:
        """Return the request's body.

        Raises
        ------
        ProtocolError
            It is too large, or takes too long.
        ClientGone
            Only a part of it was sent.
        """
        length = self.header(b"content-length")
        if length.isdecimal() and int(length) > self._most_nbytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._whole()
        except TimeoutError as error:
            raise refused(f"the body did not come within {self._patience_s:g} s.", 408) from error

    async def _whole(self) -> bytes:
        parts: list[bytes] = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            self.received_nbytes += len(parts[-1])
            if self.received_nbytes > self._most_nbytes:
                raise self._too_large()
            more = message.get("more_body", False)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _too_large(self) -> Exception:
        return refused(f"the body has more than the {self._most_nbytes} bytes allowed.", 413)

    async def unless_gone(self, run: Coroutine[Any, Any, T]) -> T:
        """Return what `run` does, which is cancelled once the client has gone; the body was read.

        Raises
        ------
        ClientGone
            The client has gone.
        """
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

    async def begin(self, kind: str) -> None:
        """Begin a response that is written piece by piece."""
        self.status = 200
        headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-cache")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, piece: bytes, *, last: bool = False) -> None:
        """Write a piece of such a response."""
        self.sent_nbytes += len(piece)
        await self._send({"type": "http.response.body", "body": piece, "more_body": not last})

    async def answer(
        self, status: int, parts: Sequence[Part] = (), kind: str = "application/json",
        headers: Sequence[tuple[bytes, bytes]] = (), *, may_pack: bool = False,
    ) -> None:  # fmt: skip
        """Write the response, packed as the client accepts it if it may be."""
        encoding = ""
        if may_pack and b"accept-encoding" in self._headers:
            encoding, parts = packed(parts, self.header(b"accept-encoding"))
        self.status, self.sent_nbytes = status, sum(map(len, parts))
        written = [(b"content-length", b"%d" % self.sent_nbytes), *headers]
        if parts:
            written.append((b"content-type", kind.encode()))
        if encoding:
            written.append((b"content-encoding", encoding.encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": written})
        if self.sent_nbytes <= _ONE_PIECE_NBYTES:
            parts = [b"".join(parts)]
        last = len(parts) - 1
        for index, part in enumerate(parts):
            message = {"type": "http.response.body", "body": part, "more_body": index < last}
            await self._send(message)

    async def answer_json(
        self, document: Any, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Write a JSON document."""
        await self.answer(status, [dump_json(document)], headers=headers)
