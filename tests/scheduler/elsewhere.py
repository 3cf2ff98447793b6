"""Parties of another node, in a process of their own, until its input ends.

``python -m tests.scheduler.elsewhere FOLDER COUNT``. Prints their addresses.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from pathlib import Path

from hetero.scheduler.channels import direct, direct_address, relays
from tests.scheduler.parties import BEAT_S


class Elsewhere:
    """The process, and its parties' addresses."""

    def __init__(self, folder: Path, number: int = 1) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.scheduler.elsewhere", str(folder), str(number)],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.addresses = [self.process.stdout.readline().strip() for _ in range(number)]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def main(folder: str, number: str) -> None:
    for module in (direct, direct_address, relays):
        module.this_node = lambda: "elsewhere"  # type: ignore[attr-defined]
    looks = count()
    channels = [
        direct.DirectChannel(
            lambda message: None,
            folder=Path(folder),
            host="127.0.0.1",
            curve=False,
            beat_s=BEAT_S,
            timeout_s=5.0,
            status=lambda: {"looks": next(looks)},
        )
        for _ in range(int(number))
    ]
    for channel in channels:
        print(channel.address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
