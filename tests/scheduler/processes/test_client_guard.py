"""Guard of a client: nothing is left of a killed client, and others are left alone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hetero.scheduler.processes.client_guard import start_guard
from hetero.scheduler.processes.owned_files import owned_name, process_start

PATIENCE_S = 60
SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(1000)"]
#: Makes a file of shared memory with its own name, then sleeps.
OWNER = """
import sys, time
from pathlib import Path
from hetero.scheduler.processes.owned_files import owned_name
Path(sys.argv[1], "test-" + owned_name("slots")).touch()
print("ready", flush=True)
time.sleep(1000)
"""


@contextmanager
def process(command: list[str], output: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    with (output or Path("/dev/null")).open("wb") as file:
        running = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


@pytest.fixture
def folders(tmp_path):
    """A local Ray's temporary folder, and a folder of shared memory."""
    for name in ("ray/logs", "shm"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path / "ray", tmp_path / "shm"


@pytest.mark.slow
def test_guard_removes_what_a_killed_client_leaves(folders):
    ray, shared_memory = folders
    own = shared_memory / f"test-{owned_name('slots')}"  # of a process that lives
    own.touch()
    with (
        process([sys.executable, "-c", OWNER, str(shared_memory)], ray.parent / "log") as client,
        process(SLEEP, ray / "logs" / "raylet.out") as server,
        process(SLEEP, ray.parent / "ray.log") as other,
    ):
        until_s = time.monotonic() + PATIENCE_S
        while len(list(shared_memory.iterdir())) < 2:
            assert time.monotonic() < until_s
            time.sleep(0.02)
        guard = start_guard(client.pid, process_start(client.pid), ray, shared_memory, "test-")
        assert server.poll() is None
        client.kill()
        assert guard.wait(PATIENCE_S) == 0
        assert server.wait(PATIENCE_S) < 0
        assert other.poll() is None
        assert not ray.exists()
        assert [*shared_memory.iterdir()] == [own]


def test_guard_leaves_a_living_client_alone(folders):
    ray, shared_memory = folders
    with process(SLEEP) as client, process(SLEEP, ray / "logs" / "raylet.out") as server:
        guard = start_guard(client.pid, process_start(client.pid), ray, shared_memory, "test-")
        with pytest.raises(subprocess.TimeoutExpired):
            guard.wait(1)
        guard.kill()
        guard.wait()
        assert server.poll() is None
        assert ray.exists()


def test_guard_does_not_wait_for_another_process_with_the_number(
    folders,
):
    ray, shared_memory = folders
    with process(SLEEP) as client:
        guard = start_guard(client.pid, "1", ray, shared_memory, "test-")
        assert guard.wait(PATIENCE_S) == 0
        assert not ray.exists()
