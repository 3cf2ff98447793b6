"""A Ray of this user's own that goes on when the process that started it ends: a local pool's.

Where it is and what lets clients in is in a folder that only the user can open.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from devices.errors import ClusterError
from scheduler.ray.address import check_reachable

_START_S: Final = 120.0
_END_S: Final = 10.0
#: How long a head that is there may take to answer.
_ANSWER_S: Final = 2.0


def folder() -> Path:
    """Return the user's folder for it; Ray's sockets in it need a short path."""
    parent = Path(tempfile.gettempdir())
    return (parent if len(str(parent)) <= 20 else Path("/tmp")) / f"hetero-pool-{os.getuid()}"


def find_head() -> str | None:
    """Return the address of the user's own Ray, with what lets clients in set; None without one."""
    try:
        _check_private(folder())
        address = str(json.loads((folder() / "head.json").read_text())["address"])
        check_reachable(address, _ANSWER_S)
    except (OSError, ValueError, KeyError, ClusterError):
        return None
    _let_in()
    return address


def start_head(timeout_s: float = _START_S) -> str:
    """Start a Ray that goes on by itself; return its address.

    Raises ClusterError: it does not start, or its folder is not the user's alone.
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
            f"no folder for a Ray of one's own: {error}.", cause=str(error)
        ) from error
    _let_in()
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--port=0",
        "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={place / 'ray'}",
    ]  # fmt: skip
    quiet = {"RAY_worker_niceness": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}
    done = subprocess.run(
        command,
        env={**os.environ, **quiet, "RAY_AUTH_MODE": "token"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    try:
        address = (place / "ray" / "ray_current_cluster").read_text().strip()
        check_reachable(address, _ANSWER_S)
    except (OSError, ClusterError) as error:
        stop_head()
        raise ClusterError(
            f"Ray cannot start on this machine: {error}\n{done.stdout[-500:]}{done.stderr[-500:]}",
            cause=str(error),
        ) from error
    (place / "head.json").write_text(json.dumps({"address": address}))
    return address


def stop_head() -> None:
    """End the user's own Ray, all of its processes, and remove its folder."""
    place = folder()
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in _processes(place):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        until_s = time.monotonic() + _END_S
        while any(_processes(place)) and time.monotonic() < until_s:
            time.sleep(0.05)
    shutil.rmtree(place, ignore_errors=True)


def _let_in() -> None:
    """Set the token; Ray goes over to its use by itself as it joins, unless it is told a mode."""
    os.environ["RAY_AUTH_TOKEN"] = (folder() / "token").read_text()
    os.environ.pop("RAY_AUTH_MODE", None)


def _check_private(place: Path) -> None:
    status = place.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ClusterError(f"{place} is not a folder of yours alone (chmod 700); remove it.")


def _processes(place: Path) -> Iterator[int]:
    """Return the processes of the Ray whose files are in a folder: their command lines say it."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                if f"{place}/ray/".encode() in line and (entry / "exe").exists():
                    yield int(entry.name)
