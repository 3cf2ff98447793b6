"""HTTP by httptools: requests read within bounds, large bodies to where they stay, and answers."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import sys
import time
import urllib.parse
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import httptools
import numpy as np
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from hetero.apps.serve.errors import refused
from hetero.apps.serve.options import ServerOptions
from hetero.apps.serve.rest_messages import dump_json, number_of
from hetero.apps.serve.tensors import Raw

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

Headers = Sequence[tuple[bytes, bytes]]
#: What remains to be done of an answer that has to wait.
Waits = Coroutine[Any, Any, None]
_access: Final = logging.getLogger("hetero.serve.access")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_LINES: Final = {s.value: b"%d %s" % (s.value, s.phrase.encode()) for s in HTTPStatus}
#: Bytes of a request's line and headers.
_MOST_NBYTES: Final = 65536
#: Seconds that they may take to arrive, and that a connection may be idle.
_PATIENCE_S: Final = 30.0
_IDLE_S: Final = 75.0
#: Bytes that are read at once, and of a body from which on the kernel writes it to where it stays.
READ_NBYTES: Final = 2**18
_LARGE_NBYTES: Final = 2**17
#: Bytes of bodies up to which their memory is kept for their connections' next ones, all together.
_KEPT_NBYTES: Final = 2**28
#: Addresses of tensors are multiples of that, as vectors of processors want.
_ALIGNED: Final = 64
#: Seconds that a client may take nothing of what it is sent.
_UNREAD_S: Final = 60.0
#: Bytes of a body up to which it is written in one piece with its head.
ONE_PIECE_NBYTES: Final = 65536
_NO_MEMORY: Final = np.empty(0, np.uint8)
_NOTHING: Final = memoryview(b"")


def trace_of(header: str) -> str:
    """Return a ``traceparent`` (W3C Trace Context) as it is; empty if it is none."""
    return header if _TRACEPARENT.fullmatch(header) else ""


class Connection(asyncio.BufferedProtocol):
    """A connection, as uvicorn's server makes and ends it; requests are answered one by one.

    `refusal`: returns why a request is refused whose body is not there yet, if it is.
    `answer`: answers a request that is there; returns what remains to be done if it has to wait.
    `place`: where what is to be parsed is read to; one for all connections of an event loop.
    """

    def __init__(
        self,
        *,
        options: ServerOptions,
        refusal: Callable[[Exchange], Exception | None],
        answer: Callable[[Exchange], Waits | None],
        place: memoryview,
        config: Config,
        server_state: ServerState,
        **_: object,
    ) -> None:
        self._options, self._place = options, place
        self._refusal_of, self._answer_to = refusal, answer
        self._server: Any = server_state
        #: Who may say for whom they ask.
        self.proxies: Final = _proxies(str(config.forwarded_allow_ips))
        self._loop = asyncio.get_running_loop()
        self._parser: Any = None
        self._parse_anew()
        self._url, self._headers = b"", dict[bytes, bytes]()
        self._is_head, self._head_nbytes = True, 0
        #: What is waited for, and until when.
        self._awaited = ""
        self._timer: asyncio.TimerHandle | None = None
        #: The request whose body is being read, its parts, or where a large one stays.
        self.reading: Exchange | None = None
        self._parts: list[bytes] = []
        self._body, self._at = _NOTHING, 0
        #: Memory of the last large body.
        self.memory = _NO_MEMORY
        #: The request that is being answered, by a task if it has to wait, and those after it.
        self.answering: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._pending: deque[Exchange] = deque()
        #: Whether the client takes what it is sent.
        self.can_write = asyncio.Event()
        self.can_write.set()
        self.is_lost = self._is_ending = False

    # The transport.

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        self.transport = transport
        self._server.connections.add(self)
        self._wait_for("head", _PATIENCE_S)
        self.peer = (transport.get_extra_info("peername") or ("",))[0]  # later it may be unknown
        made = transport.get_extra_info("socket")
        # A large response's head and body are two writes: the second would wait for 40 ms.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * _UNREAD_S))

    def connection_lost(self, exc: Exception | None) -> None:
        """Keep nothing; what runs for the client ends."""
        self._server.connections.discard(self)
        self.is_lost = True
        self._wait_for("")
        if self._task is not None:  # it may be about to begin
            self._loop.call_soon(self._task.cancel)
        self.answering = self.reading = self._task = self._parser = None
        self._pending.clear()
        self._parts, self._body, self.memory = [], _NOTHING, _NO_MEMORY
        self.can_write.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where what comes next belongs: a large body's place, else what is parsed."""
        return self._body[self._at :] if self._body else self._place

    def buffer_updated(self, nbytes: int) -> None:
        """Read on, within bounds."""
        if self._body:
            self._at += nbytes
            if self._at == len(self._body):
                self._parse_anew()  # it has not seen the body's end
                self.on_message_complete()
            return
        was_head = self._is_head
        self._feed(self._place[:nbytes])
        if self._is_head:
            self._head_nbytes += nbytes if was_head else 0
            if self._head_nbytes > _MOST_NBYTES:
                text = "the request's head is too large."
                self._refuse(b"431 Request Header Fields Too Large", text)
            elif self._awaited != "head":
                self._wait_for("head", _PATIENCE_S)
        elif self.reading is not None and self._awaited != "body":
            self._wait_for("body", self._options.body_s)

    def pause_writing(self) -> None:
        """Begin no more answers."""
        self.can_write.clear()

    def resume_writing(self) -> None:
        """Go on."""
        self.can_write.set()
        self._next()

    def shutdown(self) -> None:
        """End once the requests that are there are answered."""
        self._is_ending = True
        if self.is_last and self.answering is None:
            self.transport.close()

    # What the parser finds.

    def _feed(self, data: memoryview | bytes) -> None:
        """Parse on. A client that offers another protocol, as HTTP/2, is answered in this one."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if b"upgrade" not in self._headers:  # CONNECT
                self._refuse(b"400 Bad Request", "this is no proxy.")
                return
            lines = [b"%s %s HTTP/1.1" % (self._parser.get_method(), self._url)]
            lines += [b"%s: %s" % one for one in self._headers.items() if one[0] != b"upgrade"]
            self._parse_anew()
            self._feed(b"\r\n".join([*lines, b"", data[offer.args[0] :]]))
        except httptools.HttpParserError:
            self._refuse(b"400 Bad Request", "Invalid HTTP request received.")

    def _parse_anew(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def on_message_begin(self) -> None:
        """Note that a head begins."""
        self._url, self._headers = b"", {}
        self._is_head, self._head_nbytes = True, 0

    def on_url(self, url: bytes) -> None:
        """Take in a part of the URL."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Begin to read a body, unless the head alone says that it is not wanted."""
        if self._parser.should_upgrade() or self.transport.is_closing():  # or comes again, without
            return
        self._is_head = False
        headers, self._headers = self._headers, {}  # trailers are none
        method = self._parser.get_method().decode()
        path = urllib.parse.unquote(httptools.parse_url(self._url).path.decode())
        keeps = self._parser.get_http_version() != "1.0" and self._parser.should_keep_alive()
        self.reading = exchange = Exchange(self, method, path, headers, keeps)
        exchange.error = self._refusal_of(exchange)
        nbytes = number_of(headers.get(b"content-length", b""))
        if exchange.error is not None:
            return
        self._at = 0
        if nbytes > self._options.body_nbytes:
            self._too_large()
        elif nbytes >= _LARGE_NBYTES:
            self._make_room(nbytes, number_of(headers.get(b"inference-header-content-length", b"")))
        if headers.get(b"expect", b"").lower() == b"100-continue" and self.answering is None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _make_room(self, nbytes: int, head_nbytes: int) -> None:
        """Have a place for a body; what is behind its first bytes, tensors, is aligned."""
        memory = self.memory
        # The connection's own, this name and the argument: nobody else looks at it any more.
        is_free = sys.getrefcount(memory) <= 3
        if not is_free or not nbytes + _ALIGNED <= memory.size <= 2 * (nbytes + _ALIGNED):
            memory = np.empty(nbytes + _ALIGNED, np.uint8)  # pages come as they are written
            self.memory = _NO_MEMORY
            if sum(c.memory.size for c in self._server.connections) + memory.size <= _KEPT_NBYTES:
                self.memory = memory
        began = -(memory.ctypes.data + head_nbytes) % _ALIGNED
        self._body = memory.data[began : began + nbytes]

    def on_body(self, part: bytes) -> None:
        """Take in a part of a body."""
        exchange = self.reading
        if exchange is None or exchange.error is not None:
            return
        began, self._at = self._at, self._at + len(part)
        if self._body:
            self._body[began : self._at] = part
        elif self._at <= self._options.body_nbytes:
            self._parts.append(part)
        else:
            self._too_large()

    def on_message_complete(self) -> None:
        """Have the request answered once those before it are."""
        if (exchange := self.reading) is None:
            return
        exchange.body = self._body or b"".join(self._parts)
        self.reading, self._parts, self._body = None, [], _NOTHING
        self._wait_for("")
        if self.answering is None and not self._pending and self.can_write.is_set():
            self._answer(exchange)
        else:
            self._pending.append(exchange)
            self.transport.pause_reading()

    # Answers.

    def _answer(self, exchange: Exchange) -> None:
        self.answering = exchange
        if (waits := self._answer_to(exchange)) is not None:
            self._task = task = self._loop.create_task(waits)
            self._server.tasks.add(task)
            task.add_done_callback(self._server.tasks.discard)

    def _next(self) -> None:
        """Answer the next request, if there is one and it is its turn."""
        if self._pending and self.answering is None and self.can_write.is_set():
            exchange = self._pending.popleft()
            if not self._pending and exchange.keeps:
                self.transport.resume_reading()
            self._answer(exchange)

    @property
    def is_last(self) -> bool:
        """Whether the connection ends with the answer that is there to be written."""
        return self._is_ending and not self._pending and self.reading is None

    def answered(self, exchange: Exchange) -> None:
        """Go on behind an answer."""
        self.answering = self._task = None
        if self.is_lost:
            return
        if not exchange.keeps:
            self._pending.clear()
            self.transport.close()
        elif self._pending:
            self._loop.call_soon(self._next)
        elif self.reading is None and not self._is_head:
            self._wait_for("idle", _IDLE_S)

    def _wait_for(self, awaited: str, seconds: float = 0.0) -> None:
        self._awaited = awaited
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._too_slow) if awaited else None

    def _too_slow(self) -> None:
        if self._awaited == "idle":
            self.transport.close()
        elif self._awaited == "body":
            self._give_up(408, f"the body did not come within {self._options.body_s:g} s.")
        else:
            self._refuse(b"408 Request Timeout", f"no request within {_PATIENCE_S:g} s.")

    def _too_large(self) -> None:
        most = self._options.body_nbytes
        self._give_up(413, f"the body has more than the {most} bytes allowed.")

    def _give_up(self, status: int, why: str) -> None:
        """Answer the request that is being read without the rest of it, and end."""
        assert self.reading is not None
        self.reading.error, self.reading.keeps = refused(why, status), False
        self._parts, self._body = [], _NOTHING
        self.transport.pause_reading()
        self.on_message_complete()

    def _refuse(self, status: bytes, message: str) -> None:
        """Answer what is no request, or too slow, and end."""
        self._wait_for("")
        if self.transport.is_closing():
            return
        body = dump_json({"error": message})
        self.transport.write(
            b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (status, len(body), body)
        )
        self.transport.close()


@cache
def _proxies(hosts: str) -> Any:
    """Return what tells whether a host is one of those."""
    app: Any = None
    return ProxyHeadersMiddleware(app, hosts).trusted_hosts


class Exchange:
    """A request and the response to it.

    `headers`: by names in lower case.
    `keeps`: whether the connection goes on behind the response.
    """

    def __init__(
        self,
        connection: Connection,
        method: str,
        path: str,
        headers: Mapping[bytes, bytes],
        keeps: bool,
    ) -> None:
        self._connection: Final = connection
        self.method: Final = method
        self.path: Final = path
        self.headers: Final = headers
        self.keeps = keeps
        self.body: Raw = b""
        #: Why it is refused, whatever its body is.
        self.error: Exception | None = None
        #: What was answered: for the access log.
        self.status = self.sent_nbytes = 0
        #: Whether more events may come, and whether they come in chunks.
        self.has_events = self._is_chunked = False
        self._began_s = time.perf_counter()

    def header(self, name: bytes) -> str:
        """Return a header, by its name in lower case; empty where it was not sent."""
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def is_gone(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._connection.is_lost

    def answer(
        self,
        status: int,
        parts: Sequence[Raw] = (),
        kind: bytes = b"application/json",
        headers: Headers = (),
    ) -> None:
        """Write the response."""
        self.sent_nbytes = nbytes = sum(map(len, parts))
        told = b"content-length: %d\r\n" % nbytes
        for header in headers:
            told += b"%s: %s\r\n" % header
        if parts:
            told += b"content-type: %s\r\n" % kind
        pieces = [self._head(status, told), *(parts if self.method != "HEAD" else ())]
        for piece in pieces if nbytes > ONE_PIECE_NBYTES else [b"".join(pieces)]:
            self._write(piece)
        self._connection.answered(self)

    def answer_json(self, document: Any, status: int = 200, headers: Headers = ()) -> None:
        """Write a JSON document."""
        self.answer(status, [dump_json(document)], headers=headers)

    def begin_events(self) -> None:
        """Begin a response of server-sent events."""
        told = b"content-type: text/event-stream\r\ncache-control: no-cache\r\n"
        self.has_events, self._is_chunked = True, self.keeps
        if self.keeps:  # else it ends with the connection
            told += b"transfer-encoding: chunked\r\n"
        self._write(self._head(200, told))

    async def write_event(self, document: Any) -> None:
        """Write a JSON document as an event, once the client has taken those before it."""
        await self._connection.can_write.wait()
        self._write_piece(b"data: %s\n\n" % dump_json(document))

    def end_events(self, piece: bytes) -> None:
        """Write the last piece of such a response."""
        self._write_piece(piece)
        if self._is_chunked:
            self._write(b"0\r\n\r\n")
        self.has_events = False
        self._connection.answered(self)

    def _write_piece(self, piece: bytes) -> None:
        self.sent_nbytes += len(piece)
        if piece:
            self._write(b"%x\r\n%s\r\n" % (len(piece), piece) if self._is_chunked else piece)

    def _head(self, status: int, told: bytes) -> bytes:
        self.status = status
        self.keeps = self.keeps and not self._connection.is_last
        close = b"" if self.keeps else b"connection: close\r\n"
        return b"HTTP/1.1 %s\r\n%s%s\r\n" % (_LINES.get(status, b"%d " % status), told, close)

    def _write(self, piece: Raw) -> None:
        if not self.is_gone:
            self._connection.transport.write(piece)

    def log(self) -> None:
        """Log the request, which has ended, as a line of JSON."""
        proxies, told = self._connection.proxies, self.header(b"x-forwarded-for")
        hosts = [
            self._connection.peer,
            *(host.strip() for host in reversed(told.split(",")) if told),
        ]
        line: dict[str, Any] = {
            "client": next((host for host in hosts if host not in proxies), hosts[-1]),
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "took_s": round(time.perf_counter() - self._began_s, 6),
            "received_nbytes": len(self.body),
            "sent_nbytes": self.sent_nbytes,
        }
        if trace := trace_of(self.header(b"traceparent")):
            _, line["trace_id"], line["parent_id"], _ = trace.split("-")
        _access.info(dump_json(line).decode())
