"""uvicorn's HTTP protocol with bounds on a request's head, and bodies read without copies."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import httptools
import numpy as np
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from hetero.serve.http_exchange import BEGUN, BODY
from hetero.serve.rest_messages import dump_json, number_of

#: Bytes of a request's line and headers.
_MOST_NBYTES: Final = 65536
#: Seconds that they may take to arrive.
_PATIENCE_S: Final = 30.0
#: Bytes of a body of unknown length that are kept before the application is asked to take them.
_PIECE_NBYTES: Final = 2**22
#: Bytes of a body from which on the kernel writes it to where it stays.
_LARGE_NBYTES: Final = 2**17
#: Bytes of bodies up to which their memory is kept for their connections' next ones, all together.
_KEPT_NBYTES: Final = 2**28
#: Addresses of tensors are multiples of that, as vectors of processors want.
_ALIGNED: Final = 64
#: Seconds that a client may take nothing of what it is sent.
_UNREAD_S: Final = 60.0
#: Seconds that a head waits for its body before the application is asked, which has bounds for it.
_HELD_S: Final = 0.05
_NO_MEMORY: Final = np.empty(0, np.uint8)


class ServingProtocol(HttpToolsProtocol):
    """A connection.

    `most_nbytes`: bytes that a body may have; of those that say that they have more none is read.
    `answer_now`: answers small requests without a task of the loop; see `ServingApp.answer_now`.
    """

    def __init__(
        self, *arguments: Any, most_nbytes: int,
        answer_now: Callable[[str, Mapping[bytes, bytes], bytes], object], **named: Any,
    ) -> None:  # fmt: skip
        super().__init__(*arguments, **named)
        self._most_nbytes, self._answer_now = most_nbytes, answer_now
        #: Whether the application is asked once the body is there; whether it need not be asked.
        self._is_held = self._is_answered = False
        self._is_head, self._head_nbytes = True, 0
        self._timer: asyncio.TimerHandle | None = None
        self._reader: _BodyReader | None = None
        #: The request that is being answered, or was last.
        self._running: RequestResponseCycle | None = None
        #: Memory of the last large body.
        self.memory = _NO_MEMORY

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait_for_head()
        if (made := transport.get_extra_info("socket")) and made.family != socket.AF_UNIX:
            # A response's head and body are two writes: without this the second waits for 40 ms.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            unread_ms = round(1000 * _UNREAD_S)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more, and keep nothing."""
        self._head_has_come()
        self._is_held = False
        self._unset_keepalive_if_required()  # uvicorn has it go on after a reset
        self._reader, self.memory = None, _NO_MEMORY
        self.pipeline.clear()
        # uvicorn tells it, and would tell the newest request, which may wait for its turn.
        self.cycle = self._running  # type: ignore[assignment]  # None, as before the first
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        """Read on, unless the head is too large."""
        was_head = self._is_head
        self._feed(data)
        if self._is_head:
            self._wait_for_head()
            self._head_nbytes += len(data) if was_head else 0
            if self._head_nbytes > _MOST_NBYTES:
                text = "the request's head is too large."
                self._refuse(b"431 Request Header Fields Too Large", text)
        elif self._reader is not None:
            self.switch(self._reader)
        elif self._is_held:
            self.loop.call_later(_HELD_S, self._ask)

    def _feed(self, data: bytes) -> None:
        """Parse on. A client that offers another protocol, as HTTP/2, is answered in this one."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if all(name != b"upgrade" for name, _ in self.headers):  # CONNECT
                self.send_400_response("this is no proxy.")
                return
            lines = [b"%s %s HTTP/1.1" % (self.parser.get_method(), self.url)]
            lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
            self._parse_anew()
            self._feed(b"\r\n".join([*lines, b"", data[offer.args[0] :]]))
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _parse_anew(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def on_message_begin(self) -> None:
        """Note that a head begins."""
        super().on_message_begin()
        self._is_head, self._head_nbytes = True, 0

    def on_headers_complete(self) -> None:
        """Note that the head is there; what may be answered at once waits for its body."""
        if self.parser.should_upgrade():  # it comes again, without the offer
            return
        self._head_has_come()
        self._is_held = (
            self.url.endswith(b"/infer")
            and (self.cycle is None or self.cycle.response_complete)
            and self.parser.should_keep_alive()
            and self.parser.get_http_version() == "1.1"
            and not self.expect_100_continue
            and not self.flow.write_paused
        )
        if not self._is_held:
            super().on_headers_complete()

    def _ask(self, begun: object = None) -> None:
        """Ask the application for the answer to a request that was held."""
        if self._is_held:
            self._is_held = False
            super().on_headers_complete()
            if begun is not None:
                self.cycle.scope[BEGUN] = begun  # type: ignore[typeddict-unknown-key]  # ours

    def shutdown(self) -> None:
        """End once the request that is there is answered."""
        self._ask()
        super().shutdown()

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body; the application takes it whole, or in large pieces."""
        if self._is_held:
            answer, headers = None, dict(self.headers)
            if headers.get(b"content-length") == b"%d" % len(body):
                answer = self._answer_now(self.url.decode("latin-1"), headers, body)
            if type(answer) is bytes:
                self._is_held, self._is_answered = False, True
                self.transport.write(answer)
                self.on_response_complete()
                return
            self._ask(answer)
            del answer  # an error leads to this frame
        cycle = self.cycle
        if cycle.response_complete:
            return
        if not cycle.body and cycle.more_body:
            headers = dict(cycle.scope["headers"])
            length = int(headers.get(b"content-length", -1))
            if length == len(body):
                cycle.scope[BODY] = body  # type: ignore[typeddict-unknown-key]  # ours
                return
            if _LARGE_NBYTES <= length <= self._most_nbytes:
                head = headers.get(b"inference-header-content-length", b"")
                self._reader = _BodyReader(self, length, number_of(head), body)
                return
        cycle.body += body
        if len(cycle.body) > _PIECE_NBYTES:
            self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Note that the request is there."""
        if self.parser.should_upgrade():
            return
        self._ask()  # it has no body
        if not self._is_answered:
            super().on_message_complete()
        self._is_answered = False

    def body_has_come(self, body: memoryview) -> None:
        """Take over again: a large body is there, which the parser has not seen."""
        self._reader = None
        self._parse_anew()
        self.cycle.scope[BODY] = body  # type: ignore[typeddict-unknown-key]  # ours
        self.switch(self)
        self.on_message_complete()

    def keep(self, memory: np.ndarray) -> None:
        """Keep memory for the next large body, unless connections keep too much already."""
        self.memory = _NO_MEMORY
        kept = sum(c.memory.size for c in self.connections if isinstance(c, ServingProtocol))
        if kept + memory.size <= _KEPT_NBYTES:
            self.memory = memory

    def switch(self, protocol: asyncio.BaseProtocol) -> None:
        """Have the transport give what it reads to a protocol."""
        self.transport.set_protocol(protocol)
        if not self.flow.read_paused:  # a transport looks at its protocol when it begins to read
            self.transport.pause_reading()
            self.transport.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, as the protocol has errors."""
        self._refuse(b"400 Bad Request", msg)

    def _wait_for_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(_PATIENCE_S, self._too_slow)

    def _head_has_come(self) -> None:
        self._is_head = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._refuse(b"408 Request Timeout", f"no request within {_PATIENCE_S:g} s.")

    def _refuse(self, status: bytes, message: str) -> None:
        self._head_has_come()
        if self.transport.is_closing():
            return
        body = dump_json({"error": message})
        self.transport.write(
            b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (status, len(body), body)
        )
        self.transport.close()


class _BodyReader(asyncio.BufferedProtocol):
    """Reads the rest of a body of known length to where it stays.

    What is behind its first `head_nbytes` bytes, tensors, is aligned.
    """

    def __init__(
        self, connection: ServingProtocol, nbytes: int, head_nbytes: int, first: bytes
    ) -> None:
        self._connection = connection
        memory = connection.memory
        # The connection's own, this name and the argument: nobody else looks at it any more.
        is_free = sys.getrefcount(memory) <= 3
        if not is_free or not nbytes + _ALIGNED <= memory.size <= 2 * (nbytes + _ALIGNED):
            memory = np.empty(nbytes + _ALIGNED, np.uint8)  # pages come as they are written
            connection.keep(memory)
        began = -(memory.ctypes.data + head_nbytes) % _ALIGNED
        self._body = memory.data[began : began + nbytes]
        self._body[: len(first)] = first
        self._at = len(first)

    def pause_writing(self) -> None:
        """Tell the connection."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Tell the connection."""
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the connection."""
        self._body = memoryview(b"")
        self._connection.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where what comes next belongs."""
        return self._body[self._at :]

    def buffer_updated(self, nbytes: int) -> None:
        """Note that so many bytes have come."""
        self._at += nbytes
        if self._at == len(self._body):
            body, self._body = self._body, memoryview(b"")  # a transport may keep this object
            self._connection.body_has_come(body)
