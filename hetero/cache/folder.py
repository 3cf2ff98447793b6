"""Cache folder: files of cache entries, with atomic writes, locks, encryption and a size limit.

A file is a blob: ``KEY.hetero`` for the plan of a model, ``KEY.stage`` for a subgraph,
``KEY.verdicts`` for the verification of a model on a device; KEY is a SHA-256 in hexadecimal
digits. Files with other names belong to the user and are not touched.
Problems with the folder or a file never fail a compilation: they are cache misses, with the reason
in the log.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
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
from hetero.devices.file_reader import open_regular, parse_json, read_regular
from hetero.properties.table import COSTS_SUFFIX
from hetero.scheduler.formats.blob_file import BlobFile, ForeignError, is_own
from hetero.scheduler.formats.publish import TEMPORARY_SUFFIX, publish

_log = logging.getLogger(__name__)

PLAN_SUFFIX: Final = ".hetero"
STAGE_SUFFIX: Final = ".stage"
VERDICTS_SUFFIX: Final = ".verdicts"
_SUFFIXES: Final = (PLAN_SUFFIX, STAGE_SUFFIX, VERDICTS_SUFFIX, COSTS_SUFFIX)
_LOCK_FOLDER: Final = ".locks"
_ENTRY_NAME: Final = re.compile(rf"[0-9a-f]{{64}}({'|'.join(map(re.escape, _SUFFIXES))})")
#: First bytes of an encrypted file.
_ENCRYPTED_MAGIC: Final = b"HETEROE\n"
#: Seconds between two attempts to acquire a lock.
_LOCK_POLL_S: Final = 0.05
#: Minimum age of an orphaned temporary file: a younger one may not be locked yet.
_MIN_ORPHAN_AGE_S: Final = 60.0

Callbacks = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]


@dataclass(frozen=True, slots=True)
class CacheFile:
    """A file of the cache, with its size and times."""

    path: Path
    nbytes: int
    #: Time of the write and of the last use, in seconds since the epoch.
    created_s: float
    used_s: float


class _OverLimitError(Exception):
    """A file exceeds the size limit of the whole cache."""


class Cache:
    """A folder of compiled models, shared by threads, processes and nodes.

    `folder`: created with the first file.
    `size_limit_nbytes`: maximum bytes of all files; 0 for no limit.
    `lock_timeout_s`: maximum seconds to wait for another process that compiles the same model.
    `callbacks`: (encrypt, decrypt), functions from bytes to bytes.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        size_limit_nbytes: int = 0,
        lock_timeout_s: float = 600.0,
        callbacks: Callbacks | None = None,
    ) -> None:
        # Absolute, because the working directory may change while the cache is in use.
        self.folder = Path(folder).absolute()
        self._size_limit_nbytes = size_limit_nbytes
        self._lock_timeout_s = lock_timeout_s
        self._callbacks = callbacks
        self._is_broken = False
        self._has_warned = False

    @property
    def encrypted(self) -> bool:
        """Whether files are encrypted."""
        return self._callbacks is not None

    def find(self, name: str) -> BlobFile | None:
        """Return a file, or None if it is missing or unusable; remove an unusable one."""
        path = self.folder / name
        try:
            blob = self._open(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ForeignError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("cache %s: ignoring foreign files: %s", self.folder, error)
            return None
        except BlobError as error:
            self.drop(name, str(error))
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                self.drop(name, "it is a symbolic link")
            else:
                _log.warning("cache entry %s: miss: %s", path, error.strerror)
            return None
        with contextlib.suppress(OSError):  # a read-only folder does not record use
            os.utime(path, ns=(time.time_ns(), os.lstat(path).st_mtime_ns), follow_symlinks=False)
        return blob

    def put(self, name: str, write: Callable[[BinaryIO], int]) -> bool:
        """Write a file atomically with `write`, and evict others if necessary.

        Errors are logged as warnings. After an error of the folder, no more files are written.

        Returns: whether the file was written.
        """
        if self._is_broken:
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            publish(self.folder / name, lambda file: self._write(file, write))
            self._evict()
        except _OverLimitError as error:
            _log.info("cache entry %s: not stored: %s", name, error)
            return False
        except (OSError, BlobError) as error:
            self._is_broken = True
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            _log.warning(
                "cache folder %s: %s; the model is compiled but not cached.", self.folder, reason
            )
            return False
        except Exception as error:  # a plugin's export may have any type
            _log.warning("cache entry %s: not stored: %s: %s", name, type(error).__name__, error)
            return False
        return True

    def drop(self, name: str, reason: str) -> None:
        """Remove an unusable file, and log the reason."""
        _log.warning("cache entry %s: miss: %s", self.folder / name, reason)
        with contextlib.suppress(OSError):  # it then remains, and is a miss the next time
            (self.folder / name).unlink()

    @contextmanager
    def lock(self, key: str) -> Iterator[bool]:
        """Lock a key, so that other processes wait; yield whether the lock was acquired.

        The operating system releases the lock when its process ends. After the timeout, or if the
        file system has no locks, the context runs without the lock.
        """
        lock = self._acquire(key)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                os.close(lock)

    def _acquire(self, key: str) -> int | None:
        """Return a file descriptor that holds the lock until it is closed, or None."""
        deadline_s = time.monotonic() + self._lock_timeout_s
        descriptor = None
        try:
            descriptor = self._open_lock(f"{key}.lock")
            while not _try_lock(descriptor):
                if time.monotonic() >= deadline_s:
                    os.close(descriptor)
                    _log.warning(
                        "cache key %s: another process has been compiling for over %g s; compiling "
                        "here as well.",
                        key,
                        self._lock_timeout_s,
                    )
                    return None
                time.sleep(_LOCK_POLL_S)
        except OSError as error:
            if descriptor is not None:
                os.close(descriptor)
            _log.debug("cache key %s: no lock: %s", key, error)
            return None
        return descriptor

    def _open_lock(self, name: str) -> int:
        """Open a lock file; raise OSError if another user may own it. Nothing is written to it."""
        folder = self.folder / _LOCK_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_CLOEXEC | os.O_NOFOLLOW
        folder_descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | flags)
        try:
            lock = os.open(name, os.O_RDWR | os.O_CREAT | flags, 0o600, dir_fd=folder_descriptor)
            status = os.fstat(lock)
            if not is_own(status) or status.st_nlink != 1:
                os.close(lock)
                raise OSError(errno.EPERM, "it may belong to another user", name)
        finally:
            os.close(folder_descriptor)
        return lock

    def entries(self) -> list[CacheFile]:
        """Return all files, the least recently used first."""
        files = []
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(self.folder) as dir_entries,
        ):
            for dir_entry in dir_entries:
                if _ENTRY_NAME.fullmatch(dir_entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        status = dir_entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            path = self.folder / dir_entry.name
                            times = (status.st_mtime, max(status.st_atime, status.st_mtime))
                            files.append(CacheFile(path, status.st_size, *times))
        return sorted(files, key=lambda entry: (entry.used_s, entry.path.name))

    def prune(
        self, size_limit_nbytes: int | None, *, older_than_s: float | None = None
    ) -> list[CacheFile]:
        """Remove old files, then the least recently used until the others fit; return these."""
        entries = self.entries()
        total = sum(entry.nbytes for entry in entries)
        now = time.time()
        removed = []
        for entry in entries:
            is_old = older_than_s is not None and now - entry.used_s > older_than_s
            if is_old or (size_limit_nbytes is not None and total > size_limit_nbytes):
                entry.path.unlink(missing_ok=True)
                total -= entry.nbytes
                removed.append(entry)
        self._sweep(_MIN_ORPHAN_AGE_S)
        return removed

    def clear(self) -> list[CacheFile]:
        """Remove all files, including temporary files of killed processes."""
        removed = self.entries()
        for entry in removed:
            entry.path.unlink(missing_ok=True)
        self._sweep(0.0)
        with contextlib.suppress(OSError):
            for path in (self.folder / _LOCK_FOLDER).iterdir():
                with contextlib.suppress(OSError):
                    lock = self._open_lock(path.name)
                    if _try_lock(lock):
                        path.unlink(missing_ok=True)
                    os.close(lock)
        return removed

    def check(self, entry: CacheFile) -> str | None:
        """Return the problem with a file, or None."""
        try:
            if entry.path.name.endswith(COSTS_SUFFIX):
                parse_json(read_regular(entry.path, follow_links=False).decode())
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
        if not data.startswith(_ENCRYPTED_MAGIC):
            raise BlobError(f"{path}: expected an encrypted file (CACHE_ENCRYPTION_CALLBACKS).")
        return BlobFile(self._call(1, data[len(_ENCRYPTED_MAGIC) :]))

    def _call(self, callback: int, data: bytes) -> bytes:
        """Encrypt (callback 0) or decrypt (callback 1) data."""
        assert self._callbacks is not None
        try:
            return bytes(self._callbacks[callback](data))
        except Exception as error:  # the user's function may raise anything
            operation = ("encrypt", "decrypt")[callback]
            raise BlobError(
                f"CACHE_ENCRYPTION_CALLBACKS: {operation}: {type(error).__name__}: {error}."
            ) from error

    def _write(self, file: BinaryIO, write: Callable[[BinaryIO], int]) -> None:
        if self._callbacks is None:
            nbytes = write(file)
        else:
            plain = io.BytesIO()
            write(plain)
            nbytes = file.write(_ENCRYPTED_MAGIC + self._call(0, plain.getvalue()))
        if 0 < self._size_limit_nbytes < nbytes:
            raise _OverLimitError(f"{nbytes} bytes, over the limit {self._size_limit_nbytes}.")

    def _evict(self) -> None:
        if self._size_limit_nbytes:
            for entry in self.prune(self._size_limit_nbytes):
                _log.info("cache entry %s: evicted, %d bytes.", entry.path, entry.nbytes)
        else:
            self._sweep(_MIN_ORPHAN_AGE_S)

    def _sweep(self, age_s: float) -> None:
        """Remove temporary files of processes that have ended."""
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


def _try_lock(descriptor: int) -> bool:
    """Lock a file, unless another process holds the lock; return whether it was acquired."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_cache(options: Mapping[str, Any]) -> Cache | None:
    """Return the cache of the option CACHE_DIR, or None without one."""
    folder = options["CACHE_DIR"]
    if not folder:
        return None
    try:
        return Cache(
            folder,
            size_limit_nbytes=options["CACHE_SIZE_LIMIT_BYTES"],
            lock_timeout_s=options["CACHE_LOCK_TIMEOUT_S"],
            callbacks=options["CACHE_ENCRYPTION_CALLBACKS"] or None,
        )
    except OSError as error:  # a relative path, and the working directory was removed
        _log.warning("cache folder %s: %s; the model is compiled but not cached.", folder, error)
        return None
