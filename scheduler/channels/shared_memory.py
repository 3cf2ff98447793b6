"""Tensors in memory that the processes of a node share: pools of slots in plain files.

Each process makes files in ``/dev/shm``, fills slots of them, and sends where they are; a reader
maps a file once and keeps it. In a file::

    half a page   for each slot the generation, 8 bytes, that its last reader is done with
    half a page   for each slot the generation, 8 bytes, that its last reader has taken
    the rest      slots of one size

A slot is filled under its next generation, and free again when its reader, or its owner, has
written that back: when the last array that views it is garbage. Readers that died write nothing;
their slots are reclaimed once that is known, and so are those that a closed channel has not taken.
Owners unlink their files; what a dead one left is swept by others. Names hold the owner, as
`owned_files` has it.
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
_PREFIX: Final = "hetero-"
_PAGE: Final = mmap.ALLOCATIONGRANULARITY
#: Where in the first page, counted in generations, those begin that were taken.
_TAKEN: Final = _PAGE // 16
_MOST_SLOTS: Final = min(64, _TAKEN)
#: A file holds as many slots as fit into so many bytes, and one at least.
_FILE_NBYTES: Final = 8 * 2**20
#: A pool takes this part of the folder's file system at most, and leaves that part of it free: what
#: Ray keeps there is reserved only when it is written, and would end in a SIGBUS.
_MOST: Final = 1 / 4
_LEFT: Final = 1 / 2


_OWNER: Final = r"^[0-9a-f]{1,16}-[0-9]{1,10}-[0-9]{1,20}-[0-9a-f]{1,16}\Z"
_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class Place(NamedTuple):
    """What finds a slot: owner, file, its size, index and generation."""

    owner: Annotated[str, msgspec.Meta(pattern=_OWNER)]
    number: _Number
    nbytes: _Number
    slot: _Number
    generation: _Number


@dataclass(slots=True, eq=False)
class Slot:
    """A place for one tensor."""

    file: _File
    index: int
    data: np.ndarray
    generation: int = 0
    #: Whose it is: a process, and the identity of its channel.
    reader: Process | None = None
    channel: bytes = b""

    @property
    def is_free(self) -> bool:
        """Whether nobody reads it any more."""
        return self.file.generations[self.index] == self.generation

    @property
    def is_taken(self) -> bool:
        """Whether its reader has it."""
        return self.file.generations[_TAKEN + self.index] == self.generation

    @property
    def place(self) -> Place:
        """Where it is."""
        owner, number = self.file.owner, self.file.number
        return Place(owner, number, self.data.nbytes, self.index, self.generation)

    def free(self) -> None:
        """Let it be used again: nobody reads it, or ever will."""
        self.file.generations[self.index] = self.generation


@dataclass(slots=True, eq=False)
class _File:
    owner: str
    number: int
    nbytes: int
    generations: memoryview
    slots: list[Slot] = field(default_factory=list)
    #: Whether a slot of it was filled since that was last looked at.
    is_used: bool = True

    @property
    def is_free(self) -> bool:
        """Whether nobody reads any."""
        return all(slot.is_free for slot in self.slots)


class SlotPool:
    """The slots that one process fills; from any thread.

    `nbytes`: how large all files may get; by default a quarter of the file system, of which half
        stays free in any case.
    """

    def __init__(self, nbytes: int | None = None) -> None:
        sweep(FOLDER, _PREFIX)
        status = os.statvfs(FOLDER)
        self._most_nbytes = int(status.f_blocks * status.f_frsize * _MOST)
        if nbytes is not None:
            self._most_nbytes = nbytes
        self._owner = owned_name(os.urandom(4).hex())
        self._remove = remove_with(self, FOLDER, f"{_PREFIX}{self._owner}.*")
        self._lock = threading.Lock()
        self._num_made = 0
        #: By the size of their slots.
        self._files: dict[int, list[_File]] = {}

    @property
    def nbytes(self) -> int:
        """How large the files are now."""
        return sum(file.nbytes for files in self._files.values() for file in files)

    def fill(self, contents: np.ndarray, reader: Process, channel: bytes = b"") -> Slot | None:
        """Copy flat bytes to a slot for a reader's channel; None if there is no slot."""
        # At most a quarter more, whole pages.
        step = max(_PAGE, 1 << max(0, contents.nbytes.bit_length() - 3))
        size = -(-contents.nbytes // step) * step
        with self._lock:
            slot = self._find(size)
            if slot is None:
                return None
            slot.generation += 1
            slot.reader, slot.channel = reader, channel
        np.copyto(slot.data[: contents.nbytes], contents)
        return slot

    def take_back(self, slots: Iterable[tuple[Slot, int]]) -> None:
        """Free slots that were not sent, by the generation that they were filled under."""
        with self._lock:
            for slot, generation in slots:
                if slot.generation == generation:  # else it has come back already
                    slot.free()

    def free_untaken(self, channel: bytes) -> None:
        """Free the slots that a closed channel has not taken: it never will."""
        with self._lock:
            for slot in self._filled():
                if slot.channel == channel and not slot.is_taken:
                    slot.free()

    def free_all_of(self, reader: Process) -> None:
        """Free the slots of a reader that is known to have ended, and remove its own files."""
        with self._lock:
            for slot in self._filled():
                if slot.reader == reader:
                    slot.free()
        sweep(FOLDER, _PREFIX)

    def close(self) -> None:
        """Remove the files; what readers have mapped stays theirs."""
        with self._lock:
            self._remove()
            for files in self._files.values():
                for file in files:
                    file.slots.clear()
            self._files.clear()
            self._most_nbytes = 0

    def _filled(self) -> list[Slot]:
        slots = (slot for files in self._files.values() for file in files for slot in file.slots)
        return [slot for slot in slots if not slot.is_free]

    def _find(self, size: int) -> Slot | None:
        # A file's first free slot, always: few are in use then, and those are in the caches.
        files = self._files.get(size, [])
        for _ in files:
            if slot := next((slot for slot in files[0].slots if slot.is_free), None):
                files[0].is_used = True
                return slot
            files.append(files.pop(0))  # where most are held, those are found last
        count = max(1, min(_MOST_SLOTS, _FILE_NBYTES // size))
        nbytes = _PAGE + count * size
        if self.nbytes + nbytes > self._most_nbytes:
            self._remove_free(lambda file: True)
            if self.nbytes + nbytes > self._most_nbytes:
                return None
        status = os.statvfs(FOLDER)
        if status.f_bavail * status.f_frsize - nbytes < status.f_blocks * status.f_frsize * _LEFT:
            return None
        made = self._make(size, count)
        return None if made is None else made.slots[0]

    def give_back(self) -> None:
        """Remove what nobody has used since this was last called, unless somebody fills now."""
        if self._lock.acquire(blocking=False):
            try:
                self._remove_free(lambda file: not file.is_used)
                for files in self._files.values():
                    for file in files:
                        file.is_used = False
            finally:
                self._lock.release()

    def _remove_free(self, chosen: Callable[[_File], bool]) -> None:
        for size, files in list(self._files.items()):
            for file in [file for file in files if chosen(file) and file.is_free]:
                _path(file.owner, file.number).unlink(missing_ok=True)
                files.remove(file)
            if not files:
                del self._files[size]

    def _make(self, size: int, count: int) -> _File | None:
        self._num_made += 1
        path, nbytes = _path(self._owner, self._num_made), _PAGE + count * size
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                # Pages that are not there when they are written to would be a SIGBUS.
                os.posix_fallocate(descriptor, 0, nbytes)
                flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
                memory = memoryview(mmap.mmap(descriptor, nbytes, flags))
            finally:
                os.close(descriptor)
        except OSError:
            path.unlink(missing_ok=True)
            return None
        file = _File(self._owner, self._num_made, nbytes, memory[:_PAGE].cast("Q"))
        data = np.frombuffer(memory[_PAGE:], np.uint8)
        for index in range(count):
            file.slots.append(Slot(file, index, data[index * size : (index + 1) * size]))
        self._files.setdefault(size, []).append(file)
        return file


class SlotReader:
    """The slots that others filled for this process; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: (owner, file number) -> generations, contents.
        self._mapped: dict[tuple[str, int], tuple[memoryview, memoryview]] = {}
        self._closed = False

    def view(self, place: Any, nbytes: int) -> np.ndarray:
        """Return what is in a slot, without a copy; it is given back with the last view of it.

        Raises BlobError: there is no such place, it is no longer there, or this is closed.
        """
        try:
            owner, number, size, index, generation = msgspec.convert(place, Place)
        except ValueError as error:
            raise BlobError("message with a tensor in shared memory that is nowhere.") from error
        generations, memory = self._mapped.get((owner, number)) or self._map(owner, number)
        start = index * size
        if nbytes > size or start + size > memory.nbytes or index >= _MOST_SLOTS:
            raise BlobError(f"message with {nbytes} bytes in slot {index} of {size}: not there.")
        with self._lock:  # once closed, what is not taken is the owner's again
            if self._closed:
                raise BlobError("message with a tensor in shared memory for a closed channel.")
            generations[_TAKEN + index] = generation
        # All views have this very array as their base: its own is no array.
        flat = np.frombuffer(memory[start : start + nbytes], np.uint8)
        weakref.finalize(flat, generations.__setitem__, index, generation).atexit = False
        return flat

    def forget(self, process: Process) -> None:
        """Unmap what a process owned that has ended; arrays that view it keep it."""
        owned = f"-{process.number}-{process.start}-"
        with self._lock:
            for key in [key for key in self._mapped if owned in key[0]]:
                del self._mapped[key]

    def tidy(self) -> None:
        """Unmap files that their owners have removed."""
        with self._lock:
            for key in list(self._mapped):
                if not _path(*key).exists():
                    del self._mapped[key]

    def close(self) -> None:
        """Unmap all that no array views, and take no more."""
        with self._lock:
            self._closed = True
            self._mapped.clear()

    def _map(self, owner: str, number: int) -> tuple[memoryview, memoryview]:
        self.tidy()
        with self._lock:
            try:
                self._mapped[owner, number] = found = _mapped(_path(owner, number))
            except (OSError, ValueError) as error:
                raise BlobError(
                    f"a tensor in shared memory of {owner} cannot be read: {error}."
                ) from error
        return found


def _path(owner: str, number: int) -> Path:
    return FOLDER / f"{_PREFIX}{owner}.{number}"


def _mapped(path: Path) -> tuple[memoryview, memoryview]:
    """Return a file's first page, writable, and the rest, not."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid() or status.st_size <= _PAGE:
            raise ValueError(f"{path} is none of ours")
        generations = memoryview(mmap.mmap(descriptor, _PAGE)).cast("Q")
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        rest = mmap.mmap(descriptor, status.st_size - _PAGE, flags, mmap.PROT_READ, offset=_PAGE)
        return generations, memoryview(rest)
    finally:
        os.close(descriptor)
