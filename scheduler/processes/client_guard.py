"""Guard of a client: a process that removes what the client leaves behind when it is killed.

Processes of a local Ray notice the end of its client after a minute, or never. The guard is a
program of its own, and small: it runs this file by its path, without the package.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

#: Seconds within which the client's processes have to end.
_END_S: Final = 8.0
#: Seconds between two searches for processes.
_CHECK_S: Final = 0.25
#: Successive searches without a process after which there are none.
_SEARCHES: Final = 4


def start_guard(
    client: int, client_start: str, folder: Path | None, shared_memory: Path, prefix: str
) -> subprocess.Popen[bytes]:
    """Start the guard of a client process, identified by its id and start time.

    `folder`: the temporary folder of its local Ray; None without one.
    `shared_memory`, `prefix`: folder and prefix of the files of shared memory.
    """
    arguments = [f"{client}", client_start, str(folder or ""), str(shared_memory), prefix]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},
        start_new_session=True,  # Ctrl-C in the client's terminal is not for it
    )


def main() -> None:
    """Wait until the client has ended, then end its processes and remove its files."""
    client, client_start, folder, shared_memory, prefix = sys.argv[1:]
    owned_files = _load("owned_files")
    _wait(int(client), client_start, owned_files)
    until_s, num_searches = time.monotonic() + _END_S, 0
    while num_searches < _SEARCHES and time.monotonic() < until_s:
        processes = list(_processes(folder)) if folder else []
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        num_searches = 0 if processes else num_searches + 1
        owned_files.sweep(Path(shared_memory), prefix)
        time.sleep(_CHECK_S)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def _load(name: str) -> Any:
    """Return a module beside this file, which needs no other of the package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _wait(client: int, client_start: str, owned_files: Any) -> None:
    try:
        descriptor = os.pidfd_open(client)
    except ProcessLookupError:
        return
    if owned_files.process_start(client) == client_start:
        select.select([descriptor], [], [])
    os.close(descriptor)


def _processes(folder: str) -> Iterator[int]:
    """Yield the processes that write files in a folder: those of the local Ray, to its logs."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _writes(entry, folder):
            yield int(entry.name)


def _writes(process: Path, folder: str) -> bool:
    try:
        for entry in (process / "fd").iterdir():
            if str(entry.readlink()).startswith(f"{folder}/"):
                _, _, rest = (process / "fdinfo" / entry.name).read_text().partition("flags:")
                if int(rest.split()[0], 8) & os.O_ACCMODE != os.O_RDONLY:
                    return True
    except (OSError, LookupError, ValueError):  # it has ended, or belongs to another user
        pass
    return False


if __name__ == "__main__":
    main()
