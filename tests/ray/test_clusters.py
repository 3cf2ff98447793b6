"""Starting, joining and leaving Ray: each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hetero.devices.errors import ClusterError
from hetero.scheduler.processes.owned_files import sweep
from hetero.scheduler.ray import private_api
from hetero.scheduler.ray import start as ray_start
from hetero.scheduler.ray.address import check_reachable, find_address
from tests.scheduler.parties import wait_for

pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[2]
#: A cluster's servers among Ray's processes.
_SERVER = re.compile(r"^\S*(gcs_server|raylet) ")

OWN = """
import sys, time, numpy as np
from hetero.scheduler import create_executor
from tests.scheduler.models import chain
toy = ("tests.scheduler.plugins:ToyPlugin",)
executor = create_executor("ray", plugins=toy, ray_options={"num_cpus": 1})
print(executor._session.folder, flush=True)
x = {"x": np.zeros(250_000, np.float32)}
executor.deploy(*chain("TOY")).submit(x).future.result()
executor.deploy(*chain("TOY", name="sleep_60_")).submit(x)
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


def processes_of(folder: str) -> list[tuple[int, str]]:
    """Return ids and commands of the processes that work in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_text().replace("\0", " ")
                if folder in command:
                    found.append((int(entry.name), command[:200]))
    return found


def wait_until_gone(folder: str) -> list[tuple[int, str]]:
    deadline = time.monotonic() + 120
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


@pytest.mark.slow
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
    assert found["unknown"] in ("TOY.1", "TOY.2")  # both are asked at once
    assert set(found["joined"]) == {"TOY.0", "TOY.1"}
    assert found["joined"]["TOY.1"] not in nodes.values()
    # A client that comes now calls every device as the one that saw nodes go and come.
    assert found["seen by another"] == found["joined"]


@pytest.fixture
def head() -> Iterator[tuple[str, list[int]]]:
    """Start a head as `cluster.yaml` says; return its address, and its servers' process ids."""
    command = yaml.safe_load((ROOT / "cluster.yaml").read_text())["head_start_ray_commands"][1]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    # What belongs to the machines of the file: the port, and what `ray up` leaves there.
    command = re.sub(r"--autoscaling-config=\S+", "", command.replace("6379", str(port)))
    folder = tempfile.mkdtemp(prefix="ht-", dir="/tmp")
    own = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    process = subprocess.Popen(
        ["bash", "-c", f"{command} --block --num-cpus=2 --temp-dir={folder}"],
        cwd=ROOT,
        env=own | {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        servers: list[int] = []
        while len(servers) < 2:
            assert process.poll() is None, "Ray did not start"
            time.sleep(0.1)
            with contextlib.suppress(ClusterError):
                check_reachable(f"127.0.0.1:{port}", 5.0)
                servers = [i for i, command in processes_of(folder) if _SERVER.search(command)]
        yield f"127.0.0.1:{port}", servers
    finally:
        for i, _ in processes_of(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(i, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_a_head_as_the_file_starts_it_has_its_devices_and_its_loss_is_told(
    head: tuple[str, list[int]],
) -> None:
    """Ray itself would end a process whose cluster's head is gone, after 60 seconds."""
    address, servers = head
    arguments = (address, "65", *map(str, servers))
    done = run("-m", "tests.ray.lost_head", *arguments, RAY_AUTH_MODE="disabled")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert "CPU" in found["counts"]
    offered = {name.partition(".")[0] for name in found["devices"]}  # OV's are OV.CPU and others
    assert found["counts"].keys() == offered - {"TOY"}
    assert len(found["told"]) == 4
    for told in found["told"]:
        assert told.startswith("ClusterError"), told
        assert f"{address.rpartition(':')[2]} is gone: " in told
    assert found["left Ray"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (None, 0),
        (signal.SIGINT, 1),
        (signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGHUP, 128 + signal.SIGHUP),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_a_ray_of_our_own_leaves_nothing_behind(number: int | None, code: int) -> None:
    temporary = Path(tempfile.mkdtemp(prefix="h", dir="/tmp"))
    program = OWN + ("time.sleep(99)" if number else "executor.close(); executor.close()")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    folder = process.stdout.readline().strip()
    assert process.stdout.readline().strip() == "running"
    (sockets,) = temporary.glob("hetero-*")
    # Names without what comes last are the processes'.
    owners = {socket.name.rpartition("-")[0] for socket in sockets.iterdir()}
    assert len(owners) == 2
    assert any(shared_by(owner) for owner in owners)
    if number is not None:
        assert processes_of(folder)
        process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == code, errors
    assert errors == "" or number == signal.SIGINT
    assert wait_until_gone(folder) == []
    if number == signal.SIGKILL:  # Ray may kill the device before it has let go of anything
        sweep(sockets)
        sweep(Path("/dev/shm"), "hetero-")
    wait_for(lambda: not list(sockets.iterdir()))
    wait_for(lambda: not any(shared_by(owner) for owner in owners))
    # What is left of a process that was killed is swept by the next one.
    assert Path(folder).exists() == (number == signal.SIGKILL)
    shutil.rmtree(temporary)


def shared_by(owner: str) -> list[Path]:
    """Return the shared memory of a process."""
    return list(Path("/dev/shm").glob(f"hetero-{owner}-*"))


FAIL = """
from hetero.devices.errors import ClusterError
from hetero.scheduler import create_executor
try:
    create_executor("ray", ray_options={"object_store_memory": 1})
except ClusterError as error:
    print(error)
"""


@pytest.mark.slow
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
    monkeypatch.setattr(private_api, "canonicalize_bootstrap_address", found.__getitem__)
    with pytest.raises(ClusterError, match=r"nothing answers at 127\.0\.0\.1:1"):
        check_reachable(find_address("auto"), 2.0)


def test_folders_of_processes_that_are_gone_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_start, "_LONGEST_FOLDER", 1000)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    mine = ray_start._make_folder()
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
    second = ray_start._make_folder()
    assert {path.name for path in tmp_path.iterdir()} == {mine.name, second.name, "het-other"}
    assert (second / "owner").read_text() == owner


SECOND = """
import ray
from hetero.scheduler import create_executor
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


THIRD = """
import ray
from hetero.scheduler import create_executor
options = dict(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
ray.init(**options)
first = create_executor("ray", devices={"CPU": 1})
ray.shutdown()
ray.init(**options)
print(first._session.is_ours)
try:
    first.devices()
except Exception as error:
    print(type(error).__name__)
second = create_executor("ray", devices={"CPU": 1})
first.close()
print(ray.is_initialized(), len(second.devices()) > 0)
"""


@pytest.mark.slow
def test_a_core_whose_ray_the_user_has_left_takes_no_other_ray_for_it() -> None:
    done = run("-c", THIRD)
    assert (done.returncode, done.stdout.split()) == (0, ["False", "ClusterError", "True", "True"])
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_core_whose_ray_the_user_has_left_ends_no_other_cores_ray() -> None:
    done = run("-c", SECOND)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ClusterError this process has left the Ray cluster")
    assert lines[1:] == ["True True", "False"]
