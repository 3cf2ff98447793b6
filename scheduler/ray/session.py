"""Sessions with Ray: start a local Ray or join a cluster.

A local Ray has no dashboard, no usage reports and no worker logs on the caller's terminal. Its
workers run at the caller's priority, and its ports require the access token of this session.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import shutil
import subprocess
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
from hetero.devices.file_reader import read_regular
from hetero.devices.plugin import native_call  # noqa: F401 - keeps forks from what C++ destroys last
from hetero.scheduler.channels.shared_memory import FOLDER, PREFIX
from hetero.scheduler.processes import process_end
from hetero.scheduler.processes.client_guard import start_guard
from hetero.scheduler.processes.home_process import HomeProcess
from hetero.scheduler.processes.owned_files import is_private, process_start
from hetero.scheduler.ray.address import check_is_node, check_reachable
from hetero.scheduler.ray.auto_address import find_cluster
from hetero.scheduler.ray.cluster_watch import ClusterWatch
from hetero.scheduler.ray.local_cluster import find_head
from hetero.scheduler.ray.private_api import (
    current_connection,
    disarm_in_fork,
    enable_token,
    loopback_only,
    reload_credentials,
    silence_error_messages,
    without_monitors,
)
from hetero.scheduler.ray.signals import default_signals, own_signals

#: The Ray namespace of our actors.
NAMESPACE: Final = "hetero"
#: Seconds between two checks of the cluster during a blocking call into Ray.
LOOK_S: Final = 2.0
#: Prefix of a local Ray's temporary folder; its file with the owner's process id and start time.
_PREFIX: Final = "het-"
_OWNER: Final = "owner"
#: Maximum size of that file in bytes.
_OWNER_NBYTES: Final = 4096
#: Unix socket paths hold 107 bytes; Ray's own part of them takes up to 75.
_LONGEST_FOLDER: Final = 30
_CREDENTIALS: Final = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
#: Environment variables of a local Ray.
_LEAN: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    # Ray's default of 15 would give a busy machine's other work precedence over devices.
    "RAY_worker_niceness": "0",
    # The caller receives the errors of stages through its future.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
}
#: In Ray's error if its own processes take more than 20 to 30 s to start, as on a busy machine.
#: These limits are fixed; a second start often succeeds, because the programs are in memory.
_TIMED_OUT: Final = "timed out during startup"
#: Arguments of `ray.init` for starting and joining.
_INIT: Final[dict[str, Any]] = {
    "namespace": NAMESPACE,
    "log_to_driver": False,
    "logging_level": logging.ERROR,
    "configure_logging": False,
}
#: Environment variables for joining a cluster.
_JOINED: Final = {
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    # Without task events, leaving the cluster need not wait for their delivery.
    "RAY_task_events_report_interval_ms": "0",
}


class RaySession:
    """Connection of this process to Ray.

    `is_owner`: whether hetero started or joined Ray, and therefore has to leave it.
    `folder`: the temporary folder of a Ray that hetero started.
    """

    def __init__(self, is_owner: bool, folder: Path | None = None) -> None:
        #: Number of users that got the session from `connect` and have not closed it.
        self.users = 1
        self._is_owner = is_owner
        self._is_ended = False
        self.folder = folder
        #: The previous environment variables, restored at the end.
        self.previous_environment: dict[str, str | None] = {}
        self._home_process = HomeProcess()
        #: Called with an error when the cluster is lost.
        self.loss_callbacks: list[Callable[[ClusterError], None]] = []
        self._connection: object = None
        self._watch: ClusterWatch | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        if is_owner:
            client = os.getpid()
            self._guard = start_guard(client, process_start(client), folder, FOLDER, PREFIX)

    def watch(self) -> RaySession:
        """Start watching the cluster after Ray has connected to it."""
        if self._is_owner:
            silence_error_messages()
        self._connection = current_connection()
        self._watch = ClusterWatch(ray.get_runtime_context().gcs_address, self._handle_loss)
        return self

    @property
    def is_local(self) -> bool:
        """Whether hetero started this Ray, which then has one node."""
        return self.folder is not None

    @property
    def is_left(self) -> bool:
        """Whether this process is leaving Ray, or has left it."""
        return self._is_ended or not self.is_ours

    @property
    def is_ours(self) -> bool:
        """Whether this process still has the connection with which the session began."""
        return self._connection is not None and current_connection() is self._connection

    def check(self) -> None:
        """Raise ClusterError after the cluster was lost or left; Ray would start another one."""
        assert self._watch is not None
        if self._watch.loss_error is not None:
            raise self._watch.loss_error
        if not self.is_ours:
            raise ClusterError(
                "this process has left the Ray cluster (ray.shutdown); make a new Core.",
                address=self._watch.address,
            )

    def check_head(self) -> None:
        """Raise ClusterError if the head node does not respond; Ray itself would wait for it."""
        self.check()
        assert self._watch is not None
        self._watch.check()

    def wait(self, refs: Sequence[Any], timeout_s: float) -> bool:
        """Wait for all of `refs`; return False after a timeout.

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
        """If the cluster is gone, wait until this process has left it."""
        if self._watch is not None and self._watch.loss_error is not None:
            self._watch.join()

    def close(self, *, parts: bool = False) -> None:
        """Leave Ray after its last user; stop a Ray that hetero started.

        `parts`: disconnect even if this process exits soon, because the cluster may end before it.
        """
        with _lock:
            self.users -= 1
            if self.users <= 0:
                self.end(parts=parts)

    def end(self, *, parts: bool = False) -> None:
        """Leave Ray, and stop it if hetero started it; idempotent."""
        if not self._home_process.is_current:
            return
        self._is_ended = True
        if self._watch is not None:
            self._watch.close()
        if self._is_owner:
            self._is_owner = False
            if process_end.exits_soon() and not (parts or self.is_local):
                # The cluster notices the end of this process; disconnecting takes Ray 0.25 s.
                atexit.unregister(ray.shutdown)
            elif self.is_ours or self._connection is None:
                ray.shutdown()
            default_signals()
        if not process_end.exits_soon():  # an exiting process needs no environment
            _restore(self.previous_environment)
        self.previous_environment = {}
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            self._guard = None
        atexit.unregister(self.end)

    def _handle_loss(self, error: ClusterError) -> None:
        """Notify the users of the cluster that it is lost, and leave it."""
        for notify in list(self.loss_callbacks):
            notify(error)
        # Threads that wait in Ray have to return and notice the loss before Ray shuts down.
        time.sleep(2 * LOOK_S)
        with _lock:
            self.end()


#: A process has one connection to Ray, so its users share one session; the last `close` ends it.
_lock = threading.RLock()
_current: RaySession | None = None


def connect(
    address: str | None = None, *, options: Mapping[str, Any] | None = None, timeout_s: float = 15.0
) -> RaySession:
    """Use this process's present connection to Ray, join a cluster, or start a local Ray.

    `address`: ``host:port`` of a running cluster, ``auto`` for the one on this machine, or
        ``local`` for a new one. Defaults to the environment variable ``RAY_ADDRESS``, then to the
        user's local pool if one is up, otherwise to ``local``.
    `options`: additional arguments of `ray.init` for a local Ray, such as ``num_cpus``.
    `timeout_s`: time limit for the cluster to respond, in seconds.
    Raises ClusterError: Ray could not start, or no Ray responds at `address`.
    """
    global _current
    if _current is not None:
        _current.wait_until_left()
    with _lock:
        if _current is not None and _current.is_left:
            _current.end()  # the caller shut Ray down, or is doing so
            _current = None
        if ray.is_initialized():
            if _current is None:
                return RaySession(is_owner=False).watch()
            _current.users += 1
            return _current
        before = {n: os.environ.get(n) for n in {*_CREDENTIALS, *_LEAN, *_JOINED}}
        try:
            address = address or os.environ.get("RAY_ADDRESS") or find_head() or "local"
            if address == "local":
                try:
                    _current = _start(dict(options or {}))
                except ClusterError as error:
                    if _TIMED_OUT not in str(error):
                        raise
                    _restore(before)  # the token's path, above all
                    _current = _start(dict(options or {}))
            else:
                address = find_cluster() if address == "auto" else address
                check_reachable(address, timeout_s)
                _current = _join(address)
        except BaseException:
            _restore(before)
            raise
        _current.previous_environment = before
        return _current


def _restore(before: Mapping[str, str | None]) -> None:
    """Restore environment variables, and make Ray read its credentials again."""
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
        # A token for this process only; Ray would write a readable one to the home folder.
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
    session = RaySession(True, folder)
    try:
        with _without_start_messages(), own_signals(), loopback_only(), without_monitors():
            own: dict[str, Any] = {"include_dashboard": False, "_temp_dir": str(folder)}
            ray.init(address="local", **own, **_INIT, **options)
    except BaseException as error:
        with contextlib.suppress(Exception):  # Ray may have started only in part
            session.end()
        if not isinstance(error, Exception):  # Ctrl-C
            raise
        raise ClusterError(
            f"Ray cannot start on this machine: {type(error).__name__}: "
            f"{str(error).rstrip('.')}. Check free memory, /dev/shm and the permissions of "
            f"{folder.parent}, or try again when the machine is less busy; without Ray everything "
            "runs in process: --executor inprocess, Core(executor='inprocess').",
            cause=str(error),
        ) from error
    # Ray's own exit handler stops its processes first: handlers run last in, first out.
    atexit.register(session.end)
    return session.watch()


def _make_folder() -> Path:
    """Create a folder for a local Ray, and remove the folders of processes that have ended.

    Raises ClusterError: no folder for temporary files exists.
    """
    try:
        Path.cwd()  # Ray's processes start in it
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
        with contextlib.suppress(OSError, ValueError):  # foreign, or another process removed it
            # Another user may put anything there, such as a pipe that never ends.
            if not is_private(other):
                continue
            owner = read_regular(other / _OWNER, _OWNER_NBYTES, follow_links=False, is_own=True)
            number, start_time = owner.decode().split()
            if process_start(int(number)) != start_time:
                shutil.rmtree(other, ignore_errors=True)
    return folder


def _join(address: str) -> RaySession:
    _set(_JOINED)
    try:
        with _without_start_messages(), own_signals():
            enable_token()
            # Ray would take the network's address of this machine for 127.0.0.1.
            is_local = check_is_node(address) == {"127.0.0.1"}
            with loopback_only() if is_local else contextlib.nullcontext():
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
        with contextlib.suppress(Exception):  # Ray may have connected only in part
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
    """Keep a forked process from ending its parent's Ray at exit."""
    atexit.unregister(ray.shutdown)
    disarm_in_fork()


os.register_at_fork(after_in_child=_leave_fork)


@contextlib.contextmanager
def _without_start_messages() -> Iterator[None]:
    """Suppress start-up messages of Ray about settings that hetero chooses on purpose."""
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
