"""An HTTP request and its response, over ASGI."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, Protocol

import numpy as np

from hetero.apps.serve.errors import protocol_error
from hetero.apps.serve.options import ServerOptions
from hetero.apps.serve.rest_messages import dump_json, parse_number
from hetero.apps.serve.service import Reservation
from hetero.apps.serve.tensors import Raw
from hetero.devices.errors import RequestCancelledError

Headers = Sequence[tuple[bytes, bytes]]
#: An ASGI message.
Event = dict[str, Any]
#: Responses up to this size are sent in one write.
ONE_WRITE_NBYTES: Final = 65536
#: The header with the length of a body's JSON, if raw numbers follow it.
JSON_NBYTES_HEADER: Final = b"inference-header-content-length"
#: The scope's key of a function that receives the rest of a body in the application's memory.
RECEIVE_INTO: Final = "hetero.receive_into"
#: The scope's key of True if the whole body has arrived before the application starts.
IS_RECEIVED: Final = "hetero.is_received"
#: Alignment of numpy's arrays, which suffices for every element type.
_ALIGNMENT: Final = 16
_access: Final = logging.getLogger("hetero.serve.access")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def trace_of(header: str) -> str:
    """Return a ``traceparent`` (W3C Trace Context) unchanged; empty if it is malformed."""
    return header if _TRACEPARENT.fullmatch(header) else ""


class InPlaceReader(Protocol):
    """Receives the rest of a body in place."""

    def take(self) -> int:
        """Return the number of bytes that have arrived since the last call."""


class Exchange:
    """A request and its response.

    Attributes
    ----------
    headers : mapping of bytes to bytes
        The request's headers by lower-case name.
    body : bytes or memoryview
        The request's body; empty until `read` returns.
    reservation : Reservation
        Bytes of the body in the budget of all bodies.
    is_disconnected : bool
        Whether the client has closed the connection before the response.
    has_events : bool
        Whether the response is a stream of server-sent events that has begun.
    """

    def __init__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[Event]],
        send: Callable[[Event], Awaitable[None]],
        reservation: Reservation,
    ) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self.method: Final[str] = scope["method"]
        self.path: Final[str] = scope["path"]
        self.headers: Final[Mapping[bytes, bytes]] = dict(scope["headers"])
        self.reservation: Final = reservation
        self.body: Raw = b""
        self.status = self.received_nbytes = self.sent_nbytes = 0
        self.has_events = self.is_disconnected = False
        #: Receives the rest of the body in place; None if the server cannot do that. It is removed
        #: from the scope, because it refers to the connection, and that to the scope.
        self._receive_into: Callable[[memoryview], InPlaceReader] | None
        self._receive_into = scope.pop(RECEIVE_INTO, None)
        self._head: Headers | None = ()
        self._parts: Sequence[Raw] = ()
        self._start_s = time.perf_counter()

    def header(self, name: bytes) -> str:
        """Return a header by its lower-case name; empty if the client did not send it."""
        return self.headers.get(name, b"").decode("latin-1")

    async def read(self, options: ServerOptions) -> None:
        """Read the body; refuse one that is too large or too slow, or has no room in memory."""
        limit, parts, is_complete = options.body_nbytes, list[bytes](), False
        announced_nbytes = parse_number(self.headers.get(b"content-length", b""))
        if announced_nbytes > limit:
            raise _too_large(limit)
        memory, reader = memoryview(b""), None
        is_received = self._scope.get(IS_RECEIVED, False)
        timer = nullcontext() if is_received else asyncio.timeout(options.body_s)
        try:
            async with timer:
                while not is_complete:
                    event = await self._receive()
                    if event["type"] == "http.disconnect":
                        self.is_disconnected = True
                        raise RequestCancelledError("the client has disconnected.")
                    if reader is None:
                        parts.append(event["body"])
                        nbytes = len(parts[-1])
                    else:
                        nbytes = reader.take()
                    self.received_nbytes += nbytes
                    if self.received_nbytes > limit:
                        raise _too_large(limit)
                    self.reservation.add(nbytes)
                    is_complete = not event["more_body"]
                    if not is_complete and reader is None and self._receive_into is not None:
                        memory = self._body_memory(announced_nbytes)
                        memory[: self.received_nbytes] = parts[0]
                        reader = self._receive_into(memory[self.received_nbytes :])
        except TimeoutError:
            raise protocol_error(
                f"the body did not arrive within {options.body_s:g} s.", 408
            ) from None
        if reader is None and len(parts) > 1:
            memory, at = self._body_memory(self.received_nbytes), 0
            for part in parts:
                memory[at : at + len(part)] = part
                at += len(part)
        self.body = memory.toreadonly() if memory else parts[0]

    def _body_memory(self, nbytes: int) -> memoryview:
        """Return memory for the body, in which raw numbers begin at an aligned address."""
        json_nbytes = parse_number(self.headers.get(JSON_NBYTES_HEADER, b""))
        start = -json_nbytes % _ALIGNMENT
        return np.empty(start + nbytes, np.uint8).data[start:]

    async def cancel_on_disconnect(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work that may take long; cancel it if the client disconnects."""
        task = asyncio.current_task()
        assert task is not None

        is_working = True

        def cancel(_: object) -> None:
            # The loop may call this after the work, if both end in the same step.
            if is_working:
                self.is_disconnected = True
                task.cancel()

        disconnect = asyncio.ensure_future(self._receive())
        disconnect.add_done_callback(cancel)
        try:
            await work
        finally:
            is_working = False
            disconnect.remove_done_callback(cancel)
            disconnect.cancel()
            if self.is_disconnected:
                task.uncancel()

    def respond(
        self,
        status: int,
        parts: Sequence[Raw] = (),
        content_type: bytes = b"application/json",
        headers: Headers = (),
    ) -> None:
        """Set the response."""
        self.status, self._parts = status, parts
        self.sent_nbytes = sum(map(len, parts))
        types = [(b"content-type", content_type)] if parts else []
        self._head = [(b"content-length", b"%d" % self.sent_nbytes), *types, *headers]

    def respond_json(self, document: Any, status: int = 200, headers: Headers = ()) -> None:
        """Set a JSON document as the response."""
        self.respond(status, [dump_json(document)], headers=headers)

    def begin_events(self) -> None:
        """Begin a response of server-sent events."""
        self.has_events, self.status = True, 200
        self._head = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]

    async def write_event(self, document: Any) -> None:
        """Write a JSON document as an event; wait while the client does not read."""
        await self._send_head()
        await self._send_body(b"data: %s\n\n" % dump_json(document), more=True)

    def end_events(self, last: bytes) -> None:
        """Set the last bytes of a stream of events."""
        self._parts, self.has_events = [last], False

    async def send(self) -> None:
        """Send the response, or the rest of it, unless the client has disconnected.

        Returns once little of a large response is left in memory.
        """
        parts, self._parts = self._parts, ()
        if self.is_disconnected:
            return
        if self.method == "HEAD":
            parts = ()
        elif self.sent_nbytes <= ONE_WRITE_NBYTES:
            parts = [b"".join(parts)]
        else:
            parts = [*parts, b""]  # the end is sent after the client has read most of the rest
        *first, last = parts or [b""]
        await self._send_head()
        for part in first:
            await self._send_body(part, more=True)
        await self._send_body(last, more=False)

    async def _send_head(self) -> None:
        if self._head is not None:
            headers, self._head = self._head, None
            start = {"type": "http.response.start", "status": self.status, "headers": headers}
            await self._send(start)

    async def _send_body(self, part: Raw, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": part, "more_body": more})

    def log(self) -> None:
        """Log the request as a line of JSON."""
        line: dict[str, Any] = {
            "client": (self._scope.get("client") or ("",))[0],
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "took_s": round(time.perf_counter() - self._start_s, 6),
            "received_nbytes": self.received_nbytes,
            "sent_nbytes": self.sent_nbytes,
        }
        if trace := trace_of(self.header(b"traceparent")):
            _, line["trace_id"], line["parent_id"], _ = trace.split("-")
        _access.info(dump_json(line).decode())


def _too_large(limit: int) -> Exception:
    return protocol_error(f"the body has more than the {limit} bytes allowed.", 413)
