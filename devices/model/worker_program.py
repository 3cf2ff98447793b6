"""The program of a `WorkerProcess`: it calls a function with each request, within limits.

It is run by its path, and imports the function's module alone. A request is its length, the memory
and the processor time that it may take, and bytes; an answer a length and bytes.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import resource
import struct
import sys
from typing import Final

#: Bytes of a page, and where the size of a process's data is among its figures.
_PAGE_NBYTES: Final = resource.getpagesize()
_DATA_FIELD: Final = 5


def _limit(memory_nbytes: int, time_s: float) -> None:
    """Have the kernel end this process where a request asks for more than any real one."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = used.ru_utime + used.ru_stime + time_s
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - sooner than pathlib
        data = int(file.read().split()[_DATA_FIELD])
    memory = data * _PAGE_NBYTES + memory_nbytes
    for what, most in ((resource.RLIMIT_CPU, int(seconds) + 1), (resource.RLIMIT_DATA, memory)):
        _, hard = resource.getrlimit(what)
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (allowed, hard))


def main() -> None:
    """Answer requests until there are no more."""
    watched, function, *paths = sys.argv[1:]
    # The end of whoever asks, who never writes to this pipe, is a signal that ends this process.
    fcntl.fcntl(int(watched), fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(int(watched), fcntl.F_SETFL, os.O_ASYNC)
    sys.path += [path for path in paths if path not in sys.path]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests = sys.stdin.buffer
    # What native code prints is no answer.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    module, _, name = function.partition(":")
    answer_to = getattr(importlib.import_module(module), name)
    while head := requests.read(24):
        nbytes, memory_nbytes, time_s = struct.unpack("<QQd", head)
        request = requests.read(nbytes)
        _limit(memory_nbytes, time_s)
        try:
            answer = answer_to(request)
        except MemoryError:
            return
        answers.write(struct.pack("<Q", len(answer)) + answer)
        answers.flush()


if __name__ == "__main__":
    main()
