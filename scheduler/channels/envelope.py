"""Encoding of messages as frames: a small head, followed by one frame for each large tensor.

The head consists of the magic number "HTE", a version, the kind of message, and msgpack of the
message, in which values are the trees of `value_tree`. A small tensor is part of its tree. A large
tensor has a frame of its own, or is stored by the channel, for example in shared memory. Nothing is
pickled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args, get_type_hints

import numpy as np
from msgspec import ValidationError, convert
from msgspec.msgpack import Decoder, Encoder

from hetero.devices.errors import BlobError
from hetero.devices.plugin.program import Value
from hetero.devices.request.request import DEFAULT_REQUEST, Request
from hetero.scheduler.formats.error_entries import ErrorEntry, error_entry, error_of
from hetero.scheduler.formats.unpack import refuse
from hetero.scheduler.formats.value_tree import check_nesting, decode_extension, tree_of
from hetero.scheduler.types.messages import Failure, Message, Outputs, StoreTensors, Task, Values

#: Increment it whenever the format changes; a peer rejects other versions.
VERSION: Final = 8
#: Default size up to which tensors are part of the head: a frame costs as much as two copies of
#: such a tensor (ZeroMQ 4.3.5 over ipc, pyzmq 27: 3 to 5 microseconds).
INLINE_NBYTES: Final = 16 * 1024

_PREFIX: Final = b"HTE" + bytes([VERSION])
_KINDS: Final[tuple[type[Message], ...]] = get_args(Message)
_START_OF: Final = {kind: _PREFIX + bytes([i]) for i, kind in enumerate(_KINDS)}

#: A frame after the head.
Segment = bytes | memoryview
#: Stores the contents of a flat array of bytes; returns their location, or None to decline.
Put = Callable[[np.ndarray], Sequence[int | str] | None]
#: Returns stored contents, read-only, by location and size, or raises BlobError.
Get = Callable[[Any, int], np.ndarray]
#: Decodes any message without a check of its types.
_ANY: Final = Decoder()
#: The fields of a request that identify an attempt.
_IDENTITY: Final = slice(Request._fields.index("deployment"), Request._fields.index("route") + 1)
#: For each thread, the frames and the `Get` of the message that it decodes.
_decoding: Final = threading.local()


def to_frames(message: Message) -> list[Any]:
    """Encode a message; see `MessageWriter.frames`."""
    return MessageWriter().frames(message)


class MessageWriter:
    """Encoder of messages; use it from one thread at a time.

    `inline_nbytes`: size up to which tensors are part of the head.
    """

    def __init__(self, inline_nbytes: int = INLINE_NBYTES) -> None:
        self._inline_nbytes = inline_nbytes
        self._pack = Encoder(enc_hook=_to_msgpack_type).encode
        self._put: Put | None = None
        self._segments: list[Segment] = []

    def frames(self, message: Message, put: Put | None = None) -> list[Any]:
        """Encode a message; the frames after the head are the memory of the tensors.

        An error outside the tree of HeteroError becomes its nearest base class in the tree.

        `put`: stores tensors of more than `inline_nbytes`, unless it declines.
        Raises TypeError: a value is not an ONNX value.
        Raises BlobError: a value is nested too deeply.
        """
        segments = self._segments = []
        self._put = put
        try:
            fields: Any = message
            if isinstance(message, Values):
                fields = (message.task, self._trees(message.tensors), message.runs)
            elif isinstance(message, Outputs):
                fields = (_identifiers(message.task), self._trees(message.tensors), message.runs)
            elif isinstance(message, StoreTensors):
                fields = (*message[:-1], self._trees(message.tensors))
            elif isinstance(message, Failure):
                fields = (_identifiers(message.task), error_entry(message.error, self._place))
            packed = self._pack(fields)
        finally:
            self._put, self._segments = None, []  # they refer to the tensors
        return [_START_OF[type(message)] + packed, *segments]

    def _trees(self, tensors: Mapping[str, Value]) -> dict[str, Any]:
        return {name: tree_of(value, self._place) for name, value in tensors.items()}

    def _place(self, array: np.ndarray) -> Any:
        """Place contents in the head, in the store or in a frame; return their location."""
        if array.nbytes <= self._inline_nbytes:
            return array.tobytes()
        flat = array.reshape(-1).view(np.uint8)
        if self._put is not None and (place := self._put(flat)) is not None:
            return place
        self._segments.append(flat.data)
        return len(self._segments)


def from_frames(frames: Sequence[Any], get: Get | None = None, start: int = 0) -> Message:
    """Decode a message; its tensors are read-only views of the frames.

    `frames`: result of `to_frames`.
    `get`: returns tensors that `put` stored.
    `start`: start of the message in the first frame.
    Raises BlobError: the message is damaged, incomplete, or of another version.
    """
    head: bytes = frames[0]
    at = start + len(_PREFIX)
    if not head.startswith(_PREFIX, start):
        refuse(head[start:at], _PREFIX, "message")
    try:
        kind, decode = _DECODERS[head[at]]
        _decoding.frames, _decoding.get = frames, get
        fields = decode(memoryview(head)[at + 1 :])
        if kind is Failure:
            fields = (fields.task, error_of(fields.error))
        elif kind in (Values, Outputs, StoreTensors):
            check_nesting(fields.tensors)
        message: Message = tuple.__new__(kind, fields)
        return message
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, BlobError):
            raise
        raise BlobError(f"message that is damaged: {error}.") from error
    finally:
        _decoding.frames, _decoding.get = (), None


def unreadable_task(frames: Sequence[Any], error: BlobError, start: int = 0) -> Failure | None:
    """Return the failure of a task whose message has values of unexpected types.

    `error`: the error that `from_frames` raised.
    Returns None for any other error, and if the message does not identify a task.
    """
    if not isinstance(error.__cause__, ValidationError):
        return None
    head: bytes = frames[0]
    at = start + len(_PREFIX)
    try:
        kind, _ = _DECODERS[head[at]]
        fields = list(kind.__annotations__)
        if not head.startswith(_PREFIX, start) or fields[0] != "task":
            return None
        request, stage = _ANY.decode(memoryview(head)[at + 1 :])[0]
        identity = (*DEFAULT_REQUEST[: _IDENTITY.start], *request[_IDENTITY])
        return Failure(convert((identity, stage), Task), error)
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def _decode_extension(tag: int, data: memoryview) -> Any:
    return decode_extension(tag, data, _contents)


def _contents(place: Any, dtype: np.dtype, count: int) -> np.ndarray:
    """Return the contents at a location that a `MessageWriter` has chosen."""
    frames, get = _decoding.frames, _decoding.get
    nbytes = count * dtype.itemsize
    if type(place) is bytes:
        contents: Segment = place
    elif type(place) is int and 0 < place < len(frames):
        contents = memoryview(frames[place]).toreadonly()
    elif type(place) is list and get is not None:
        stored: np.ndarray = get(place, nbytes).view(dtype)
        return stored
    else:
        raise BlobError(f"message with a tensor at {place!r}; it has {len(frames)} frames.")
    if len(contents) != nbytes:
        raise BlobError(
            f"message with {len(contents)} bytes for {count} elements of {dtype}; "
            f"expected {nbytes} bytes."
        )
    flat = np.frombuffer(contents, dtype)
    if not flat.flags.aligned:
        flat = flat.copy()
        flat.setflags(write=False)
    return flat


def _decoder(kind: type[Message]) -> Callable[[memoryview], Any]:
    """Return a decoder for a kind of message; it checks the types of all fields except values."""
    types: dict[str, Any] = get_type_hints(kind)
    types |= {"tensors": dict[str, Any]} if "tensors" in types else {}
    types |= {"error": ErrorEntry} if "error" in types else {}
    fields = NamedTuple(kind.__name__, list(types.items()))  # type: ignore[misc]  # computed
    return Decoder(fields, ext_hook=_decode_extension).decode


_DECODERS: Final[list[tuple[Any, Callable[[memoryview], Any]]]] = [
    (kind, _decoder(kind)) for kind in _KINDS
]


def _identifiers(task: Task) -> tuple[tuple[Any, ...], int]:
    """Return the parts of a task that a response needs to identify it."""
    return (*DEFAULT_REQUEST[:4], *task.request[4:8]), task.stage


def _to_msgpack_type(value: Any) -> Any:
    """Convert a numpy number, or a mapping that is not a dict, to a type of msgpack."""
    return value.item() if isinstance(value, np.generic) else dict(value)
