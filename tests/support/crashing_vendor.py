"""What a vendor's runtime may do to the process that asks it: functions for a `WorkerProcess`."""

import ctypes
import select
import time
from pathlib import Path


def answers(request):
    """End, stall or fill the process, as the request says; or return it."""
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
            select.select([0], [], [])  # until the next request comes
        case "print":
            print("not an answer")
    return request


def verdicts(questions, target):
    """Take every node but those of Tanh, about which it crashes."""
    if any(op_type == "Tanh" for op_type, *_ in questions):
        ctypes.string_at(0)
    return [f"asked on {target}" for _ in questions]
