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
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final

from devices.errors import ClusterError

#: The Ray namespace of our actors.
NAMESPACE: Final = "hetero"
#: The custom resource that a node declares when it takes device actors, and what an actor asks
#: of it: a mark of where actors may go, not a measure of anything.
RESOURCE: Final = "hetero"
RESOURCE_SHARE: Final = 0.001
#: Unix socket paths hold 107 bytes; Ray's own part of them takes up to 75.
_LONGEST_FOLDER: Final = 30
#: What an HTTP/2 client begins with, settings included, and the type of the frame that a server
#: begins its answer with (RFC 9113, sections 3.4 and 6.5).
_HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_HTTP2_SETTINGS: Final = b"\4"
_CREDENTIALS: Final = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@dataclass(slots=True)
class RaySession:
    """A connection to Ray.

    Attributes
    ----------
    started : bool
        Whether we started or joined it, and so end it.
    folder : Path or None
        Its temporary folder, where we started it.
    variables : list of str
        Environment variables that were set for it, and go with it.
    users : int
        How many got it from `connect` and have not closed it.
    """

    started: bool
    folder: Path | None = None
    variables: list[str] = field(default_factory=list)
    users: int = 1

    def close(self) -> None:
        """Leave Ray, and stop it if it was started here, once nobody else uses it."""
        with _lock:
            self.users -= 1
            if self.users <= 0:
                self.end()

    def end(self) -> None:
        """Leave Ray, and stop it if it was started here; again is harmless."""
        import ray

        if self.started:
            self.started = False
            ray.shutdown()
        for name in self.variables:
            os.environ.pop(name, None)
        self.variables.clear()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            atexit.unregister(self.end)
            self.folder = None


#: Ray is one for a process, so its session is shared: the last user's `close` ends it.
_lock = threading.RLock()
_current: RaySession | None = None


def connect(
    address: str | None = None, *, options: Mapping[str, Any] | None = None, timeout_s: float = 15.0
) -> RaySession:
    """Use the Ray that this process is in, join the cluster at `address`, or start a local one.

    Parameters
    ----------
    address : str, optional
        ``host:port`` of a running cluster, ``auto`` for the one on this machine, or ``local`` for
        a new one; by default what the environment's ``RAY_ADDRESS`` says, as for Ray itself, and
        ``local`` without it.
    options : mapping
        More of `ray.init`'s arguments for a local Ray, such as ``num_cpus``.
    timeout_s : float
        Seconds to wait for a cluster's answer.

    Raises
    ------
    ClusterError
        Ray could not start, or nothing answers at `address`.
    """
    import ray

    global _current
    with _lock:
        if ray.is_initialized():
            if _current is None or not _current.started:
                return RaySession(started=False)
            _current.users += 1
            return _current
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        if address == "local":
            _current = _start(dict(options or {}))
        else:
            check_reachable(address, timeout_s)
            _current = _join(address)
        return _current


def _start(options: dict[str, Any]) -> RaySession:
    import ray

    folder = Path(_make_folder())
    environment = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        # Ray's default of 15 would give a busy machine's other work precedence over devices.
        "RAY_worker_niceness": "0",
        # A failed stage fails what follows it; that reaches the caller by its future alone.
        "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    }
    if not any(name in os.environ for name in _CREDENTIALS):
        # A token for this process only; Ray would write one to the home folder, for all to read.
        environment["RAY_AUTH_TOKEN"] = _token()
    resources = {RESOURCE: 10_000, **options.pop("resources", {})}
    variables = [name for name in environment if name not in os.environ]
    os.environ.update({name: environment[name] for name in variables})
    if "RAY_AUTH_MODE" not in os.environ:
        variables.append("RAY_AUTH_MODE")  # Ray sets it to "token" as it starts
    session = RaySession(True, folder, variables)
    try:
        with _quiet(), _interrupted_after():
            ray.init(
                address="local",
                resources=resources,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                namespace=NAMESPACE,
                _temp_dir=str(folder),
                **options,
            )
    except Exception as error:
        _give_up(session)
        raise ClusterError(
            f"Ray cannot start on this machine: {type(error).__name__}: {error}. Check free "
            f"memory, /dev/shm and the permissions of {folder.parent}; without Ray everything "
            "runs in process: --executor inprocess, Core(executor='inprocess').",
            cause=str(error),
        ) from error
    except BaseException:
        _give_up(session)
        raise
    # Ray's own exit handler stops its processes first: handlers run last in, first out.
    atexit.register(session.end)
    return session


def _join(address: str) -> RaySession:
    import ray

    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    try:
        with _quiet():
            ray.init(
                address=address,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
    except Exception as error:
        with contextlib.suppress(Exception):  # it may be half connected, or not at all
            ray.shutdown()
        raise ClusterError(
            f"no Ray cluster to join at {address!r}: {type(error).__name__}: {error}. Check that "
            "`ray status` works there, that Ray and Python have the same versions here and there, "
            "and that RAY_AUTH_TOKEN is the cluster's.",
            address=address,
            cause=str(error),
        ) from error
    return RaySession(started=True)


def check_reachable(address: str, timeout_s: float) -> None:
    """Find out soon that nothing answers as gRPC does: Ray itself tries for a minute."""
    if address in ("auto", "local") or "://" in address:
        return
    host, separator, port = address.rpartition(":")
    # The system's resolver takes larger numbers for ports, and drops what is too much.
    if not separator or not port.isdigit() or int(port) > 65535:
        raise ClusterError(
            f"{address!r} is no address of a Ray cluster; wanted host:port, as in 10.0.0.1:6379. "
            "Fix it, or leave it out (and RAY_ADDRESS unset) to start one here.",
            address=address,
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                connection.sendall(_HTTP2_PREFACE)
                if connection.recv(9)[3:4] != _HTTP2_SETTINGS:
                    raise ConnectionError("what listens there is no Ray")
    except OSError as error:
        raise ClusterError(
            f"nothing answers at {address}: {error}. Start Ray there (`ray start --head`, or `ray "
            "up cluster.yaml`), or leave the address out (and RAY_ADDRESS unset) to start one "
            "here.",
            address=address,
            cause=str(error),
        ) from error


@cache
def _token() -> str:
    """Return this process's token: Ray reads it once and keeps it for as long as it lives."""
    return secrets.token_hex(32)


def _make_folder() -> str:
    try:
        parent = tempfile.gettempdir()
        parent = parent if len(parent) <= _LONGEST_FOLDER else "/tmp"
        return tempfile.mkdtemp(prefix="het-", dir=parent)
    except OSError as error:
        raise ClusterError(
            f"Ray cannot start on this machine: it needs a temporary folder, and {error}. Set "
            "TMPDIR to one that can be written, or run in process: --executor inprocess.",
            cause=str(error),
        ) from error


def _give_up(session: RaySession) -> None:
    with contextlib.suppress(Exception):  # it may have started in part, or not at all
        session.end()


@contextlib.contextmanager
def _interrupted_after() -> Iterator[None]:
    """Let Ctrl-C wait for the block's end; a second one does not wait.

    Ray that is stopped while it starts forgets some of the processes that it has started.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    asked: list[tuple[int, FrameType | None]] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if asked:
            before(number, frame)
        asked.append((number, frame))

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        before(*asked[0])


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
