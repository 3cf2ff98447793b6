"""A local Ray: its ports are for this machine alone, and nothing is left of a killed client."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.listening_sockets import LOOPBACK, listening_addresses

PATIENCE_S = 120
#: Variable that all processes of the client inherit.
MARK = "HETERO_TEST_CLIENT"
CLIENT = """
import numpy as np
from onnx.parser import parse_model
import hetero
text = '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Neg(x) }'
core = hetero.Core("ray", devices={"CPU": 1})
model = core.compile_model(parse_model(text), "CPU")
print("ready", flush=True)
while True:
    model({"x": np.ones(2**20, np.float32)})
"""


def processes(mark: str) -> Iterator[Path]:
    """Yield the folders in /proc of processes that run and have the mark in their environment."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    yield folder
            except OSError:  # it has ended
                continue


def is_alive(folder: Path) -> bool:
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.ray
@pytest.mark.slow
def test_nothing_is_left_of_a_killed_client():
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, MARK: mark},
    )
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        marked = [*processes(mark)]
        assert len(marked) > 5
        addresses = set().union(*map(listening_addresses, marked))
        assert addresses
        assert addresses <= LOOPBACK
        number = f"-{client.pid}-"
        assert any(number in path.name for path in Path("/dev/shm").glob("hetero-*"))
    finally:
        client.kill()
        client.communicate()
    until_s = time.monotonic() + PATIENCE_S
    while any(map(is_alive, marked)) or any(
        f"-{folder.name}-" in path.name
        for folder in marked
        for path in Path("/dev/shm").glob("hetero-*")
    ):
        assert time.monotonic() < until_s
        time.sleep(0.1)
    assert not [*processes(mark)]
