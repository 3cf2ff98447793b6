"""Acceptor: takes connections from a listening socket, and drops those whose clients have left.

asyncio and uvloop create a transport, a protocol and a task for each connection. A client that
connects and leaves without end is faster than that, and fills the kernel's queue in which the
connections of other clients wait. To recognise such a connection takes a tenth of that time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_log = logging.getLogger(__name__)

#: Connections that wait to be accepted; Linux's default maximum. A client beyond retries after 1 s.
BACKLOG: Final = 4096
#: Connections that are accepted before the event loop continues with others, and those among them
#: that are kept.
MAX_ACCEPTED: Final = 256
MAX_KEPT: Final = 16
#: Seconds until the next attempt if the process has no file descriptor left; asyncio's value.
_RETRY_S: Final = 1.0
#: Linux's state of a connection whose client still sends; the first byte of TCP_INFO.
_ESTABLISHED: Final = 1


class Acceptor:
    """Accepts connections on the running event loop until it is closed.

    `listener`: the socket, which this object owns; it listens from `start` on.
    `make_protocol`: makes the protocol of a connection.
    `tls`: the context of TLS, if any.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        #: Connections that are being opened; with TLS that includes the handshake.
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = self._lacks_descriptors = False

    def start(self) -> None:
        """Begin to accept."""
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        self._resume()

    def close(self) -> None:
        """Stop accepting; connections that are open stay open."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()

    async def wait_closed(self) -> None:
        """Return: `close` needs no time."""

    def _resume(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        """Accept some of the waiting connections; the event loop calls this again for more."""
        num_kept = 0
        for _ in range(MAX_ACCEPTED):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._pause(error)
                return
            self._lacks_descriptors = False
            if has_left(connection):
                connection.close()
                continue
            task = self._loop.create_task(self._open(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            num_kept += 1
            if num_kept == MAX_KEPT:
                return

    def _pause(self, error: OSError) -> None:
        """Accept again in a while; the kernel reports the waiting connections all the time."""
        if not self._lacks_descriptors:
            _log.error("cannot accept connections; retrying every %g s: %s", _RETRY_S, error)
        self._lacks_descriptors = True
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(_RETRY_S, self._resume)

    async def _open(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        # The client may leave during the handshake, or send no TLS.
        with suppress(OSError, asyncio.TimeoutError):
            await self._loop.connect_accepted_socket(self._make_protocol, connection, ssl=self._tls)


def has_left(connection: socket.socket) -> bool:
    """Return whether a client has closed its connection, or its sending side.

    uvicorn answers neither: it closes a connection whose client sends no more.
    """
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED
