"""Starting, joining and leaving Ray: each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from devices.errors import ClusterError
from scheduler.ray_start import check_reachable

pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[2]

OWN = """
import sys, time, numpy as np
from scheduler import create_executor
from tests.scheduler.models import chain
toy = ("tests.scheduler.plugins:ToyPlugin",)
executor = create_executor("ray", plugins=toy, ray_options={"num_cpus": 1})
print(executor._session.folder, flush=True)
executor.deploy(*chain("TOY", name="sleep_60_")).submit({"x": np.zeros(1, np.float32)})
print("running", flush=True)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def processes_of(folder: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_text()
            except OSError:
                continue
            if folder in command:
                found.append(command.replace("\0", " ")[:200])
    return found


def wait_until_gone(folder: str) -> list[str]:
    deadline = time.monotonic() + 120
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def test_two_nodes_one_that_dies_and_one_that_joins() -> None:
    done = run("-m", "tests.ray.two_nodes")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    nodes = found["devices"]
    assert set(nodes) == {"TOY.0", "TOY.1", "TOY.2"}
    assert nodes["TOY.1"] == nodes["TOY.2"] != nodes["TOY.0"]
    assert found["4"]
    assert found["500000"]
    assert found["lost"][1] == nodes["TOY.1"]
    assert found["left"] == {"TOY.0": nodes["TOY.0"]}
    assert found["unknown"] == "TOY.1"
    assert set(found["joined"]) == {"TOY.0", "TOY.1"}
    assert found["joined"]["TOY.1"] not in nodes.values()


@pytest.mark.parametrize("end", ["close", "interrupt"])
def test_a_ray_of_our_own_leaves_nothing_behind(end: str) -> None:
    program = OWN + ("executor.close(); executor.close()" if end == "close" else "time.sleep(99)")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    folder = process.stdout.readline().strip()
    assert process.stdout.readline().strip() == "running"
    if end == "interrupt":
        assert processes_of(folder)
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert (process.returncode == 0) == (end == "close"), errors
    assert wait_until_gone(folder) == []
    assert not Path(folder).exists()


FAIL = """
from devices.errors import ClusterError
from scheduler import create_executor
try:
    create_executor("ray", ray_options={"object_store_memory": 1})
except ClusterError as error:
    print(error)
"""


def test_a_ray_that_cannot_start_says_why_and_what_to_do() -> None:
    told = run("-c", FAIL).stdout
    assert "minimum allowed" in told
    assert "--executor inprocess" in told


@pytest.mark.parametrize("says", [b"", b"SSH-2.0-OpenSSH_9.7"], ids=["nothing", "another thing"])
def test_an_address_where_no_ray_answers_is_told(says: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            connection, _ = server.accept()
            connection.sendall(says)
            connection.recv(100)
            time.sleep(0.5)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ClusterError, match=address):
            check_reachable(address, 0.3)
        thread.join()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "localhost:99999"])
def test_an_address_that_is_none_is_told_at_once(address: str) -> None:
    with pytest.raises(ClusterError, match=address):
        check_reachable(address, 2.0)
