"""Worker functions that crash, hang or exhaust memory, like a faulty vendor runtime."""

import ctypes
import select
import time
from pathlib import Path


def respond(request):
    """Crash, hang or exhaust memory if the request says it; otherwise return the request."""
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
