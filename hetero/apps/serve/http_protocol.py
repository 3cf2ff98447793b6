"""uvicorn's HTTP/1.1 protocol with the bounds that it leaves to a proxy in front of it.

uvicorn 0.54 keeps heads and trailers of any size, waits for a head without a limit, parses tiny
chunks and thousands of pipelined requests at once, leaves the first of them running after the
client has disconnected, and drops the body of a request that offers HTTP/2, as Java's client does.
"""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus
from typing import Any, Final

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from hetero.apps.serve.exchange import IS_RECEIVED, RECEIVE_INTO
from hetero.apps.serve.rest_messages import dump_json, parse_number

#: Bytes of a request's head, of its trailers, and of anything else between two parser events.
MAX_HEAD_NBYTES: Final = 65536
#: Bytes of a request's path and query, and headers of a request; as many as nginx and Apache take.
MAX_URL_NBYTES: Final = 8192
MAX_HEADERS: Final = 100
#: Bytes that are parsed at once.
SLICE_NBYTES: Final = 16384
#: Bytes of a body that wait for the application before the connection stops reading: as many as
#: event loops read at once, so that only an application that lags behind stops it.
MAX_UNREAD_NBYTES: Final = 2**18
#: Seconds that a head may take.
HEAD_S: Final = 30.0
#: Chunks of a body whose mean size is not checked, and the least mean size of more of them.
FREE_CHUNKS: Final = 1024
MIN_CHUNK_NBYTES: Final = 64
#: Bytes of a refused body that are read, so that the client reads the response before a reset.
MAX_DISCARDED_NBYTES: Final = 2**26
#: Size of a body from which the application receives its rest in place. The first reads are not in
#: place, so a body of 0.6 MB takes as long either way, but one of 10 MB half of the processor time.
MIN_IN_PLACE_NBYTES: Final = 2**20
#: Response that precedes the one to a request with ``Expect: 100-continue``.
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Flow(FlowControl):
    """Flow control that does not read while data waits to be parsed."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        #: Data that is parsed after the requests before it.
        self.unparsed = b""

    def resume_reading(self) -> None:
        """Read again."""
        if not self.unparsed:
            super().resume_reading()


class ResponseWriter:
    """Transport of one response with a body: sends the head together with the body's first part.

    As two writes, both cost the server a call of the kernel, and the client another read.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self._has_head = False
        self.is_closing = transport.is_closing

    def write(self, data: bytes | memoryview) -> None:
        """Write data: the head first, then parts of the body."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.writelines([head, data])
        elif self._has_head or data == _CONTINUE:
            self._transport.write(data)
        else:
            self._head, self._has_head = bytes(data), True

    def close(self) -> None:
        """Write a head that has no body, and close the connection."""
        if self._head:
            self.write(b"")
        self._transport.close()


class BodyReader(asyncio.BufferedProtocol):
    """Protocol of a connection while it receives the rest of a body in place.

    The parser would copy each part, and the application would have to join them.
    """

    def __init__(self, connection: BoundedHttpProtocol, memory: memoryview) -> None:
        self._connection = connection
        self._memory = memory
        self._num_taken = 0
        #: Bytes that have arrived.
        self.num_received = 0

    def take(self) -> int:
        """Return the number of bytes that have arrived since the last call."""
        before, self._num_taken = self._num_taken, self.num_received
        return self._num_taken - before

    @property
    def num_untaken(self) -> int:
        """Bytes that `take` has not returned yet."""
        return self.num_received - self._num_taken

    def discard(self) -> None:
        """Release the memory; read and discard the rest."""
        self._memory = memoryview(b"")

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory of the next part."""
        if self._memory:
            return self._memory[self.num_received :]
        return memoryview(bytearray(min(SLICE_NBYTES, self._connection.num_expected)))

    def buffer_updated(self, nbytes: int) -> None:
        """Count a part."""
        self.num_received += nbytes
        self._connection.count_in_place(nbytes)

    def eof_received(self) -> None:
        """Close the connection."""
        self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request."""
        self.discard()
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait before the next write."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Write again."""
        self._connection.resume_writing()


class BoundedHttpProtocol(HttpToolsProtocol):
    """HTTP/1.1 connection with bounded heads, trailers and chunks."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        #: Bytes received since the parser last reported an event.
        self._silent_nbytes = 0
        self._data: bytes | memoryview = b""
        self._is_in_head = False
        self._num_chunks = self._body_nbytes = self._discarded_nbytes = 0
        #: Bytes of the present body that are still to come, if the head announced them.
        self.num_expected = 0
        #: Receives the rest of the present body in place; None if the parser does.
        self._reader: BodyReader | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        #: The request that is being answered.
        self._current: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.flow: _Flow = _Flow(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the requests; uvicorn ends only the last one of a pipeline."""
        self._stop_head_timer()
        super().connection_lost(exc)
        if self._current is not None:
            self._current.disconnected = True
            self._current.message_event.set()
        self.pipeline.clear()
        self.flow.unparsed = b""
        # Without reference cycles its memory is free at once.
        self.cycle = self._current = self._reader = None  # type: ignore[assignment]  # as at first

    def data_received(self, data: bytes) -> None:
        """Parse data; close the connection if it exceeds a bound.

        A read may hold thousands of requests, each of which costs kilobytes when it is parsed, so
        parsing stops while requests are waiting. A read within a body holds no other request.
        """
        start = 0
        while start < len(data):
            if self.pipeline:
                self.flow.unparsed += data[start:]
                return
            if self.transport.is_closing():
                return
            is_within_body = len(data) - start <= self.num_expected
            end = len(data) if is_within_body else start + SLICE_NBYTES
            if start == 0 and end < len(data):
                # Without the head, the rest of the read is one part of the body and not copied.
                head_nbytes = data.find(b"\r\n\r\n", 0, end) + 4
                end = head_nbytes if head_nbytes >= 4 else end
            self._parse(data if end - start >= len(data) else memoryview(data)[start:end])
            start = end

    def _parse(self, data: bytes | memoryview) -> None:
        self._silent_nbytes += len(data)
        self._data = data
        super().data_received(data)  # type: ignore[arg-type]  # the parser takes any buffer
        self._data = b""
        if self._silent_nbytes > MAX_HEAD_NBYTES:
            self._refuse_large_head()
        elif self._is_in_head:
            self._start_head_timer()

    def _parse_rest(self) -> None:
        """Parse the data that was left while requests were waiting."""
        data, self.flow.unparsed = self.flow.unparsed, b""
        self.data_received(data)
        if not self.pipeline:
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._is_in_head = True
        self._num_chunks = self._body_nbytes = self._discarded_nbytes = 0
        self.num_expected = 0

    def on_url(self, url: bytes) -> None:
        """Append a part of the URL."""
        super().on_url(url)
        if len(self.url) > MAX_URL_NBYTES:
            self.refuse(414, f"the URL has more than {MAX_URL_NBYTES} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Append a header."""
        if len(self.headers) < MAX_HEADERS:
            super().on_header(name, value)
        elif self._is_in_head:  # trailers are ignored
            self.refuse(431, f"the head has more than {MAX_HEADERS} headers.")
            raise ValueError("too many headers")  # ends the parser

    def on_headers_complete(self) -> None:
        """Begin to read the body; trailers do not become headers."""
        # The headers have no more bytes than came since the last request, and in its last slice.
        may_be_large = self._silent_nbytes + SLICE_NBYTES > MAX_HEAD_NBYTES
        self._silent_nbytes, self._is_in_head = 0, False
        self._stop_head_timer()
        if may_be_large and sum(len(n) + len(value) for n, value in self.headers) > MAX_HEAD_NBYTES:
            self._refuse_large_head()
        if self.transport.is_closing():
            return
        headers = dict(self.headers)
        if b"transfer-encoding" not in headers:
            self.num_expected = parse_number(headers.get(b"content-length", b""))
            if self.num_expected >= MIN_IN_PLACE_NBYTES:
                self.scope[RECEIVE_INTO] = self.receive_into  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()
        if not self.parser.should_upgrade():
            self.headers = []
            if not self.pipeline:
                self._current = self.cycle

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start to answer a request; the head of its response waits for a body, if it has one."""
        if cycle.scope["method"] != "HEAD":
            cycle.transport = ResponseWriter(cycle.transport)  # type: ignore[assignment]  # the methods that it uses
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """Append a part to the body."""
        self._silent_nbytes = 0
        if self._accept_part(len(body)):
            self._append(self.cycle, body)

    def _accept_part(self, nbytes: int) -> bool:
        """Count a part of the body; return whether the application still needs it."""
        if self.transport.is_closing():
            return False
        self._num_chunks += 1
        self._body_nbytes += nbytes
        self.num_expected = max(0, self.num_expected - nbytes)
        if self._num_chunks > FREE_CHUNKS + self._body_nbytes / MIN_CHUNK_NBYTES:
            self.refuse(400, f"the body comes in chunks of fewer than {MIN_CHUNK_NBYTES} bytes.")
            return False
        if self.cycle.response_complete:
            self._discarded_nbytes += nbytes
            if self._discarded_nbytes > MAX_DISCARDED_NBYTES:
                self.transport.close()
            return False
        return True

    def receive_into(self, memory: memoryview) -> BodyReader:
        """Receive the rest of the present body in place, of which the application has all else.

        The application still has to call `receive`, which then returns empty parts: it returns at
        the end of the body, and once many bytes have arrived.
        """
        assert len(memory) == self.num_expected
        assert not self.cycle.body
        self._reader = BodyReader(self, memory)
        self._set_protocol(self._reader)
        return self._reader

    def count_in_place(self, nbytes: int) -> None:
        """Count a part that was received in place, and end a complete body."""
        reader = self._reader
        if reader is None:  # the connection is lost
            return
        self._unset_keepalive_if_required()
        is_needed = self._accept_part(nbytes)
        if self.transport.is_closing():
            return
        if not self.num_expected:
            self._reader = None
            self._set_protocol(self)
            self._begin_parsing()  # the parser still waits for the body
            self.on_message_complete()
        elif is_needed and reader.num_untaken > MAX_UNREAD_NBYTES:
            self.cycle.message_event.set()

    def _set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the receiver of the connection's data."""
        is_reading = self.transport.is_reading()
        self.transport.pause_reading()  # uvloop begins to read by one kind of protocol
        self.transport.set_protocol(protocol)
        if is_reading:
            self.transport.resume_reading()

    def _begin_parsing(self) -> None:
        """Begin to parse a request with a new parser."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _append(self, cycle: Any, body: bytes) -> None:
        """Pass a part of the body to the application; the first part is not copied."""
        if not cycle.body:
            cycle.body = body
        else:
            if type(cycle.body) is bytes:
                cycle.body = bytearray(cycle.body)
            cycle.body += body
        if len(cycle.body) > MAX_UNREAD_NBYTES:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """End the body."""
        self._silent_nbytes = 0
        if not self.transport.is_closing():
            self.scope[IS_RECEIVED] = True  # type: ignore[typeddict-unknown-key]
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Continue with the next request."""
        self._current = self.pipeline[-1][0] if self.pipeline else None
        if self._reader is not None:
            self._reader.discard()
        super().on_response_complete()
        if self.flow.unparsed and not self.pipeline:
            self.loop.call_soon(self._parse_rest)

    def _should_upgrade(self) -> bool:
        """Return True: uvicorn leaves a request with an offer to `handle_websocket_upgrade`."""
        return True

    def handle_websocket_upgrade(self) -> None:
        """Answer a request that offers another protocol by HTTP/1.1: parse it without the offer."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.refuse(400, "CONNECT: this server is no proxy.")
            return
        offer: Any = sys.exception()
        head = [b"%s %s HTTP/1.1" % (method, self.url)]
        head += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        rest = self._data[offer.args[0] :]
        self._begin_parsing()
        self._parse(b"\r\n".join([*head, b"", rest]))

    def refuse(self, status: int, message: str) -> None:
        """Answer a request that is not passed on, unless its response has begun; then close."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = dump_json({"error": message})
            self.transport.write(
                b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n%s"
                % (status, HTTPStatus(status).phrase.encode(), len(body), body)
            )
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP."""
        self.refuse(400, msg)

    def _refuse_large_head(self) -> None:
        self.refuse(431, f"the head or trailers have more than {MAX_HEAD_NBYTES} bytes.")

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._refuse_slow_head)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_slow_head(self) -> None:
        self.refuse(408, f"no complete head within {HEAD_S:g} s.")
