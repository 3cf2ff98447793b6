"""Functions for a `WorkerProcess` that crash, hang or exhaust memory, as a vendor runtime may."""

import ctypes
import select
import time
from pathlib import Path


def respond(request):
    """Crash, hang or fill the process if the request is such a word; return the request."""
    match request.decode():
        case "crash":
            ctypes.string_at(0)
        case "exit":
            raise SystemExit(3)
        case "spin":
            while True:
                pass
        case "wait":
            time.sleep(3600)
        case "memory":
            bytearray(2**33)
        case path if path.startswith("/"):
            Path(path).touch()
            select.select([0], [], [])  # until the next request arrives
        case "print":
            print("not a response")
    return request


def verdicts(questions, target):
    """Accept every node; crash on Tanh."""
    if any(op_type == "Tanh" for op_type, *_ in questions):
        ctypes.string_at(0)
    return [f"asked on {target}" for _ in questions]
