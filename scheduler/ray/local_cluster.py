"""Local Ray cluster of a pool, which outlives the process that started it.

Its address and access token are in a folder that only the user can open.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hetero.devices.errors import ClusterError
from hetero.devices.file_reader import parse_json, read_regular
from hetero.scheduler.processes.owned_files import is_private, process_start
from hetero.scheduler.ray.address import check_reachable
from hetero.scheduler.ray.private_api import LOOPBACK_ONLY

_START_S: Final = 120.0
_END_S: Final = 10.0
#: Time limit for a running head to respond, in seconds.
_ANSWER_S: Final = 2.0
#: Maximum size of a file in the folder, in bytes; the log is the largest.
_MAX_NBYTES: Final = 2**26


def folder() -> Path:
    """Return the folder of the user's local cluster; Ray's sockets in it need a short path."""
    parent = Path(tempfile.gettempdir())
    return (parent if len(str(parent)) <= 20 else Path("/tmp")) / f"hetero-pool-{os.getuid()}"


def _read(path: Path) -> str:
    """Return a text file of the local cluster.

    Raises OSError: it cannot be read, is too large, or belongs to another user.
    """
    data = read_regular(path, _MAX_NBYTES, follow_links=False, is_own=True)
    return data.decode(errors="replace")


def find_head() -> str | None:
    """Find the user's local cluster: set its access token, return its address; None without one."""
    try:
        _check_private(folder())
        address = str(parse_json(_read(folder() / "head.json"))["address"])
        check_reachable(address, _ANSWER_S)
    except (OSError, ValueError, LookupError, TypeError, ClusterError):
        return None
    _let_in()
    return address


def start_head() -> str:
    """Start a local cluster that outlives this process; return its address.

    Raises ClusterError: it does not start, or its folder is not private to the user.
    """
    place = folder()
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        _check_private(place)
        token = place / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
    except OSError as error:
        raise ClusterError(
            f"no folder for a local Ray cluster: {error}.", cause=str(error)
        ) from error
    _let_in()
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        "--port=0",
        "--include-dashboard=false",
        "--disable-usage-stats",
        "--node-ip-address=127.0.0.1",
        f"--temp-dir={place / 'ray'}",
    ]
    options = {
        "RAY_worker_niceness": "0",
        "RAY_IGNORE_UNHANDLED_ERRORS": "1",
        "RAY_AUTH_MODE": "token",
        **LOOPBACK_ONLY,
    }
    try:
        with (place / "log").open("w") as log:
            process = subprocess.Popen(
                command,
                env={**os.environ, **options},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # the session identifies all its processes
            )
        session = f"{process.pid} {process_start(process.pid)}"
        (place / "session").write_text(session)
        address = _address(process, place)
        (place / "head.json").write_text(json.dumps({"address": address}))
    except BaseException as error:
        reason = _last_line(place / "log")
        stop_head()
        if not isinstance(error, OSError | ClusterError):  # Ctrl-C
            raise
        raise ClusterError(
            f"Ray cannot start on this machine: {error}{reason}. Check free memory, /dev/shm and "
            f"the permissions of {place.parent}, and `hetero doctor`; without a pool, commands "
            "start a Ray of their own, or run in process: --executor inprocess.",
            cause=str(error),
        ) from error
    return address


def _last_line(log: Path) -> str:
    """Return the last line of a log in parentheses: the error under Ray's traceback."""
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in _read(log).splitlines() if line.strip()]
        return f" ({lines[-1].rstrip('.')})" if lines else ""
    return ""


def _address(process: subprocess.Popen[bytes], place: Path) -> str:
    """Wait until a starting cluster responds; return its address."""
    until_s = time.monotonic() + _START_S
    file = place / "ray" / "ray_current_cluster"
    while not file.exists():
        if process.poll() is not None:
            raise ClusterError(f"it ended with exit code {process.returncode}")
        if time.monotonic() > until_s:
            raise ClusterError(f"it was not up within {_START_S:.0f} s")
        time.sleep(0.05)
    address = _read(file).strip()
    check_reachable(address, _ANSWER_S)
    return address


def stop_head() -> None:
    """End all processes of the user's local cluster, and remove its folder."""
    place = folder()
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in _processes(place):
            with contextlib.suppress(ProcessLookupError):
                # On SIGTERM `ray start` itself would wait half a minute for tasks to end.
                os.kill(process, signal.SIGKILL if process == os.getsid(process) else number)
        until_s = time.monotonic() + _END_S
        while any(_processes(place)) and time.monotonic() < until_s:
            time.sleep(0.05)
    shutil.rmtree(place, ignore_errors=True)


def _let_in() -> None:
    """Set the path of the access token; Ray uses the token if no other mode is set.

    The token stays in its file, because other users can read command lines, and logs contain
    environment variables.
    """
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(folder() / "token")
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        os.environ.pop(name, None)


def _check_private(place: Path) -> None:
    if not is_private(place):
        raise ClusterError(f"{place} is not private to you (chmod 700); remove it.")


def _processes(place: Path) -> Iterator[int]:
    """Yield the processes of the local cluster, which share one session; the leader comes last.

    The system does not reuse a session's number while the session has a process.
    """
    try:
        number, start_time = _read(place / "session").split()
    except (OSError, ValueError):
        return
    leader = int(number)
    if process_start(leader) not in ("", start_time):
        return  # all have ended, and another process has the number
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != leader:
            with contextlib.suppress(OSError):
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == leader and state != "Z":
                    yield int(entry.name)
    if process_start(leader):
        yield leader
