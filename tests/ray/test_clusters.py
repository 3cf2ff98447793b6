"""Starting, joining and leaving Ray: each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from ray._private import services

from devices.errors import ClusterError
from scheduler import ray_folder
from scheduler.ray_address import check_reachable, find_address
from scheduler.ray_folder import make_folder

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


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)} | variables,
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
    # A client that comes now calls every device as the one that saw nodes go and come.
    assert found["seen by another"] == found["joined"]


HEAD = """
import sys
from ray.cluster_utils import Cluster
options = {"num_cpus": 2, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=options)
processes = cluster.head_node.all_processes.values()
print(cluster.address, *(p.process.pid for group in processes for p in group), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("wait_s", ["0", pytest.param("65", marks=pytest.mark.slow)])
def test_a_cluster_whose_head_is_gone_is_told_and_left_and_the_process_lives_on(
    wait_s: str,
) -> None:
    """Ray itself would end the process after 60 seconds."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    head = subprocess.Popen(
        [sys.executable, "-c", HEAD],
        env=own | {"RAY_AUTH_MODE": "disabled"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert head.stdout
    address, *processes = head.stdout.readline().split()
    try:
        done = run(
            "-m", "tests.ray.lost_head", address, wait_s, *processes, RAY_AUTH_MODE="disabled"
        )
    finally:
        head.kill()
        head.communicate()
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert len(found["told"]) == 4
    for told in found["told"]:
        assert told.startswith("ClusterError"), told
        assert f"{address} is gone" in told
    assert found["left Ray"]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (None, 0),
        pytest.param(signal.SIGINT, 1, marks=pytest.mark.slow),
        (signal.SIGTERM, 128 + signal.SIGTERM),
        pytest.param(signal.SIGHUP, 128 + signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_ray_of_our_own_leaves_nothing_behind(number: int | None, code: int) -> None:
    program = OWN + ("time.sleep(99)" if number else "executor.close(); executor.close()")
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
    if number is not None:
        assert processes_of(folder)
        process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == code, errors
    assert errors == "" or number == signal.SIGINT
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


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:1", "nothing answers at 127.0.0.1:1"),
        ("nowhere", "wanted host:port"),
        ("localhost:99999", "wanted host:port"),
        ("ray://10.0.0.1:10001", "Ray Client"),
    ],
)
def test_an_address_that_is_none_is_told_at_once(address: str, words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        check_reachable(find_address(address), 2.0)


def test_auto_where_no_ray_answers_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"auto": "127.0.0.1:1"}
    monkeypatch.setattr(services, "canonicalize_bootstrap_address", found.__getitem__)
    with pytest.raises(ClusterError, match=r"nothing answers at 127\.0\.0\.1:1"):
        check_reachable(find_address("auto"), 2.0)


def test_folders_of_processes_that_are_gone_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_folder, "_LONGEST_FOLDER", 1000)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    mine = make_folder()
    owner = (mine / "owner").read_text()
    gone = subprocess.Popen(["true"])
    gone.wait()
    for name, whose in (
        ("het-gone", f"{gone.pid} 1"),
        ("het-reused", f"{os.getpid()} 1"),
        ("het-other", "of another program"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "owner").write_text(whose)
    second = make_folder()
    assert {path.name for path in tmp_path.iterdir()} == {mine.name, second.name, "het-other"}
    assert (second / "owner").read_text() == owner


SECOND = """
import ray
from scheduler import create_executor
options = {"num_cpus": 1}
first = create_executor("ray", ray_options=options)
folder = first._session.folder
ray.shutdown()
try:
    first.devices()
except Exception as error:
    print(type(error).__name__, error)
second = create_executor("ray", ray_options=options)
assert not folder.exists()
first.close()
print(ray.is_initialized(), len(second.devices()) > 0)
second.close()
print(ray.is_initialized())
"""


@pytest.mark.slow
def test_a_core_whose_ray_the_user_has_left_ends_no_other_cores_ray() -> None:
    done = run("-c", SECOND)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ClusterError this process has left the Ray cluster")
    assert lines[1:] == ["True True", "False"]
