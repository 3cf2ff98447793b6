"""Tensors between processes of one node: pools of shared memory slots in plain files.

Each process creates files in ``/dev/shm``, copies tensors to their slots and sends the locations. A
reader maps a file once and keeps it mapped. A file contains::

    half a page   for each slot the generation, 8 bytes, that its last reader has finished with
    half a page   for each slot the generation, 8 bytes, that its last reader has taken
    the rest      slots of one size

A slot is filled under its next generation. It is free again when its reader or its owner has
written that generation back; a reader does so when the last array that views the slot is garbage.
The owner also frees the slots of processes that have ended, and the slots that a closed channel has
not taken. A copy that the owner itself needs may be in a slot too; such a slot is not free before
the copy is garbage. Owners unlink their files; the files of processes that were killed are removed
by the others. File names contain the owner: see `owned_files`.

Alternatives measured, for 10 MB through a chain of three relays on two cores: ZeroMQ with raw
frames takes 22 ms, with tensors in slots 9 ms; Ray's object store takes 60 ms. One segment for each
message is slower than slots, because allocation, page faults and mapping dominate.
`multiprocessing.shared_memory` (before Python 3.13) unlinks segments as soon as any process that
has opened them ends.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np

from hetero.devices.errors import BlobError
from hetero.scheduler.processes.owned_files import Process, owned_name, remove_with, sweep

FOLDER: Final = Path("/dev/shm")
PREFIX: Final = "hetero-"
_PAGE: Final = mmap.ALLOCATIONGRANULARITY
#: Index of the first generation in the second half of the first page.
_TAKEN: Final = _PAGE // 16
_MAX_SLOTS: Final = min(64, _TAKEN)
#: Size that a file's slots fill, unless a single slot is larger.
_FILE_NBYTES: Final = 8 * 2**20
#: Maximum share of the file system that a pool uses, and share that it leaves free: Ray's files
#: allocate their pages when they are written to, and a full file system would end in a SIGBUS.
_MAX_SHARE: Final = 1 / 4
_FREE_SHARE: Final = 1 / 2
#: Maximum share of a pool that copies use.
_MAX_COPIES_SHARE: Final = 1 / 2


_OWNER: Final = r"^[0-9a-f]{1,16}-[0-9]{1,10}-[0-9]{1,20}-[0-9a-f]{1,16}\Z"
#: Maximum size of an owner's name.
MAX_OWNER_NBYTES: Final = 65
_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class Place(NamedTuple):
    """Location of a tensor: owner and number of a file, size, index and generation of a slot."""

    owner: Annotated[str, msgspec.Meta(pattern=_OWNER)]
    number: _Number
    nbytes: _Number
    slot: _Number
    generation: _Number


class SlotError(BlobError):
    """The contents of a slot cannot be read: its file was removed, or the reader is closed."""


@dataclass(slots=True, eq=False)
class Slot:
    """Memory for one tensor.

    `reader`: process that it was filled for.
    `channel`: identity of that process's channel.
    `is_sent`: whether it was filled for a reader, or its copy was sent to one.
    `has_copy`: whether the owner still refers to a copy in the slot.
    """

    file: _File
    index: int
    data: np.ndarray
    generation: int = 0
    reader: Process | None = None
    channel: bytes = b""
    is_sent: bool = True
    has_copy: bool = False

    @property
    def is_free(self) -> bool:
        """Whether nobody needs it any more."""
        return self.file.generations[self.index] == self.generation and not self.has_copy

    @property
    def is_taken(self) -> bool:
        """Whether its reader has taken it."""
        return self.file.generations[_TAKEN + self.index] == self.generation

    @property
    def place(self) -> Place:
        """Location of the slot."""
        owner, number = self.file.owner, self.file.number
        return Place(owner, number, self.data.nbytes, self.index, self.generation)

    def free(self) -> None:
        """Make it available again."""
        self.file.generations[self.index] = self.generation


@dataclass(slots=True, eq=False)
class _File:
    owner: str
    number: int
    nbytes: int
    generations: memoryview
    slots: list[Slot] = field(default_factory=list)
    #: Whether a slot was filled since the last call of `remove_unused`.
    is_used: bool = True

    @property
    def is_free(self) -> bool:
        """Whether all slots are free."""
        return all(slot.is_free for slot in self.slots)


class SlotPool:
    """Slots that this process fills; usable from any thread.

    `nbytes`: maximum size of all files, by default a quarter of the file system. Half of the file
        system stays free in any case.
    """

    def __init__(self, nbytes: int | None = None) -> None:
        sweep(FOLDER, PREFIX)
        status = os.statvfs(FOLDER)
        self._max_nbytes = int(status.f_blocks * status.f_frsize * _MAX_SHARE)
        if nbytes is not None:
            self._max_nbytes = nbytes
        self._owner = owned_name(os.urandom(4).hex())
        self._remove = remove_with(self, FOLDER, f"{PREFIX}{self._owner}.*")
        self._lock = threading.Lock()
        #: References to copies, by `id`.
        self._copies: dict[int, _CopyReference] = {}
        self._num_files = 0
        #: Size of slots -> files.
        self._files: dict[int, list[_File]] = {}

    @property
    def nbytes(self) -> int:
        """Size of all files."""
        return sum(file.nbytes for files in self._files.values() for file in files)

    def fill(self, contents: np.ndarray, reader: Process, channel: bytes = b"") -> Slot | None:
        """Copy flat bytes to a slot for a reader's channel; return None if no slot is free.

        A result of `copy_to_slot` is not copied again for its first reader.
        """
        base: Any = contents.base
        copy = self._copies.get(id(base))
        with self._lock:
            if copy is not None and base.nbytes == contents.nbytes and not copy.slot.is_sent:
                copy.slot.reader, copy.slot.channel, copy.slot.is_sent = reader, channel, True
                return copy.slot
            slot = self._find(_slot_nbytes(contents.nbytes))
            if slot is None:
                return None
            slot.generation += 1
            slot.reader, slot.channel, slot.is_sent = reader, channel, True
        slot.data[: contents.nbytes] = contents
        return slot

    def copy_to_slot(self, array: np.ndarray) -> np.ndarray | None:
        """Copy an array to a slot; return the copy, or None if no slot is free.

        Copies use at most half of the pool, because their number has no other limit.
        """
        size = _slot_nbytes(array.nbytes)
        nbytes = sum([copy.slot.data.nbytes for copy in list(self._copies.values())])
        if array.dtype.hasobject or nbytes + size > self._max_nbytes * _MAX_COPIES_SHARE:
            return None
        with self._lock:
            slot = self._find(size)
            if slot is None:
                return None
            # All views of the copy have this array as their base, since its own is not an array.
            flat = np.frombuffer(slot.data[: array.nbytes].data, np.uint8)
            reference = _CopyReference(flat, self._forget_copy)
            reference.key, reference.slot = id(flat), slot
            slot.reader, slot.channel, slot.is_sent = None, b"", False
            self._copies[reference.key] = reference
            # From here on, also if Ctrl-C interrupts, the end of `flat` frees the slot.
            slot.has_copy = True
            slot.generation += 1
        copy = np.ndarray(array.shape, array.dtype, flat)
        copy[...] = array
        return copy

    def _forget_copy(self, reference: Any) -> None:
        """Free the slot of a copy that is garbage, unless a reader still needs it.

        It is called in any thread, which may hold the lock.
        """
        slot = reference.slot
        del self._copies[reference.key]
        if not slot.is_sent:
            slot.free()
        slot.has_copy = False

    def take_back(self, slots: Iterable[tuple[Slot, int]]) -> None:
        """Free slots whose message was not sent, each with the generation of its contents."""
        with self._lock:
            for slot, generation in slots:
                if slot.generation == generation:  # otherwise it was freed, and filled again
                    slot.free()

    def free_untaken(self, channel: bytes) -> None:
        """Free the slots that a closed channel has not taken."""
        with self._lock:
            for slot in self._filled_slots():
                if slot.channel == channel and not slot.is_taken:
                    slot.free()

    def free_all_of(self, reader: Process) -> None:
        """Free the slots of a process that has ended, and remove its files."""
        with self._lock:
            for slot in self._filled_slots():
                if slot.reader == reader:
                    slot.free()
        sweep(FOLDER, PREFIX)

    def close(self) -> None:
        """Remove the files; readers keep their mappings."""
        with self._lock:
            self._remove()
            for files in self._files.values():
                for file in files:
                    file.slots.clear()
            self._files.clear()
            self._max_nbytes = 0

    def _filled_slots(self) -> list[Slot]:
        slots = (slot for files in self._files.values() for file in files for slot in file.slots)
        return [slot for slot in slots if not slot.is_free]

    def _find(self, size: int) -> Slot | None:
        # The first free slot of a file: few slots are in use then, and those are in the caches.
        files = self._files.get(size, [])
        for _ in files:
            first = files[0]
            for slot in first.slots:
                if first.generations[slot.index] == slot.generation and not slot.has_copy:
                    first.is_used = True
                    return slot
            files.append(files.pop(0))  # search full files last
        count = max(1, min(_MAX_SLOTS, _FILE_NBYTES // size))
        nbytes = _PAGE + count * size
        if self.nbytes + nbytes > self._max_nbytes:
            self._remove_free(lambda file: True)
            if self.nbytes + nbytes > self._max_nbytes:
                return None
        status = os.statvfs(FOLDER)
        if (
            status.f_bavail * status.f_frsize - nbytes
            < status.f_blocks * status.f_frsize * _FREE_SHARE
        ):
            return None
        file = self._create_file(size, count)
        return None if file is None else file.slots[0]

    def remove_unused(self) -> None:
        """Remove files without use since the last call, unless another thread fills a slot."""
        if self._lock.acquire(blocking=False):
            try:
                self._remove_free(lambda file: not file.is_used)
                for files in self._files.values():
                    for file in files:
                        file.is_used = False
            finally:
                self._lock.release()

    def _remove_free(self, predicate: Callable[[_File], bool]) -> None:
        for size, files in list(self._files.items()):
            for file in [file for file in files if predicate(file) and file.is_free]:
                _path(file.owner, file.number).unlink(missing_ok=True)
                files.remove(file)
            if not files:
                del self._files[size]

    def _create_file(self, size: int, count: int) -> _File | None:
        self._num_files += 1
        path, nbytes = _path(self._owner, self._num_files), _PAGE + count * size
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                # Without pages, a write to the mapping would raise SIGBUS.
                os.posix_fallocate(descriptor, 0, nbytes)
                flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
                memory = memoryview(mmap.mmap(descriptor, nbytes, flags))
            finally:
                os.close(descriptor)
        except OSError:
            path.unlink(missing_ok=True)
            return None
        file = _File(self._owner, self._num_files, nbytes, memory[:_PAGE].cast("Q"))
        data = np.frombuffer(memory[_PAGE:], np.uint8)
        for index in range(count):
            file.slots.append(Slot(file, index, data[index * size : (index + 1) * size]))
        self._files.setdefault(size, []).append(file)
        return file


class _CopyReference(weakref.ref[np.ndarray]):
    """Weak reference to a copy in a slot; `key` is the `id` of the copy."""

    __slots__ = ("key", "slot")
    key: int
    slot: Slot


class _ViewReference(weakref.ref[np.ndarray]):
    """Weak reference to the contents of a slot.

    `slot`: the generations of its file, its index and its generation.
    """

    __slots__ = ("slot",)
    slot: tuple[memoryview, int, int]


class SlotReader:
    """Slots that other processes filled for this one; usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: References to contents that are in use, by `id`: arrays have no hash.
        self._views: dict[int, _ViewReference] = {}
        #: (owner, file number) -> generations and contents.
        self._mapped: dict[tuple[str, int], tuple[memoryview, memoryview]] = {}
        self._closed = False

    def view(self, place: Any, nbytes: int) -> np.ndarray:
        """Return the contents of a slot without a copy; the slot is freed with their last view.

        Raises BlobError: the location is invalid, its file was removed, or the reader is closed.
        """
        return self.take(_checked_place(place), nbytes)

    def take(self, place: Place, nbytes: int) -> np.ndarray:
        """Return the contents of a slot as `view` does; the numbers may be any natural numbers.

        Raises BlobError: the location is invalid.
        Raises SlotError: its file was removed, or the reader is closed.
        """
        owner, number, size, index, generation = place
        mapping = self._mapped.get((owner, number))
        generations, memory = mapping or self._map(_checked_place(place))
        start = index * size
        if nbytes > size or start + size > memory.nbytes or index >= _MAX_SLOTS:
            raise BlobError(
                f"message with {nbytes} bytes in slot {index} of {size} bytes; expected a file of "
                f"{_PAGE + memory.nbytes} bytes to contain it."
            )
        with self._lock:  # after `close`, owners reuse the slots that were not taken
            if self._closed:
                raise SlotError("message with a tensor in shared memory for a closed channel.")
            generations[_TAKEN + index] = generation
        # All views have this array as their base, since its own base is not an array.
        flat = np.frombuffer(memory[start : start + nbytes], np.uint8)
        view = _ViewReference(flat, self._free)  # a third of the time of `weakref.finalize`
        view.slot = generations, index, generation
        self._views[id(view)] = view
        return flat

    def _free(self, view: Any) -> None:
        """Free the slot of contents that are garbage."""
        generations, index, generation = view.slot
        generations[index] = generation
        del self._views[id(view)]

    def unmap_process(self, process: Process) -> None:
        """Unmap the files of a process; arrays that view them keep them mapped."""
        suffix = f"-{process.number}-{process.start}-"
        with self._lock:
            for key in [key for key in self._mapped if suffix in key[0]]:
                del self._mapped[key]

    def unmap_removed(self) -> None:
        """Unmap files that their owners have removed."""
        with self._lock:
            for key in list(self._mapped):
                if not _path(*key).exists():
                    del self._mapped[key]

    def close(self) -> None:
        """Unmap all files, and take no more slots."""
        with self._lock:
            self._closed = True
            self._mapped.clear()

    def _map(self, place: Place) -> tuple[memoryview, memoryview]:
        owner, number, *_ = place
        self.unmap_removed()
        with self._lock:
            try:
                self._mapped[owner, number] = mapping = _map_file(_path(owner, number))
            except (OSError, ValueError) as error:
                raise SlotError(
                    f"message with a tensor in shared memory of {owner}, which cannot be read: "
                    f"{error}."
                ) from error
        return mapping


def _checked_place(place: Any) -> Place:
    """Return a place from another process; raise BlobError if it is invalid."""
    try:
        return msgspec.convert(place, Place)
    except ValueError as error:
        raise BlobError(f"message with a tensor in shared memory at {place!r}: {error}.") from error


def _slot_nbytes(nbytes: int) -> int:
    """Return the size of slots for contents: whole pages, at most a quarter more."""
    step = max(_PAGE, 1 << max(0, nbytes.bit_length() - 3))
    return -(-nbytes // step) * step


def _path(owner: str, number: int) -> Path:
    return FOLDER / f"{PREFIX}{owner}.{number}"


def _map_file(path: Path) -> tuple[memoryview, memoryview]:
    """Map a file; return its writable first page and its read-only rest."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid() or status.st_size <= _PAGE:
            raise ValueError(
                f"{path} has owner {status.st_uid} and {status.st_size} bytes; expected owner "
                f"{os.getuid()} and more than {_PAGE} bytes"
            )
        generations = memoryview(mmap.mmap(descriptor, _PAGE)).cast("Q")
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        rest = mmap.mmap(descriptor, status.st_size - _PAGE, flags, mmap.PROT_READ, offset=_PAGE)
        return generations, memoryview(rest)
    finally:
        os.close(descriptor)
