"""Program of a test in `test_clusters`: kills the head of its cluster while a request runs."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray

from hetero.devices.errors import HeteroError
from hetero.scheduler import create_executor
from hetero.scheduler.ray.nodes import alive_nodes
from tests.scheduler.models import chain

X = {"x": np.ones(1, np.float32)}


def main(address: str, wait_s: str, *processes: str) -> None:
    executor = create_executor(
        "ray", address=address, plugins=("tests.scheduler.plugins:ToyPlugin",)
    )
    devices = [row.name for row in executor.devices() if row.error is None]
    counts = dict(alive_nodes()[0].counts)
    sleeper = executor.deploy(*chain("TOY", name="sleep_60_"))
    submission = sleeper.submit(X)
    for process in processes:
        os.kill(int(process), signal.SIGKILL)
    calls: list[Callable[[], Any]] = [
        lambda: submission.future.result(300),
        lambda: sleeper.submit(X).future.result(300),
        executor.devices,
        lambda: executor.deploy(*chain("TOY")),
    ]
    messages = []
    for call in calls:
        try:
            call()
        except HeteroError as error:
            messages.append(f"{type(error).__name__} {error}")
    deadline_s = time.monotonic() + 120
    while ray.is_initialized() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    has_left = not ray.is_initialized()
    time.sleep(float(wait_s))
    executor.close()
    sys.stdout.write(
        json.dumps({"devices": devices, "counts": counts, "errors": messages, "left Ray": has_left})
        + "\n"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
