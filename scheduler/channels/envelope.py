"""The envelope: a message as frames, a small head with large tensors beside it, and back.

The first frame is the magic "HTE", the version's byte and msgpack: a kind, then the message's
fields, whose values are the trees of `value_tree`. The contents of a small tensor lie in the tree
itself, of others in a frame each, or wherever a store of the channel's put them. No pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn, get_type_hints

import msgspec
import numpy as np

from devices.errors import BlobError
from devices.plugin.program import Value
from devices.request.answer import StageRun
from devices.request.request import Request
from scheduler.formats.error_entries import error_entry, error_of
from scheduler.formats.tensor_entries import DTYPES
from scheduler.formats.value_tree import NAMES, TENSOR, Contents, tree_of, value_of
from scheduler.vocabulary.messages import (
    Dropped,
    Failure,
    Free,
    Give,
    Join,
    Keep,
    Message,
    Outputs,
    RowsOf,
    Task,
    Values,
)

#: Raised whenever the form changes; other versions are refused by name.
VERSION: Final = 7
#: Tensors of up to so many bytes lie in the head: another frame costs as much as copying them
#: twice (ZeroMQ 4.3.5 over ipc, pyzmq 27: 3 to 5 microseconds).
INLINE_NBYTES: Final = 16 * 1024

_PREFIX: Final = b"HTE" + bytes([VERSION])
_VALUES, _OUTPUTS, _FAILURE, _DROPPED, _KEEP, _GIVE, _JOIN, _FREE = range(8)

#: A frame after the first.
Segment = bytes | memoryview
#: Puts the contents of a flat array of bytes elsewhere: returns what finds them, None to decline.
Put = Callable[[np.ndarray], Sequence[int | str] | None]
#: The reverse: returns so many bytes, read-only, or raises BlobError.
Get = Callable[[Any, int], np.ndarray]
#: What an answer tells of its task: deployment, request, attempt, route and stage.
_Named = tuple[str, int, int, int, int]


def frames(message: Message) -> list[Any]:
    """Return a message as frames: see `MessageWriter.frames`."""
    return MessageWriter().frames(message)


class MessageWriter:
    """Turns messages into frames; from one thread at a time.

    `inline_nbytes`: size up to which contents of tensors lie in the head.
    """

    def __init__(self, inline_nbytes: int = INLINE_NBYTES) -> None:
        self._inline_nbytes = inline_nbytes
        self._pack = msgspec.msgpack.Encoder(enc_hook=_plain).encode
        self._put: Put | None = None
        self._segments: list[Segment] = []

    def frames(self, message: Message, put: Put | None = None, before: bytes = b"") -> list[Any]:
        """Return a message as frames, bytes first; the others are the tensors' own memory.

        Errors outside the error tree become their nearest base in it.

        `put`: where contents of more than `inline_nbytes` go if it takes them.
        `before`: what the first frame starts with.
        Raises TypeError: a value in it is none of ONNX's; BlobError: one is nested too deep.
        """
        segments = self._segments = []
        self._put = put
        try:
            if isinstance(message, (Values, Outputs)):
                task, tensors, runs = message
                is_answer = isinstance(message, Outputs)
                kind = _OUTPUTS if is_answer else _VALUES
                named = _named_only(task) if is_answer else (*task.request, task.stage)
                packed = self._pack((kind, named, self._named(tensors), runs))
            else:
                packed = self._pack(self._message_tree(message))
        finally:
            self._put, self._segments = None, []  # they hold what is sent
        return [b"".join((before, _PREFIX, packed)), *segments]

    def _message_tree(self, message: Message) -> tuple[Any, ...]:
        if isinstance(message, Free):
            return _FREE, message.keys
        if isinstance(message, Dropped):
            return _DROPPED, (*message.request, 0)
        if isinstance(message, Failure):
            return _FAILURE, _named_only(message.task), error_entry(message.error, self._place)
        request, stage = message.task
        task = (*request, stage)
        if isinstance(message, Keep):
            return _KEEP, task, message.client, message.key, self._named(message.tensors)
        return (_GIVE if isinstance(message, Give) else _JOIN, task, *message[1:])

    def _named(self, tensors: Mapping[str, Value]) -> list[Any]:
        pairs: list[Any] = []
        for name, value in tensors.items():
            if (  # most values by far
                type(value) is np.ndarray
                and value.nbytes <= self._inline_nbytes
                and value.flags.c_contiguous
                and value.dtype in NAMES
            ):
                entry = (TENSOR, NAMES[value.dtype], value.shape, value.tobytes())
                pairs += (name, entry)
            else:
                pairs += (name, tree_of(value, self._place))
        return pairs

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
    if not head.startswith(_PREFIX, start):
        _refuse(head[start : start + len(_PREFIX)])
    contents = partial(_contents, parts, get)
    try:
        told = _read(memoryview(head)[start + len(_PREFIX) :])
        if isinstance(told, _Free):
            return Free(told.keys)
        if isinstance(told, _Outputs | _Failure):
            deployment, number, attempt, route, stage = told.task
            request = Request(deployment=deployment, id=number, attempt=attempt, route=route)
            task = tuple.__new__(Task, (request, stage))
            if isinstance(told, _Failure):
                return Failure(task, error_of(told.error, contents))
            return tuple.__new__(Outputs, (task, _values(told.tensors, contents), told.runs))
        *fields, stage = told.task
        task = tuple.__new__(Task, (tuple.__new__(Request, fields), stage))
        if isinstance(told, _Values):
            return tuple.__new__(Values, (task, _values(told.tensors, contents), told.runs))
        if isinstance(told, _Dropped):
            return Dropped(task.request)
        if isinstance(told, _Keep):
            return Keep(task, told.client, told.key, _values(told.tensors, contents))
        if isinstance(told, _Give):
            return Give(task, told.client, told.address, told.wanted, told.free, told.awaits)
        return Join(task, told.client, told.key, told.made)
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, BlobError):
            raise
        raise BlobError(f"message that is damaged: {error}.") from error


def _refuse(start: bytes) -> NoReturn:
    if len(start) == len(_PREFIX) and start[:3] == _PREFIX[:3]:
        raise BlobError(
            f"message of version {start[3]}; this program reads version {VERSION}. Run the same "
            "version on every node."
        )
    raise BlobError(f"not a message: it starts with {start!r}.")


def _contents(
    parts: Sequence[Any], get: Get | None, place: Any, dtype: np.dtype, count: int
) -> np.ndarray:
    """Return contents from where a `MessageWriter` placed them."""
    nbytes = count * dtype.itemsize
    if type(place) is bytes:
        found: Segment = place
    elif type(place) is int and 0 < place < len(parts):
        found = memoryview(parts[place]).toreadonly()
    elif type(place) is list and get is not None:
        return get(place, nbytes).view(dtype)
    else:
        raise BlobError("message with a tensor that is nowhere.")
    if len(found) != nbytes:
        raise BlobError(f"message is cut short or damaged: {len(found)} bytes for {count} {dtype}.")
    flat = np.frombuffer(found, dtype)
    if not flat.flags.aligned:
        flat = flat.copy()
        flat.setflags(write=False)
    return flat


#: A task is its request's fields, then the stage.
_Task = NamedTuple("_Task", [*get_type_hints(Request).items(), ("stage", int)])  # type: ignore[misc]  # computed


class _Read(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A message as it is read: its kind, then its fields, with the trees of its values."""


class _OfTask(_Read):
    task: _Task


class _Values(_OfTask, tag=_VALUES):
    tensors: list[Any]
    runs: tuple[StageRun, ...]


class _Outputs(_Read, tag=_OUTPUTS):
    task: _Named
    tensors: list[Any]
    runs: tuple[StageRun, ...]


class _Failure(_Read, tag=_FAILURE):
    task: _Named
    error: Any


class _Dropped(_OfTask, tag=_DROPPED):
    pass


class _Keep(_OfTask, tag=_KEEP):
    client: str
    key: str
    tensors: list[Any]


class _Give(_OfTask, tag=_GIVE):
    client: str
    address: str
    wanted: dict[str, dict[str, str]]
    free: tuple[str, ...]
    awaits: bool


class _Join(_OfTask, tag=_JOIN):
    client: str
    key: str
    made: dict[str, RowsOf]


class _Free(_Read, tag=_FREE):
    keys: tuple[str, ...]


_KINDS = _Values | _Outputs | _Failure | _Dropped | _Keep | _Give | _Join | _Free
#: Checks the types of all but the values' trees. It makes room for what is there, not for what is
#: claimed, so that nothing has to be walked over first.
_read: Final = msgspec.msgpack.Decoder(_KINDS).decode


def _named_only(task: Task) -> _Named:
    """Return what an answer tells of its task: its client has the rest."""
    request, stage = task
    return request.deployment, request.id, request.attempt, request.route, stage


def _plain(value: Any) -> Any:
    """Return what msgpack takes for numpy's numbers and for maps that are no dicts."""
    return value.item() if isinstance(value, np.generic) else dict(value)


def _values(pairs: Any, contents: Contents) -> dict[str, Value]:
    values: dict[str, Value] = {}
    rest = iter(pairs)
    for name, tree in zip(rest, rest, strict=True):
        if type(name) is not str:
            raise BlobError("message with a tensor that has no name.")
        value = _small(tree)
        values[name] = value_of(tree, contents) if value is None else value
    return values


def _small(tree: Any) -> np.ndarray | None:
    """Return a tensor in C's order that lies in the tree; None for what is not so simple."""
    if type(tree) is list and len(tree) == 4 and tree[0] == TENSOR:
        _, name, sizes, place = tree
        if type(place) is bytes and type(name) is str and type(sizes) is list:
            dtype = DTYPES.get(name)
            try:
                tensor: np.ndarray = np.ndarray(sizes, dtype, place)
            except (TypeError, ValueError):
                return None
            if dtype is not None and tensor.nbytes == len(place):
                return tensor
    return None
