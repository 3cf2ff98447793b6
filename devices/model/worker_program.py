"""Main program of a `WorkerProcess`: calls a function with each request, under resource limits.

Python runs this file by its path, so it imports only the module of the function. A request consists
of its length, its limits of memory and processor time, and its bytes. A response consists of its
length and its bytes.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import resource
import struct
import sys
from typing import Final

#: Bytes of a memory page, and the field of /proc/self/statm with the size of a process's data.
_PAGE_NBYTES: Final = resource.getpagesize()
_DATA_FIELD: Final = 5


def _limit(memory_nbytes: int, time_s: float) -> None:
    """Set kernel limits that end this process if a request exceeds them."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = usage.ru_utime + usage.ru_stime + time_s
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - faster than pathlib
        data = int(file.read().split()[_DATA_FIELD])
    memory = data * _PAGE_NBYTES + memory_nbytes
    for kind, limit in ((resource.RLIMIT_CPU, int(seconds) + 1), (resource.RLIMIT_DATA, memory)):
        _, hard = resource.getrlimit(kind)
        soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (soft, hard))


def main() -> None:
    """Process requests until the input ends."""
    lifeline, function, *paths = sys.argv[1:]
    # The parent never writes to this pipe. When the parent ends, the kernel closes the pipe and
    # sends SIGIO, which ends this process.
    fcntl.fcntl(int(lifeline), fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(int(lifeline), fcntl.F_SETFL, os.O_ASYNC)
    sys.path += [path for path in paths if path not in sys.path]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests = sys.stdin.buffer
    # Native code may print to stdout: send that to stderr.
    responses = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    module, _, name = function.partition(":")
    call = getattr(importlib.import_module(module), name)
    while head := requests.read(24):
        nbytes, memory_nbytes, time_s = struct.unpack("<QQd", head)
        request = requests.read(nbytes)
        _limit(memory_nbytes, time_s)
        try:
            response = call(request)
        except MemoryError:
            return
        responses.write(struct.pack("<Q", len(response)) + response)
        responses.flush()


if __name__ == "__main__":
    main()
