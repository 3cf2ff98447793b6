"""The envelope: a message as frames, a small head with large tensors beside it, and back.

The first frame is the magic "HTE", the version's byte, the kind's byte, and msgpack of the message,
whose values are the trees of `value_tree`. The contents of a small tensor lie in the tree itself,
of others in a frame each, or wherever a store of the channel's put them. No pickle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args, get_type_hints

import numpy as np
from msgspec.msgpack import Decoder, Encoder

from hetero.devices.errors import BlobError
from hetero.devices.plugin.program import Value
from hetero.devices.request.request import DEFAULT_REQUEST
from hetero.scheduler.formats.error_entries import ErrorEntry, error_entry, error_of
from hetero.scheduler.formats.unpack import refuse
from hetero.scheduler.formats.value_tree import check_nesting, decode_extension, tree_of
from hetero.scheduler.vocabulary.messages import Failure, Keep, Message, Outputs, Task, Values

#: Raised whenever the form changes; other versions are refused by name.
VERSION: Final = 8
#: Tensors of up to so many bytes lie in the head: another frame costs as much as copying them
#: twice (ZeroMQ 4.3.5 over ipc, pyzmq 27: 3 to 5 microseconds).
INLINE_NBYTES: Final = 16 * 1024

_PREFIX: Final = b"HTE" + bytes([VERSION])
_KINDS: Final[tuple[type[Message], ...]] = get_args(Message)
_START_OF: Final = {kind: _PREFIX + bytes([i]) for i, kind in enumerate(_KINDS)}

#: A frame after the first.
Segment = bytes | memoryview
#: Puts the contents of a flat array of bytes elsewhere: returns what finds them, None to decline.
Put = Callable[[np.ndarray], Sequence[int | str] | None]
#: The reverse: returns so many bytes, read-only, or raises BlobError.
Get = Callable[[Any, int], np.ndarray]
#: The frames, and `Get`, of the message that a thread reads.
_came: Final = threading.local()


def frames(message: Message) -> list[Any]:
    """Return a message as frames: see `MessageWriter.frames`."""
    return MessageWriter().frames(message)


class MessageWriter:
    """Turns messages into frames; from one thread at a time.

    `inline_nbytes`: size up to which contents of tensors lie in the head.
    """

    def __init__(self, inline_nbytes: int = INLINE_NBYTES) -> None:
        self._inline_nbytes = inline_nbytes
        self._pack = Encoder(enc_hook=_plain).encode
        self._put: Put | None = None
        self._segments: list[Segment] = []

    def frames(self, message: Message, put: Put | None = None) -> list[Any]:
        """Return a message as frames, bytes first; the others are the tensors' own memory.

        Errors outside the error tree become their nearest base in it.

        `put`: where contents of more than `inline_nbytes` go if it takes them.
        Raises TypeError: a value in it is none of ONNX's; BlobError: one is nested too deep.
        """
        segments = self._segments = []
        self._put = put
        try:
            told: Any = message
            if isinstance(message, Values):
                told = (message.task, self._trees(message.tensors), message.runs)
            elif isinstance(message, Outputs):
                told = (_named_only(message.task), self._trees(message.tensors), message.runs)
            elif isinstance(message, Keep):
                told = (*message[:-1], self._trees(message.tensors))
            elif isinstance(message, Failure):
                told = (_named_only(message.task), error_entry(message.error, self._place))
            packed = self._pack(told)
        finally:
            self._put, self._segments = None, []  # they hold what is sent
        return [_START_OF[type(message)] + packed, *segments]

    def _trees(self, tensors: Mapping[str, Value]) -> dict[str, Any]:
        return {name: tree_of(value, self._place) for name, value in tensors.items()}

    def _place(self, array: np.ndarray) -> Any:
        """Place contents in the head, elsewhere, or in a frame."""
        if array.nbytes <= self._inline_nbytes:
            return array.tobytes()
        flat = array.reshape(-1).view(np.uint8)
        if self._put is not None and (place := self._put(flat)) is not None:
            return place
        self._segments.append(flat.data)
        return len(self._segments)


def message(parts: Sequence[Any], get: Get | None = None, start: int = 0) -> Message:
    """Return the message of frames; its tensors are read-only views of them.

    `parts`: as `frames` gave them.
    `get`: finds what `put` put elsewhere.
    `start`: where in the first frame the message starts.
    Raises BlobError: they are no message, one of another version, damaged, or cut short.
    """
    head: bytes = parts[0]
    at = start + len(_PREFIX)
    if not head.startswith(_PREFIX, start):
        refuse(head[start:at], _PREFIX, "message")
    try:
        kind, read = _READ[head[at]]
        _came.parts, _came.get = parts, get
        told = read(memoryview(head)[at + 1 :])
        if kind is Failure:
            told = (told.task, error_of(told.error))
        elif kind in (Values, Outputs, Keep):
            check_nesting(told.tensors)
        made: Message = tuple.__new__(kind, told)
        return made
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, BlobError):
            raise
        raise BlobError(f"message that is damaged: {error}.") from error
    finally:
        _came.parts, _came.get = (), None


def _extended(tag: int, data: memoryview) -> Any:
    return decode_extension(tag, data, _contents)


def _contents(place: Any, dtype: np.dtype, count: int) -> np.ndarray:
    """Return contents from where a `MessageWriter` placed them."""
    parts, get = _came.parts, _came.get
    nbytes = count * dtype.itemsize
    if type(place) is bytes:
        found: Segment = place
    elif type(place) is int and 0 < place < len(parts):
        found = memoryview(parts[place]).toreadonly()
    elif type(place) is list and get is not None:
        stored: np.ndarray = get(place, nbytes).view(dtype)
        return stored
    else:
        raise BlobError("message with a tensor that is nowhere.")
    if len(found) != nbytes:
        raise BlobError(f"message is cut short or damaged: {len(found)} bytes for {count} {dtype}.")
    flat = np.frombuffer(found, dtype)
    if not flat.flags.aligned:
        flat = flat.copy()
        flat.setflags(write=False)
    return flat


def _reader(kind: type[Message]) -> Callable[[memoryview], Any]:
    """Return what reads a message of a kind, and checks the types of all but values."""
    fields = get_type_hints(kind)
    as_read: dict[str, Any] = {"tensors": dict[str, Any], "error": ErrorEntry}
    told = NamedTuple(kind.__name__, [(n, as_read.get(n, it)) for n, it in fields.items()])  # type: ignore[misc]  # computed
    return Decoder(told, ext_hook=_extended).decode


_READ: Final[list[tuple[Any, Callable[[memoryview], Any]]]] = [(it, _reader(it)) for it in _KINDS]


def _named_only(task: Task) -> tuple[tuple[Any, ...], int]:
    """Return what an answer tells of its task: its client has the rest."""
    return (*DEFAULT_REQUEST[:4], *task.request[4:8]), task.stage


def _plain(value: Any) -> Any:
    """Return what msgpack takes for numpy's numbers and for maps that are no dicts."""
    return value.item() if isinstance(value, np.generic) else dict(value)
