"""Packed messages of lanes: one per hop of a plain request within a node.

Both ends know from the deployment which tensors a stage reads, and in which order. A packed message
therefore contains no names. It consists of a head, the timings of earlier stages, which devices
forward unread, and tensors by position. Of a tensor in shared memory, the message contains only the
place. All other traffic uses the messages of `envelope`.

The bytes come from another process: a reader returns their contents or raises BlobError.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from hetero.devices.errors import BlobError
from hetero.devices.request.response import StageTiming
from hetero.scheduler.channels.shared_memory import MAX_OWNER_NBYTES, Place
from hetero.scheduler.formats.tensor_entries import DTYPES

#: Magic number and version of the format.
MAGIC: Final = b"HTL\x02"
#: Kinds of messages: inputs of a stage, and outputs of the model for the client.
TO_STAGE: Final = 0
TO_CLIENT: Final = 1
#: Maximum number of timings that a message to a stage contains.
MAX_TIMINGS: Final = 64
#: Maximum size of the tensors within a message.
MAX_NBYTES: Final = 64 * 1024

#: Magic, kind, tensors, timings, deployment, request, attempt, stage, route, input mask.
_HEAD: Final = struct.Struct("<4sBBHQQHHHxxQ8x")
#: Stage, queued, started, ended, upload, infer and download seconds, bytes.
_TIMING: Final = struct.Struct("<HxxxxxxddddddQ")
#: Element type, rank, whether it is in shared memory, bytes.
_TENSOR: Final = struct.Struct("<BB?xxxxxQ")
#: Owner, number and size of slots of a file in shared memory, slot, generation; padded to 16 bytes.
_PLACE: Final = struct.Struct(f"<{MAX_OWNER_NBYTES}sQQQQ{-(MAX_OWNER_NBYTES + 32) % 16}x")
#: For each rank, a shape padded to a multiple of 16 bytes.
_SHAPES: Final = tuple(struct.Struct(f"<{rank}I{-4 * rank % 16}x") for rank in range(9))
_DTYPES: Final = [DTYPES[name] for name in sorted(DTYPES)]
#: Codes of the element types whose arrays export their memory.
_CODES: Final = {dtype: code for code, dtype in enumerate(_DTYPES) if dtype.isbuiltin == 1}
#: Number of bits of an input mask.
_MAX_INPUTS: Final = 64
#: Alignment of tensors, which suffices for every element type.
_ALIGNMENT: Final = 16
#: Sizes of a tensor's head by rank.
_HEAD_NBYTES: Final = tuple(_TENSOR.size + shape.size for shape in _SHAPES)
#: Maximum number of heads in each cache; most models have few shapes.
_MAX_CACHED: Final = 4096

#: Stores the contents of a flat array of bytes; returns their place, or None to decline.
Put = Callable[[np.ndarray], Place | None]
#: Returns stored contents, read-only, by place and size, or raises BlobError.
Get = Callable[[Place, int], np.ndarray]

#: Creates a named tuple without the call of a Python function.
_new: Final[Callable[..., Any]] = tuple.__new__


class LaneHead(NamedTuple):
    """Head of a packed message.

    `deployment`: result of `lane_key`.
    `input_mask`: one bit for each input of the stage that the message contains; 0 for the client.
    `start`: start of the timings in the message.
    """

    kind: int
    num_tensors: int
    num_timings: int
    deployment: int
    request_id: int
    attempt: int
    stage: int
    route: int
    input_mask: int
    start: int


class _PackedHead(NamedTuple):
    """Heads of a tensor, within a message and in shared memory.

    `nbytes`: size of its contents.
    `padding`: bytes after them within a message.
    """

    within: bytes
    stored: bytes
    nbytes: int
    padding: bytes


class _TensorHead(NamedTuple):
    """Contents of a tensor's head; `padded_nbytes` is the size of its contents in a message."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_stored: bool
    nbytes: int
    padded_nbytes: int


#: Heads of recent tensors, which messages repeat: by (element type, shape), and by packed head.
_packed_heads: Final[dict[tuple[np.dtype[Any], tuple[int, ...]], _PackedHead]] = {}
_tensor_heads: Final[dict[bytes, _TensorHead]] = {}


def lane_key(deployment: str) -> int:
    """Return the number that identifies a deployment in packed messages."""
    return int.from_bytes(blake2b(deployment.encode(), digest_size=8).digest(), "little")


def input_mask(positions: Sequence[int]) -> int:
    """Return the mask of some inputs, by position.

    Returns 0, so that the inputs are sent by name, if the positions do not increase or the mask has
    too few bits: a mask has no order.
    """
    mask = sum(1 << position for position in positions)
    is_increasing = all(before < after for before, after in pairwise(positions))
    return mask if is_increasing and mask.bit_length() <= _MAX_INPUTS else 0


def masked_names(inputs: Sequence[str], mask: int) -> list[str]:
    """Return the names of the inputs in a mask."""
    return [name for position, name in enumerate(inputs) if mask >> position & 1]


def pack_message(
    head: LaneHead, timings: bytes, tensors: Sequence[Any], put: Put | None = None
) -> list[Any] | None:
    """Return a message in parts, which include the memory of the tensors.

    `head`: the numbers of tensors and timings, and the start, are computed.
    `put`: stores the tensors for which the message has no room.
    Returns None if a value or number does not fit into a packed message.
    """
    parts: list[Any] = [b""]
    nbytes = 0
    kind, _, _, *identity, _ = head
    try:
        for value in tensors:
            if type(value) is not np.ndarray or not value.flags.c_contiguous:
                return None
            key = (value.dtype, value.shape)
            tensor_head = _packed_heads.get(key) or _pack_head(*key)
            if tensor_head is None:
                return None
            within, stored, size, padding = tensor_head
            if nbytes + size > MAX_NBYTES:
                place = put(value.reshape(-1).view(np.uint8)) if put is not None else None
                if place is None:
                    return None
                owner, *numbers = place
                parts.append(stored + _PLACE.pack(owner.encode(), *numbers))
                continue
            nbytes += size
            parts.append(within)
            if size:
                parts.append(value.data)
            if padding:
                parts.append(padding)
        packed = _HEAD.pack(MAGIC, kind, len(tensors), len(timings) // _TIMING.size, *identity)
    except struct.error:  # a number exceeds its field
        return None
    parts[0] = packed + timings
    return parts


def _pack_head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> _PackedHead | None:
    """Return the heads of tensors; None if they do not fit into a packed message.

    Raises struct.error: a number exceeds its field.
    """
    code, rank = _CODES.get(dtype), len(shape)
    if code is None or rank >= len(_SHAPES):
        return None
    size = math.prod(shape) * dtype.itemsize
    within, stored = (_TENSOR.pack(code, rank, place, size) for place in (False, True))
    packed_shape = _SHAPES[rank].pack(*shape)
    head = _PackedHead(
        within + packed_shape, stored + packed_shape, size, bytes(-size % _ALIGNMENT)
    )
    if len(_packed_heads) >= _MAX_CACHED:
        _packed_heads.clear()
    _packed_heads[dtype, shape] = head
    return head


def _read_tensor_head(packed: bytes) -> _TensorHead:
    """Return the contents of a tensor's head.

    Raises BlobError, struct.error, LookupError: it is damaged.
    """
    code, rank, is_stored, nbytes = _TENSOR.unpack_from(packed)
    shape = _SHAPES[rank].unpack_from(packed, _TENSOR.size)
    dtype = _DTYPES[code]
    if math.prod(shape) * dtype.itemsize != nbytes:
        raise BlobError(f"packed message with {nbytes} bytes for {dtype}{list(shape)}.")
    if len(_tensor_heads) >= _MAX_CACHED:
        _tensor_heads.clear()
    padded_nbytes = nbytes + -nbytes % _ALIGNMENT
    head = _tensor_heads[packed] = _TensorHead(shape, dtype, is_stored, nbytes, padded_nbytes)
    return head


def pack_timing(timing: StageTiming) -> bytes:
    """Return a packed timing; it omits the device, which follows from the stage."""
    stage, _, queued_s, started_s, ended_s, upload_s, infer_s, download_s, _, nbytes, _ = timing
    return _TIMING.pack(stage, queued_s, started_s, ended_s, upload_s, infer_s, download_s, nbytes)


def read_head(data: bytes, start: int) -> LaneHead:
    """Return the head of the message that starts at `start`.

    Raises BlobError: the head is incomplete, or of another format.
    """
    try:
        magic, *fields = _HEAD.unpack_from(data, start)
    except struct.error as error:
        raise BlobError(f"packed message that is incomplete: {error}.") from error
    if magic != MAGIC:
        raise BlobError(f"packed message that starts with {magic!r}; expected {MAGIC!r}.")
    head: LaneHead = _new(LaneHead, (*fields, start + _HEAD.size))
    return head


def slice_timings(data: bytes, head: LaneHead) -> bytes:
    """Return the packed timings of a message."""
    return data[head.start : head.start + head.num_timings * _TIMING.size]


def read_timings(packed: bytes, devices: Sequence[str] | None = None) -> tuple[StageTiming, ...]:
    """Return timings.

    `devices`: device of each stage; None leaves them empty.
    Raises BlobError: there are too many timings, or one of an unknown stage.
    """
    if len(packed) > (MAX_TIMINGS + 1) * _TIMING.size or len(packed) % _TIMING.size:
        raise BlobError(
            f"packed message with {len(packed)} bytes of timings; expected a multiple of "
            f"{_TIMING.size} up to {(MAX_TIMINGS + 1) * _TIMING.size}."
        )
    timings = []
    device = ""
    for row in _TIMING.iter_unpack(packed):  # stage, six times and the size, without names: faster
        if devices is not None:
            try:
                device = devices[row[0]]
            except IndexError as error:
                raise BlobError(
                    f"packed message with a timing of stage {row[0]}; expected a stage below "
                    f"{len(devices)}."
                ) from error
        timings.append(_new(StageTiming, (row[0], device, *row[1:7], {}, row[7], ())))
    return tuple(timings)


def release_tensors(data: bytes, head: LaneHead, get: Get | None) -> None:
    """Free the shared memory of a message that has no recipient."""
    with contextlib.suppress(BlobError):
        read_tensors(data, head, get)


def read_tensors(data: bytes, head: LaneHead, get: Get | None = None) -> list[np.ndarray]:
    """Return the tensors of a message as read-only views.

    `get`: returns tensors that `put` stored.
    Raises BlobError: the message is incomplete or damaged, or raised by `get`.
    """
    at = head.start + head.num_timings * _TIMING.size
    tensors = []
    try:
        for _ in range(head.num_tensors):
            packed = data[at : at + _HEAD_NBYTES[data[at + 1]]]
            tensor_head = _tensor_heads.get(packed) or _read_tensor_head(packed)
            shape, dtype, is_stored, nbytes, padded_nbytes = tensor_head
            at += len(packed)
            if is_stored:
                if get is None:
                    raise BlobError("packed message with a tensor in unknown shared memory.")
                owner, *numbers = _PLACE.unpack_from(data, at)
                at += _PLACE.size
                place = _new(Place, (owner.rstrip(b"\0").decode("ascii"), *numbers))
                tensors.append(np.ndarray(shape, dtype, get(place, nbytes)))
                continue
            tensors.append(np.ndarray(shape, dtype, data, at))
            at += padded_nbytes
    except (struct.error, LookupError, TypeError, ValueError) as error:
        if isinstance(error, BlobError):
            raise
        raise BlobError(f"packed message that is damaged: {error}.") from error
    if at != len(data):
        raise BlobError(f"packed message of {len(data)} bytes; expected {at} bytes.")
    return tensors
