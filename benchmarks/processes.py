"""Child processes with a line protocol, descendants of a process, and resources of processes."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")
#: Ray's title of an actor's process: its class and its state.
_ACTOR = re.compile(r"ray::\w*Device\w*")
#: The kernel's names of resident memory, except pages of files: programs load those in steps of
#: half a megabyte on first use.
MEMORY = ("RssAnon", "RssShmem")


class Child:
    """Python process that receives and prints lines; a ``with`` block kills it at its end."""

    def __init__(self, *arguments: str, python: str = sys.executable, **options: Any) -> None:
        self._process = subprocess.Popen(
            [python, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        self.pid = self._process.pid

    def read(self) -> str:
        """Return the next line of its output; RuntimeError if it has ended."""
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"{self._process.args} has ended")
        return line.strip()

    def write(self, line: object) -> None:
        """Send a line."""
        print(line, file=self._process.stdin, flush=True)

    def ask(self, line: object) -> str:
        """Send a line and return the line that it prints."""
        self.write(line)
        return self.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()


def in_fresh(call: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a new process and return its result."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()


def descendants(root: int) -> set[int]:
    """Return the descendants of a running process."""
    children: dict[int, list[int]] = {}
    for pid, stat in _stats():
        children.setdefault(int(stat[1]), []).append(pid)
    pids: set[int] = set()
    new = [root]
    while new:
        new = [child for pid in new for child in children.get(pid, ()) if child not in pids]
        pids.update(new)
    return pids


def device_processes(root: int | None = None) -> list[int]:
    """Return the device actors among the descendants of a process, by default this one."""
    pids = descendants(os.getpid() if root is None else root)
    return sorted(pid for pid in pids if _ACTOR.match(command(pid)))


def command(pid: int) -> str:
    """Return a process's command line, or an empty text if it has ended."""
    with suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_text().replace("\0", " ").strip()
    return ""


def end_session(session: int) -> None:
    """Kill every process of a session, including stopped ones."""
    while pids := [pid for pid, stat in _stats() if int(stat[3]) == session and stat[0] != "Z"]:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)  # they may have started others in the meantime


def held(pids: Sequence[str]) -> dict[str, int]:
    """Return the total resources of processes: memory by kind, threads, descriptors."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    rows = [_resources_of(Path("/proc") / pid) for pid in pids]
    return {name: sum(row[name] for row in rows) for name in rows[0]}


def _resources_of(process: Path) -> dict[str, int]:
    lines = (line.split() for line in (process / "status").read_text().splitlines())
    nbytes = {line[0][:-1]: 1024 * int(line[1]) for line in lines if line[0][:-1] in MEMORY}
    names = []
    for thread in (process / "task").glob("*/comm"):
        with suppress(OSError):  # the process has just ended
            names.append(thread.read_text())
    return {
        **nbytes,
        # Ray's gRPC library starts threads at any time.
        "threads": sum(not name.startswith("grpc_") for name in names),
        "descriptors": len(list((process / "fd").iterdir())),
    }


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Yield each process id with its fields after the name: state, parent, group, session, ..."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                yield int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()
