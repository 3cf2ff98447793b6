"""Processes: those that are asked by lines, who descends from whom, and what a process holds."""

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
#: What Ray calls the process of an actor: its class, and what it does.
_ACTOR = re.compile(r"ray::\w*Device\w*")
#: Kinds of resident memory, as the kernel names them, that are no pages of files: those of programs
#: come half a megabyte at a time, when they are first run.
MEMORY = ("RssAnon", "RssShmem")


class Child:
    """A Python process that is told and asked lines; with `with`, it is killed in the end."""

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
        """Return the next line that it prints; RuntimeError once it has ended."""
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"{self._process.args} has ended")
        return line.strip()

    def write(self, line: object) -> None:
        """Give it a line."""
        print(line, file=self._process.stdin, flush=True)

    def ask(self, line: object) -> str:
        """Give it a line, and return the one that it answers."""
        self.write(line)
        return self.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()


def in_fresh(call: Callable[..., T], *arguments: Any) -> T:
    """Return what a call gives in a new process, which ends with it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()


def descendants(root: int) -> set[int]:
    """Return the processes that descend from one that lives."""
    children: dict[int, list[int]] = {}
    for pid, stat in _stats():
        children.setdefault(int(stat[1]), []).append(pid)
    found: set[int] = set()
    new = [root]
    while new:
        new = [child for pid in new for child in children.get(pid, ()) if child not in found]
        found.update(new)
    return found


def device_processes(root: int | None = None) -> list[int]:
    """Return the processes of device actors that descend from one, this one by default."""
    found = descendants(os.getpid() if root is None else root)
    return sorted(pid for pid in found if _ACTOR.match(command(pid)))


def command(pid: int) -> str:
    """Return a process's command line; empty once it has ended."""
    with suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_text().replace("\0", " ").strip()
    return ""


def end_session(session: int) -> None:
    """Kill every process of a session that was started for the purpose, stopped ones too."""
    while found := [pid for pid, stat in _stats() if int(stat[3]) == session and stat[0] != "Z"]:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)  # they may have started others meanwhile


def held(pids: Sequence[str]) -> dict[str, int]:
    """Return what processes hold in all: bytes of memory by kind, threads, descriptors."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    rows = [_held(Path("/proc") / pid) for pid in pids]
    return {name: sum(row[name] for row in rows) for name in rows[0]}


def _held(process: Path) -> dict[str, int]:
    lines = (line.split() for line in (process / "status").read_text().splitlines())
    nbytes = {line[0][:-1]: 1024 * int(line[1]) for line in lines if line[0][:-1] in MEMORY}
    names = []
    for thread in (process / "task").glob("*/comm"):
        with suppress(OSError):  # it has just ended
            names.append(thread.read_text())
    return {
        **nbytes,
        # gRPC, Ray's, starts some of its own when it likes.
        "threads": sum(not name.startswith("grpc_") for name in names),
        "descriptors": len(list((process / "fd").iterdir())),
    }


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Return each process with what follows its name: state, parent, group, session, ..."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                yield int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()
