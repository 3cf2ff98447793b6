"""Link between a worker and its parent process: signs of life, and calls that reach all workers.

Each message is one packet of a socket pair. A worker that starts first applies the calls that
changed its predecessors, such as the unloading of a model.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.msgpack import Decoder, encode

from hetero.apps.serve.errors import describe_error, protocol_error

_log = logging.getLogger(__name__)
#: Seconds between two signs of life.
ALIVE_S: Final = 1.0
#: Bytes of a message; a socket's default buffer holds three of them.
MAX_NBYTES: Final = 65536
#: Seconds that a new worker waits for its parent.
_START_S: Final = 60.0
#: `prctl` of Linux: the signal that this process receives when its parent ends.
_PR_SET_PDEATHSIG: Final = 1


class Heartbeat(msgspec.Struct, tag=True):
    """Sign of life of a worker's event loop."""


class Loaded(msgspec.Struct, tag=True):
    """The worker has loaded its models, and waits for earlier calls and for `Listen`."""


class Listen(msgspec.Struct, tag=True):
    """The worker may listen."""


class SharedCall(msgspec.Struct, tag=True):
    """A call of the protocol that every worker carries out."""

    number: int
    name: str
    fields: dict[str, Any]


class CallResult(msgspec.Struct, tag=True):
    """Status and message of a call that a worker, or all of them, have carried out."""

    number: int
    status: int = 200
    message: str = ""


#: Carries out a call in this process, by its name and fields.
CarryOut = Callable[[str, Mapping[str, Any]], None]
Message = Heartbeat | Loaded | Listen | SharedCall | CallResult
_DECODER: Final = Decoder(Message)


def send(link: socket.socket, message: Message) -> None:
    """Send a message.

    Raises OSError: the other side has ended, or does not read.
    """
    link.send(encode(message), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(link: socket.socket) -> Message | None:
    """Return the next message; None if the other side has ended."""
    data = link.recv(MAX_NBYTES)
    return _DECODER.decode(data) if data else None


def end_with_parent() -> None:
    """Let Linux kill this process when its parent ends; it may be stopped or hang then."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class WorkerLink:
    """A worker's end of the link.

    `descriptor`: the file descriptor of its socket.
    """

    def __init__(self, descriptor: int) -> None:
        end_with_parent()
        os.set_inheritable(descriptor, False)
        self._link = socket.socket(fileno=descriptor)
        self._results: dict[int, asyncio.Future[CallResult]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_calls = 0

    def catch_up(self, carry_out: CarryOut) -> None:
        """Apply the calls that the other workers have carried out before this one started."""
        self._link.settimeout(_START_S)
        send(self._link, Loaded())
        while not isinstance(message := receive(self._link), Listen):
            if message is None:
                raise SystemExit("the parent process has ended")
            if isinstance(message, SharedCall):
                with contextlib.suppress(Exception):  # it failed in the others as well
                    carry_out(message.name, message.fields)
        self._link.setblocking(False)

    async def run(self, carry_out: CarryOut) -> None:
        """Send signs of life and carry out calls until cancelled."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._link, self._read, carry_out)
        try:
            while True:
                with contextlib.suppress(BlockingIOError):  # the parent is stopped
                    send(self._link, Heartbeat())
                await asyncio.sleep(ALIVE_S)
        finally:
            loop.remove_reader(self._link)

    async def call_all(self, name: str, fields: Mapping[str, Any]) -> None:
        """Carry out a call in every worker; raise ProtocolError if one of them fails."""
        self._num_calls += 1
        number = self._num_calls
        message = SharedCall(number, name, dict(fields))
        if len(encode(message)) > MAX_NBYTES:
            raise protocol_error(f"the request has more than {MAX_NBYTES} bytes.", 413)
        future = self._results[number] = asyncio.get_running_loop().create_future()
        try:
            send(self._link, message)
            result = await future
        except OSError as error:
            raise protocol_error("the server's other processes do not answer.", 503) from error
        finally:
            del self._results[number]
        if result.status != 200:
            raise protocol_error(result.message, result.status)

    def _read(self, carry_out: CarryOut) -> None:
        message = receive(self._link)
        if message is None:
            asyncio.get_running_loop().remove_reader(self._link)
        elif isinstance(message, SharedCall):
            task = asyncio.ensure_future(self._carry_out(carry_out, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif isinstance(message, CallResult) and message.number in self._results:
            future = self._results[message.number]
            if not future.done():
                future.set_result(message)

    async def _carry_out(self, carry_out: CarryOut, call: SharedCall) -> None:
        result = CallResult(call.number)
        try:
            await asyncio.to_thread(carry_out, call.name, call.fields)
        except Exception as error:
            if (status := describe_error(error)[0]) == 500:
                _log.error("call %s of another worker", call.name, exc_info=error)
            result = CallResult(call.number, status, describe_error(error)[1][:1000])
        with contextlib.suppress(OSError):
            send(self._link, result)
