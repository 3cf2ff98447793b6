"""Starting a local Ray, or joining a cluster, with errors that say what to do.

A local Ray is lean (no dashboard, no usage reports, no worker logs on the caller's terminal), its
workers run at the caller's own priority, and its ports take nobody who lacks this session's token.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import AuthenticationError

from hetero.devices.errors import ClusterError
from hetero.devices.plugin import native_call  # noqa: F401 - keeps forks from what C++ destroys last
from hetero.scheduler.processes import process_end
from hetero.scheduler.processes.home_process import HomeProcess
from hetero.scheduler.processes.owned_files import process_start
from hetero.scheduler.ray.address import check_is_node, check_reachable, find_address
from hetero.scheduler.ray.own_head import find_head
from hetero.scheduler.ray.private_api import (
    current_connection,
    disarm_in_fork,
    enable_token,
    reload_credentials,
    silence_error_messages,
)
from hetero.scheduler.ray.signals import default_signals, own_signals
from hetero.scheduler.ray.watch import ClusterWatch

#: The Ray namespace of our actors.
NAMESPACE: Final = "hetero"
#: The longest that a call into Ray may take before it looks whether the cluster is still there.
LOOK_S: Final = 2.0
#: A local Ray's temporary folder, with a file that says whose it is: process id and its start.
_PREFIX: Final = "het-"
_OWNER: Final = "owner"
#: Unix socket paths hold 107 bytes; Ray's own part of them takes up to 75.
_LONGEST_FOLDER: Final = 30
_CREDENTIALS: Final = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
#: Environment variables of a local Ray.
_LEAN: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    # Ray's default of 15 would give a busy machine's other work precedence over devices.
    "RAY_worker_niceness": "0",
    # A failed stage fails what follows it; that reaches the caller by its future alone.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
}
#: How Ray is started or joined.
_INIT: Final[dict[str, Any]] = {
    "namespace": NAMESPACE,
    "log_to_driver": False,
    "logging_level": logging.ERROR,
    "configure_logging": False,
}
#: And of a cluster that is joined.
_JOINED: Final = {
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    # What this process tells of its tasks would be waited for as it leaves.
    "RAY_task_events_report_interval_ms": "0",
}


class RaySession:
    """A connection of this process to Ray.

    `started`: whether we started or joined it, and so end it.
    `folder`: its temporary folder, where we started it.
    """

    def __init__(self, started: bool, folder: Path | None = None) -> None:
        #: How many got it from `connect` and have not closed it.
        self.users = 1
        self._started = started
        self._is_ended = False
        self.folder = folder
        #: The environment's variables as they were, which it is given back.
        self.before: dict[str, str | None] = {}
        self._home = HomeProcess()
        #: Called with what to raise if the cluster goes.
        self.when_gone: list[Callable[[ClusterError], None]] = []
        self._connection: object = None
        self._watch: ClusterWatch | None = None

    def watch(self) -> RaySession:
        """Begin to look after the cluster, once Ray is connected to it."""
        if self._started:
            silence_error_messages()
        self._connection = current_connection()
        self._watch = ClusterWatch(ray.get_runtime_context().gcs_address, self._lose)
        return self

    @property
    def is_local(self) -> bool:
        """Whether it is a Ray that was started here, of one node."""
        return self.folder is not None

    @property
    def is_left(self) -> bool:
        """Whether this process leaves Ray, or has left it."""
        return self._is_ended or not self.is_ours

    @property
    def is_ours(self) -> bool:
        """Whether this process is still connected as it was when the session began."""
        return self._connection is not None and current_connection() is self._connection

    def check(self) -> None:
        """Raise ClusterError if the cluster is gone, or was left: a call would start another."""
        assert self._watch is not None
        if self._watch.gone is not None:
            raise self._watch.gone
        if not self.is_ours:
            raise ClusterError(
                "this process has left the Ray cluster (ray.shutdown); make a new Core.",
                address=self._watch.address,
            )

    def check_head(self) -> None:
        """Raise ClusterError if the cluster's head does not answer: Ray would wait for it."""
        self.check()
        assert self._watch is not None
        self._watch.look()

    def wait(self, refs: Sequence[Any], timeout_s: float) -> bool:
        """Wait until all of `refs` are there; False if they are not in time.

        Raises ClusterError: the cluster is gone.
        """
        until_s = time.monotonic() + timeout_s
        while True:
            self.check()
            left_s = max(0.0, until_s - time.monotonic())
            ready, _ = ray.wait(list(refs), num_returns=len(refs), timeout=min(LOOK_S, left_s))
            if len(ready) == len(refs) or left_s <= LOOK_S:
                return len(ready) == len(refs)

    def wait_until_left(self) -> None:
        """Wait, if the cluster is gone, until this process has left it."""
        if self._watch is not None and self._watch.gone is not None:
            self._watch.join()

    def close(self, *, parts: bool = False) -> None:
        """Leave Ray, and stop it if it was started here, once nobody else uses it.

        `parts`: from a cluster in any case, which may end before this process does.
        """
        with _lock:
            self.users -= 1
            if self.users <= 0:
                self.end(parts=parts)

    def end(self, *, parts: bool = False) -> None:
        """Leave Ray, and stop it if it was started here; again is harmless."""
        if not self._home.is_current:
            return
        self._is_ended = True
        if self._watch is not None:
            self._watch.close()
        if self._started:
            self._started = False
            if process_end.exits_soon() and not (parts or self.is_local):
                # The cluster sees a process end; to part from it takes Ray a quarter of a second.
                atexit.unregister(ray.shutdown)
            elif self.is_ours or self._connection is None:
                ray.shutdown()
            default_signals()
        if not process_end.exits_soon():  # whoever ends needs no environment
            _restore(self.before)
        self.before = {}
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None
        atexit.unregister(self.end)

    def _lose(self, error: ClusterError) -> None:
        """Tell who uses the cluster that it is gone, and leave it."""
        for tell in list(self.when_gone):
            tell(error)
        # Who waits in Ray must be out of it, and see that it is gone, before it is left.
        time.sleep(2 * LOOK_S)
        with _lock:
            self.end()


#: Ray is one for a process, so its session is shared: the last user's `close` ends it.
_lock = threading.RLock()
_current: RaySession | None = None


def connect(
    address: str | None = None, *, options: Mapping[str, Any] | None = None, timeout_s: float = 15.0
) -> RaySession:
    """Use the Ray that this process is in, join the cluster at `address`, or start a local one.

    `address`: ``host:port`` of a running cluster, ``auto`` for the one on this machine, or
        ``local`` for a new one; by default what the environment's ``RAY_ADDRESS`` says, as for Ray
        itself, then this user's pool if one is up, and ``local`` without either.
    `options`: more of `ray.init`'s arguments for a local Ray, such as ``num_cpus``.
    `timeout_s`: seconds to wait for a cluster's answer.
    Raises ClusterError: Ray could not start, or nothing answers at `address`.
    """
    global _current
    if _current is not None:
        _current.wait_until_left()
    with _lock:
        if _current is not None and _current.is_left:
            _current.end()  # Ray was left without it, or is being left
            _current = None
        if ray.is_initialized():
            if _current is None:
                return RaySession(started=False).watch()
            _current.users += 1
            return _current
        before = {n: os.environ.get(n) for n in {*_CREDENTIALS, *_LEAN, *_JOINED}}
        try:
            address = address or os.environ.get("RAY_ADDRESS") or find_head() or "local"
            if address == "local":
                _current = _start(dict(options or {}))
            else:
                address = find_address(address)
                check_reachable(address, timeout_s)
                _current = _join(address)
        except BaseException:
            _restore(before)
            raise
        _current.before = before
        return _current


def _restore(before: Mapping[str, str | None]) -> None:
    """Restore the environment's variables, and make Ray read its credentials again."""
    if not before:
        return
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    reload_credentials()


def _set(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _start(options: dict[str, Any]) -> RaySession:
    folder = _make_folder()
    _set(_LEAN)
    if not any(name in os.environ for name in _CREDENTIALS):
        # A token for this process only; Ray would write one to the home folder, for all to read.
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
    session = RaySession(True, folder)
    try:
        with _quiet(), own_signals():
            own: dict[str, Any] = {"include_dashboard": False, "_temp_dir": str(folder)}
            ray.init(address="local", **own, **_INIT, **options)
    except BaseException as error:
        with contextlib.suppress(Exception):  # it may have started in part, or not at all
            session.end()
        if not isinstance(error, Exception):  # Ctrl-C
            raise
        raise ClusterError(
            f"Ray cannot start on this machine: {type(error).__name__}: {error}. Check free "
            f"memory, /dev/shm and the permissions of {folder.parent}; without Ray everything "
            "runs in process: --executor inprocess, Core(executor='inprocess').",
            cause=str(error),
        ) from error
    # Ray's own exit handler stops its processes first: handlers run last in, first out.
    atexit.register(session.end)
    return session.watch()


def _make_folder() -> Path:
    """Make a folder for a Ray of this process, and remove those of processes that are gone.

    Raises ClusterError: there is no folder for temporary files.
    """
    try:
        Path.cwd()  # which its processes start in
        parent = tempfile.gettempdir()
        parent = parent if len(parent) <= _LONGEST_FOLDER else "/tmp"
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        (folder / _OWNER).write_text(f"{os.getpid()} {process_start(os.getpid())}")
    except OSError as error:
        raise ClusterError(
            f"Ray cannot start on this machine: it needs a working directory and a temporary "
            f"one: {error}. Change into one that is there, set TMPDIR to one that can be written, "
            "or run in process: --executor inprocess.",
            cause=str(error),
        ) from error
    for other in folder.parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):  # not one of ours, or somebody is faster
            number, started = (other / _OWNER).read_text().split()
            if process_start(int(number)) != started:
                shutil.rmtree(other, ignore_errors=True)
    return folder


def _join(address: str) -> RaySession:
    _set(_JOINED)
    try:
        with _quiet(), own_signals():
            enable_token()
            check_is_node(address)
            ray.init(address=address, **_INIT)
    except ClusterError:
        raise
    except AuthenticationError as error:
        raise ClusterError(
            f"the Ray cluster at {address!r} takes nobody without its token: copy its "
            "~/.ray/auth_token here, or name it by RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN.",
            address=address,
            cause=str(error),
        ) from error
    except Exception as error:
        with contextlib.suppress(Exception):  # it may be half connected, or not at all
            ray.shutdown()
        raise ClusterError(
            f"no Ray cluster to join at {address!r}: {type(error).__name__}: {error}. Check that "
            "`ray status` works there, and that Ray and Python have the same versions on both.",
            address=address,
            cause=str(error),
        ) from error
    session = RaySession(True)
    atexit.register(session.end)
    return session.watch()


def _leave_fork() -> None:
    """Keep a forked process, as it ends, from ending its parent's Ray: it has none of its own."""
    atexit.unregister(ray.shutdown)
    disarm_in_fork()


os.register_at_fork(after_in_child=_leave_fork)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray's start-up from telling of what is decided here on purpose."""
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
