"""Starting, joining and leaving Ray clusters, in separate processes."""

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
from pathlib import Path

import pytest
import yaml

from hetero.devices.errors import ClusterError
from hetero.scheduler.processes.owned_files import sweep
from hetero.scheduler.ray import auto_address
from hetero.scheduler.ray import session as ray_start
from hetero.scheduler.ray.address import check_reachable
from tests.scheduler.endpoints import wait_for

pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[3]
#: Command lines of the servers of a cluster.
_SERVER = re.compile(r"^\S*(gcs_server|raylet) ")

OWN_CLUSTER_PROGRAM = """
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
    """Return the ids and commands of the processes that name a folder in their commands."""
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_text().replace("\0", " ")
                if folder in command:
                    processes.append((int(entry.name), command[:200]))
    return processes


def wait_until_gone(folder: str) -> list[tuple[int, str]]:
    deadline = time.monotonic() + 120
    while (processes := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return processes


@pytest.mark.slow
def test_lost_and_joining_nodes_change_the_devices():
    result = run("-m", "tests.scheduler.ray.two_nodes_program")
    assert result.returncode == 0, result.stderr[-3000:]
    report = json.loads(result.stdout.splitlines()[-1])
    nodes = report["devices"]
    assert set(nodes) == {"TOY.0", "TOY.1", "TOY.2"}
    assert nodes["TOY.1"] == nodes["TOY.2"] != nodes["TOY.0"]
    assert report["4"]
    assert report["500000"]
    assert report["lost"][1] == nodes["TOY.1"]
    assert report["remaining"] == {"TOY.0": nodes["TOY.0"]}
    assert report["unknown device"] in ("TOY.1", "TOY.2")  # both are queried at once
    assert set(report["after joining"]) == {"TOY.0", "TOY.1"}
    assert report["after joining"]["TOY.1"] not in nodes.values()
    # A new client uses the same device names as the one that saw the changes.
    assert report["of another client"] == report["after joining"]


@pytest.fixture
def head():
    """Start a head with the command of `cluster.yaml`; its address and the ids of its servers."""
    command = yaml.safe_load((ROOT / "cluster.yaml").read_text())["head_start_ray_commands"][1]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    # The port and the configuration that `ray up` writes exist only on the machines of the file.
    command = re.sub(r"--autoscaling-config=\S+", "", command.replace("6379", str(port)))
    folder = tempfile.mkdtemp(prefix="ht-", dir="/tmp")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    process = subprocess.Popen(
        ["bash", "-c", f"{command} --block --num-cpus=2 --temp-dir={folder}"],
        cwd=ROOT,
        env=environment | {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)},
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
                servers = [pid for pid, command in processes_of(folder) if _SERVER.search(command)]
        yield f"127.0.0.1:{port}", servers
    finally:
        for pid, _ in processes_of(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_head_of_cluster_file_reports_its_loss(
    head,
):
    """Without the watch, Ray would end the process 60 seconds after the loss of the head."""
    address, servers = head
    arguments = (address, "65", *map(str, servers))
    result = run(
        "-m", "tests.scheduler.ray.lost_head_program", *arguments, RAY_AUTH_MODE="disabled"
    )
    assert result.returncode == 0, result.stderr[-3000:]
    report = json.loads(result.stdout)
    assert "CPU" in report["counts"]
    plugins = {name.partition(".")[0] for name in report["devices"]}  # of OV.CPU: OV
    assert report["counts"].keys() == plugins - {"TOY"}
    assert len(report["errors"]) == 4
    for message in report["errors"]:
        assert message.startswith("ClusterError"), message
        assert f"{address.rpartition(':')[2]} is gone: " in message
    assert report["left Ray"]


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
def test_own_ray_leaves_no_processes_or_files(number, code):
    temporary = Path(tempfile.mkdtemp(prefix="h", dir="/tmp"))
    program = OWN_CLUSTER_PROGRAM + (
        "time.sleep(99)" if number else "executor.close(); executor.close()"
    )
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
    # Names start with the id of the process that owns the socket.
    owners = {socket.name.rpartition("-")[0] for socket in sockets.iterdir()}
    assert len(owners) == 2
    assert any(shared_memory_of(owner) for owner in owners)
    if number is not None:
        assert processes_of(folder)
        process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == code, errors
    assert errors == "" or number == signal.SIGINT
    assert wait_until_gone(folder) == []
    if number == signal.SIGKILL:  # Ray may kill the device before it frees anything
        sweep(sockets)
        sweep(Path("/dev/shm"), "hetero-")
    wait_for(lambda: not list(sockets.iterdir()))
    wait_for(lambda: not any(shared_memory_of(owner) for owner in owners))
    wait_for(lambda: not Path(folder).exists())  # a killed client's guard removes it
    shutil.rmtree(temporary)


def shared_memory_of(owner: str) -> list[Path]:
    """Return the shared memory files of a process."""
    return list(Path("/dev/shm").glob(f"hetero-{owner}-*"))


FAILING_START_PROGRAM = """
from hetero.devices.errors import ClusterError
from hetero.scheduler import create_executor
try:
    create_executor("ray", ray_options={"object_store_memory": 1})
except ClusterError as error:
    print(error)
"""


@pytest.mark.slow
def test_failing_start_names_reason_and_fix():
    output = run("-c", FAILING_START_PROGRAM).stdout
    assert "minimum allowed" in output
    assert "--executor inprocess" in output


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-OpenSSH_9.7"], ids=["silent", "SSH"])
def test_address_of_another_server_is_refused(greeting):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            connection, _ = server.accept()
            connection.sendall(greeting)
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
def test_invalid_address_is_refused_at_once(address, words):
    with pytest.raises(ClusterError, match=words):
        check_reachable(address, 2.0)


@pytest.mark.parametrize(
    ("shared", "pool", "environment", "expected"),
    [
        ({"a:1"}, None, "", "a:1"),
        (set(), "p:2", "auto", "p:2"),
        ({"p:2"}, "p:2", "local", "p:2"),
        ({"a:1"}, "p:2", "e:3", "e:3"),
    ],
)
def test_auto_address_is_the_only_shared_cluster(monkeypatch, shared, pool, environment, expected):
    monkeypatch.setenv("RAY_ADDRESS", environment)
    monkeypatch.setattr(auto_address, "shared_clusters", lambda: shared)
    monkeypatch.setattr(auto_address, "find_head", lambda: pool)
    assert auto_address.find_cluster() == expected


@pytest.mark.parametrize(
    ("shared", "words"),
    [
        (set(), "no cluster that `ray start` or `hetero pool up` started runs"),
        ({"a:1", "p:2"}, r"expected one Ray cluster on this machine, got a:1, p:2 \(pool\)"),
    ],
)
def test_auto_address_of_no_or_several_clusters_is_refused(monkeypatch, shared, words):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(auto_address, "shared_clusters", lambda: shared)
    monkeypatch.setattr(auto_address, "find_head", lambda: "p:2" if shared else None)
    with pytest.raises(ClusterError, match=words) as caught:
        auto_address.find_cluster()
    assert caught.value.address == "auto"


def test_folders_of_ended_processes_are_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_start, "_LONGEST_FOLDER", 1000)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    first = ray_start._make_folder()
    owner = (first / "owner").read_text()
    process = subprocess.Popen(["true"])
    process.wait()
    for name, owner_text in (
        ("het-ended", f"{process.pid} 1"),
        ("het-reused", f"{os.getpid()} 1"),
        ("het-other", "of another program"),
    ):
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / "owner").write_text(owner_text)
    second = ray_start._make_folder()
    assert {path.name for path in tmp_path.iterdir()} == {first.name, second.name, "het-other"}
    assert (second / "owner").read_text() == owner


TWO_OWN_CLUSTERS_PROGRAM = """
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


TWO_USER_CLUSTERS_PROGRAM = """
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
def test_core_does_not_adopt_another_user_cluster():
    result = run("-c", TWO_USER_CLUSTERS_PROGRAM)
    assert (result.returncode, result.stdout.split()) == (
        0,
        ["False", "ClusterError", "True", "True"],
    )
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_closed_core_does_not_end_another_cluster():
    result = run("-c", TWO_OWN_CLUSTERS_PROGRAM)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("ClusterError this process has left the Ray cluster")
    assert lines[1:] == ["True True", "False"]
