"""The cache's folder: entries published by rename, locks, a size cap; never trusted, never fatal.

An entry is a blob, ``KEY.hetero`` for a model's plan and ``KEY.stage`` for one subgraph; KEY is a
SHA-256 in hexadecimal digits. Files of other names are the user's, and are left alone. Whatever is
wrong with the folder or an entry is a miss with a reason in the log; compilation goes on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from hetero.devices.errors import BlobError
from hetero.properties.table import COSTS_SUFFIX
from hetero.scheduler.formats.blob_file import BlobFile, ForeignError, is_own
from hetero.scheduler.formats.publish import TEMPORARY_SUFFIX, publish
from hetero.scheduler.formats.regular_file import open_regular

_log = logging.getLogger(__name__)

PLAN_SUFFIX: Final = ".hetero"
STAGE_SUFFIX: Final = ".stage"
_LOCKS: Final = ".locks"
_ENTRY: Final = re.compile(
    rf"[0-9a-f]{{64}}({'|'.join(map(re.escape, (PLAN_SUFFIX, STAGE_SUFFIX, COSTS_SUFFIX)))})"
)
#: Starts an encrypted entry.
_ENCRYPTED: Final = b"HETEROE\n"
#: Between two looks whether a lock is free.
_LOOK_S: Final = 0.05
#: A temporary file younger than this may just not be locked yet.
_ORPHAN_S: Final = 60.0

Callbacks = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the cache."""

    path: Path
    nbytes: int
    #: When it was written and last used, in seconds since the epoch.
    created_s: float
    used_s: float


class _OverLimitError(Exception):
    """An entry is larger than the whole cache may be."""


class Cache:
    """A folder of compiled models, shared by threads, processes and nodes.

    `folder`: made when the first entry is written.
    `size_limit_nbytes`: bytes that all entries may take together; 0 for no limit.
    `lock_timeout_s`: seconds to wait for another's compilation.
    `callbacks`: (encrypt, decrypt), from bytes to bytes.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        size_limit_nbytes: int = 0,
        lock_timeout_s: float = 600.0,
        callbacks: Callbacks | None = None,
    ) -> None:
        # Absolute: the working directory may change while the cache is in use.
        self.folder = Path(folder).absolute()
        self._size_limit_nbytes = size_limit_nbytes
        self._lock_timeout_s = lock_timeout_s
        self._callbacks = callbacks
        self._failed = False
        self._told = False

    @property
    def encrypted(self) -> bool:
        """Whether entries are encrypted."""
        return self._callbacks is not None

    def find(self, name: str) -> BlobFile | None:
        """Return an entry, or None: it is absent, or was unusable and has been removed."""
        path = self.folder / name
        try:
            blob = self._open(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ForeignError as error:
            if not self._told:
                self._told = True
                _log.warning("cache %s: such entries are misses: %s", self.folder, error)
            return None
        except BlobError as error:
            self.drop(name, str(error))
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                self.drop(name, "it is a symbolic link")
            else:
                _log.warning("cache entry %s: a miss: %s", path, error.strerror)
            return None
        with contextlib.suppress(OSError):  # a folder that may only be read has no order of use
            os.utime(path, ns=(time.time_ns(), os.lstat(path).st_mtime_ns), follow_symlinks=False)
        return blob

    def has(self, name: str) -> bool:
        """Whether there is an entry, of use or not."""
        return os.path.lexists(self.folder / name)

    def put(self, name: str, write: Callable[[BinaryIO], int]) -> bool:
        """Publish an entry, which `write` writes: it appears whole under its name, or not at all.

        Returns: whether it is there now. What fails is logged as a warning; once the folder itself
            has failed, nothing more is tried.
        """
        if self._failed:
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            publish(self.folder / name, lambda file: self._write(file, write))
            self._evict()
        except _OverLimitError as error:
            _log.info("cache entry %s: not kept: %s", name, error)
            return False
        except (OSError, BlobError) as error:
            self._failed = True
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            _log.warning(
                "cache folder %s: %s; the model is compiled, and not kept.", self.folder, reason
            )
            return False
        except Exception as error:  # what a plugin exports may be of any type
            _log.warning("cache entry %s: not kept: %s: %s", name, type(error).__name__, error)
            return False
        return True

    def drop(self, name: str, reason: str) -> None:
        """Remove an entry that cannot be used, and say why."""
        _log.warning("cache entry %s: a miss: %s", self.folder / name, reason)
        with contextlib.suppress(OSError):  # it stays, and is a miss the next time too
            (self.folder / name).unlink()

    @contextmanager
    def lock(self, key: str) -> Iterator[bool]:
        """Keep others from compiling the same model at the same time; yield whether that is so.

        The operating system passes the lock on when its holder ends, however that happens. After
        the timeout, or where the folder has no locks, the work is done even so.
        """
        lock = self._acquire(key)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                os.close(lock)

    def _acquire(self, key: str) -> int | None:
        """Return a descriptor that holds the lock as long as it is open, or None."""
        until_s = time.monotonic() + self._lock_timeout_s
        descriptor = None
        try:
            descriptor = self._open_lock(f"{key}.lock")
            while not _lock(descriptor):
                if time.monotonic() >= until_s:
                    os.close(descriptor)
                    _log.warning(
                        "cache key %s: another process has compiled it for over %g s; compiling "
                        "here too.",
                        key,
                        self._lock_timeout_s,
                    )
                    return None
                time.sleep(_LOOK_S)
        except OSError as error:
            if descriptor is not None:
                os.close(descriptor)
            _log.debug("cache key %s: no lock: %s", key, error)
            return None
        return descriptor

    def _open_lock(self, name: str) -> int:
        """Open a lock's file, which nothing is written to; OSError where it may be another's."""
        folder = self.folder / _LOCKS
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_CLOEXEC | os.O_NOFOLLOW
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | flags)
        try:
            lock = os.open(name, os.O_RDWR | os.O_CREAT | flags, 0o600, dir_fd=place)
            status = os.fstat(lock)
            if not is_own(status) or status.st_nlink != 1:
                os.close(lock)
                raise OSError(errno.EPERM, "it may be another user's file", name)
        finally:
            os.close(place)
        return lock

    def entries(self) -> list[Entry]:
        """Return every entry, the least recently used first."""
        found = []
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(self.folder) as it,
        ):
            for file in it:
                if _ENTRY.fullmatch(file.name):
                    with contextlib.suppress(FileNotFoundError):
                        status = file.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            path = self.folder / file.name
                            times = (status.st_mtime, max(status.st_atime, status.st_mtime))
                            found.append(Entry(path, status.st_size, *times))
        return sorted(found, key=lambda entry: (entry.used_s, entry.path.name))

    def prune(
        self, size_limit_nbytes: int | None, *, older_than_s: float | None = None
    ) -> list[Entry]:
        """Remove old entries, then the least recently used until the rest fit; return these."""
        entries = self.entries()
        total = sum(entry.nbytes for entry in entries)
        now = time.time()
        gone = []
        for entry in entries:
            old = older_than_s is not None and now - entry.used_s > older_than_s
            if old or (size_limit_nbytes is not None and total > size_limit_nbytes):
                entry.path.unlink(missing_ok=True)
                total -= entry.nbytes
                gone.append(entry)
        self._sweep(_ORPHAN_S)
        return gone

    def clear(self) -> list[Entry]:
        """Remove every entry, and what compilers that were killed have left."""
        gone = self.entries()
        for entry in gone:
            entry.path.unlink(missing_ok=True)
        self._sweep(0.0)
        with contextlib.suppress(OSError):
            for path in (self.folder / _LOCKS).iterdir():
                with contextlib.suppress(OSError):
                    lock = self._open_lock(path.name)
                    if _lock(lock):
                        path.unlink(missing_ok=True)
                    os.close(lock)
        return gone

    def check(self, entry: Entry) -> str | None:
        """Return what is wrong with an entry, or None."""
        try:
            if entry.path.name.endswith(COSTS_SUFFIX):
                json.loads(entry.path.read_bytes())
            else:
                self._open(entry.path).verify()
        except (BlobError, OSError, ValueError) as error:
            return str(error)
        return None

    def _open(self, path: Path) -> BlobFile:
        if self._callbacks is None:
            return BlobFile(path, of_cache=True)
        with open_regular(path, follow_links=False) as file:
            if not is_own(os.fstat(file.fileno())):
                raise ForeignError(f"{path}: other users may have written it.")
            data = file.read()
        if not data.startswith(_ENCRYPTED):
            raise BlobError(f"{path}: not encrypted, as CACHE_ENCRYPTION_CALLBACKS wants it.")
        return BlobFile(self._call(1, data[len(_ENCRYPTED) :]))

    def _call(self, which: int, data: bytes) -> bytes:
        """Encrypt (0) or decrypt (1)."""
        assert self._callbacks is not None
        try:
            return bytes(self._callbacks[which](data))
        except Exception as error:  # the user's function may raise anything
            what = ("encrypt", "decrypt")[which]
            raise BlobError(
                f"CACHE_ENCRYPTION_CALLBACKS: {what}: {type(error).__name__}: {error}."
            ) from error

    def _write(self, file: BinaryIO, write: Callable[[BinaryIO], int]) -> None:
        if self._callbacks is None:
            nbytes = write(file)
        else:
            plain = io.BytesIO()
            write(plain)
            nbytes = file.write(_ENCRYPTED + self._call(0, plain.getvalue()))
        if 0 < self._size_limit_nbytes < nbytes:
            raise _OverLimitError(f"{nbytes} bytes, over the limit {self._size_limit_nbytes}.")

    def _evict(self) -> None:
        if self._size_limit_nbytes:
            for entry in self.prune(self._size_limit_nbytes):
                _log.info("cache entry %s: evicted, %d bytes.", entry.path, entry.nbytes)
        else:
            self._sweep(_ORPHAN_S)

    def _sweep(self, age_s: float) -> None:
        """Remove temporary files whose writers are gone."""
        now = time.time()
        for path in self.folder.glob(f".*{TEMPORARY_SUFFIX}"):
            with contextlib.suppress(OSError):
                if now - path.lstat().st_mtime < age_s:
                    continue
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock a file unless another has it; whether that went well."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def cache_of(own: Mapping[str, Any]) -> Cache | None:
    """Return the cache that options ask for."""
    folder = own["CACHE_DIR"]
    if not folder:
        return None
    try:
        return Cache(
            folder,
            size_limit_nbytes=own["CACHE_SIZE_LIMIT_BYTES"],
            lock_timeout_s=own["CACHE_LOCK_TIMEOUT_S"],
            callbacks=own["CACHE_ENCRYPTION_CALLBACKS"] or None,
        )
    except OSError as error:  # a relative path, and the working directory is gone
        _log.warning("cache folder %s: %s; the model is compiled, and not kept.", folder, error)
        return None
