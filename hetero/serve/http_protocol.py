"""uvicorn's HTTP protocol with bounds on a request's head: its bytes, and the time it takes."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hetero.serve.rest_response import dump_json

#: Bytes of a request's line and headers.
_MOST_NBYTES: Final = 65536
#: Seconds that they may take to arrive.
_PATIENCE_S: Final = 30.0
#: Bytes of a body that are kept before the application is asked to take them.
_PIECE_NBYTES: Final = 2**22


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection whose client is told off for a head that has no end."""

    _head_nbytes = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        if (made := transport.get_extra_info("socket")) and made.family != socket.AF_UNIX:
            # A response's head and body are two writes: without this the second waits for 40 ms.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._head_has_come()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, unless the head is too large."""
        self._head_nbytes += len(data)
        super().data_received(data)
        if self._timer is not None and self._head_nbytes > _MOST_NBYTES:
            self._refuse(b"431 Request Header Fields Too Large", "the request's head is too large.")

    def on_message_begin(self) -> None:
        """Note that a head begins."""
        super().on_message_begin()
        self._wait_for_head()

    def on_headers_complete(self) -> None:
        """Note that the head is there."""
        self._head_has_come()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body; the application takes it in large pieces, or whole."""
        if self.cycle.response_complete:
            return
        self.cycle.body += body
        if len(self.cycle.body) > _PIECE_NBYTES:
            self.flow.pause_reading()
            self.cycle.message_event.set()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, as the protocol has errors."""
        self._refuse(b"400 Bad Request", msg)

    def _wait_for_head(self) -> None:
        if self._timer is None:
            self._head_nbytes = 0
            self._timer = self.loop.call_later(_PATIENCE_S, self._too_slow)

    def _head_has_come(self) -> None:
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
