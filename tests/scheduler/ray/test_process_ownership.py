"""Ownership of Ray processes: forks do not end their parent's Ray, pools end only their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from ray import exceptions

from hetero.scheduler.processes.owned_files import process_start
from hetero.scheduler.ray import local_cluster, pool_service, session
from hetero.scheduler.ray.address import check_is_node

FORK_PROGRAM = """
import os, sys
import numpy as np
from onnx.parser import parse_model
import hetero
from hetero.scheduler.ray import session
text = '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Neg(x) }'
core = hetero.Core("ray", devices={"CPU": 1})
model = core.compile_model(parse_model(text), "CPU")
inputs = {"x": np.ones(4, np.float32)}
model(inputs)
folder = session._current.folder
codes = []
for exit_child in (lambda: sys.exit(3), lambda: 1 / 0):
    child = os.fork()
    if child == 0:
        exit_child()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert folder.exists()
model(inputs)
core.close()
print(*codes)
"""


POOL_PROGRAM = """
import sys, time
from pathlib import Path
import numpy as np
import ray
from onnx.parser import parse_model
import hetero
from hetero.scheduler.ray import local_cluster, pool_service, session
local_cluster.folder = lambda: Path(sys.argv[1])
text = '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Neg(x) }'
pool_service.bring_up(devices={"CPU": 1})
try:
    with hetero.Core("ray") as core:
        model = core.compile_model(parse_model(text), "CPU")
        inputs = {"x": np.ones(4, np.float32)}
        model(inputs)
        (device,) = model.deployment.devices.values()
        process = ray.get(device.actor.ping.remote())
        supervisor = core.executor._supervisor
        # Simulates a client without connection for longer than a device of its own may be silent.
        supervisor.handle_silence(device.address, 2.0)
        time.sleep(10)
        supervisor.live_again(device.address)
        y = model(inputs)["y"]
        (device,) = model.deployment.devices.values()
        print(y.tolist(), ray.get(device.actor.ping.remote()) == process)
finally:
    pool_service.take_down()
"""


@pytest.mark.ray
@pytest.mark.slow
def test_disconnected_client_ends_no_pool_device():
    with tempfile.TemporaryDirectory(prefix="hp") as folder:
        result = subprocess.run(
            [sys.executable, "-c", POOL_PROGRAM, f"{folder}/p"],
            capture_output=True,
            text=True,
            timeout=150,
            cwd=Path(__file__).parents[3],
            check=False,
        )
    assert "is restarted" not in result.stderr
    assert result.stdout.splitlines()[-1] == "[-1.0, -1.0, -1.0, -1.0] True", result.stderr[-2000:]


@pytest.mark.ray
@pytest.mark.slow
def test_exiting_fork_leaves_the_parents_ray_running():
    result = subprocess.run(
        [sys.executable, "-c", FORK_PROGRAM],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert result.stdout.split()[-2:] == ["3", "1"], result.stderr[-2000:]


@pytest.mark.slow
def test_stop_head_ends_only_its_own_processes(tmp_path, monkeypatch):
    folder = tmp_path / "pool"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(local_cluster, "folder", lambda: folder)
    sleep = f"sleep 600; : {folder}/ray/session_latest/logs"
    similar = subprocess.Popen(["/bin/sh", "-c", sleep])
    parent = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 601 & echo $!; trap '' TERM; wait; sleep 602"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    owner = f"{parent.pid} {process_start(parent.pid)}"
    try:
        (folder / "session").write_text(f"{parent.pid} 1")  # as if another process had had this id
        local_cluster.stop_head()
        assert process_start(child)
        folder.mkdir(mode=0o700)
        (folder / "session").write_text(owner)
        local_cluster.stop_head()
        assert not folder.exists()
        assert parent.wait(60) == -signal.SIGKILL
        assert not process_start(child)
        assert similar.poll() is None
    finally:
        for process in (similar, parent):
            process.kill()
            process.wait()
        parent.stdout.close()


def test_head_that_does_not_start_is_an_error(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'Traceback (most'\necho 'OSError: no memory.'\nexit 1\n")
    program.chmod(0o700)
    monkeypatch.setattr(local_cluster, "folder", lambda: tmp_path / "pool")
    monkeypatch.setattr("sys.executable", str(program))
    for name in ("RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")
    with pytest.raises(local_cluster.ClusterError) as error:
        local_cluster.start_head()
    assert "exit code 1 (OSError: no memory). Check free memory" in str(error.value)
    assert "--executor inprocess" in str(error.value)
    assert "Traceback" not in str(error.value)


@pytest.mark.parametrize(
    ("hosts", "is_node"), [(["127.0.0.1", "192.0.2.77"], True), (["192.0.2.77"], False), ([], True)]
)
def test_check_is_node_rejects_other_machines(monkeypatch, hosts, is_node):
    class NodeInfo:
        state = 0

        def __init__(self, host: str) -> None:
            self.node_manager_address = host

    class GcsClient:
        def __init__(self, address: str) -> None:
            assert address == "192.0.2.77:6379"

        def get_all_node_info(self, timeout: float) -> dict[int, NodeInfo]:
            return {number: NodeInfo(host) for number, host in enumerate(hosts)}

    monkeypatch.setattr("ray._raylet.GcsClient", GcsClient)
    if is_node:
        check_is_node("192.0.2.77:6379")
    else:
        with pytest.raises(local_cluster.ClusterError, match=r"no node .* 192\.0\.2\.77"):
            check_is_node("192.0.2.77:6379")


def test_token_is_passed_by_file_only(tmp_path, monkeypatch):
    monkeypatch.setattr(local_cluster, "folder", lambda: tmp_path)
    (tmp_path / "token").write_text("secret")
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "other")
    local_cluster._let_in()
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "token")
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_missing_token_is_the_only_error(tmp_path, monkeypatch):
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    environment = {**os.environ, "HOME": str(tmp_path), "RAY_AUTH_MODE": "token"}
    join = "from hetero.scheduler.ray import session\nsession._join('127.0.0.1:6379')"
    result = subprocess.run(
        [sys.executable, "-c", join], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1  # Ray itself ends the process by SIGABRT
    assert "takes nobody without its token" in result.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (exceptions.ActorUnavailableError("lost", None), "the connection to it was lost"),
        (exceptions.GetTimeoutError("late"), "its process did not answer within"),
    ],
)
def test_pool_status_explains_missing_devices(monkeypatch, error, words):
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(pool_service.ray, "get", fail)
    assert words in (pool_service._device("CPU", None).error or "")


def test_folders_of_other_users_do_not_delay_the_start(tmp_path, monkeypatch):
    def make(name: str) -> Path:
        folder = tmp_path / f"het-{name}"
        folder.mkdir(mode=0o700)
        return folder / "owner"

    os.mkfifo(make("pipe"))
    make("device").symlink_to("/dev/zero")
    sparse = make("sparse")
    sparse.touch()
    os.truncate(sparse, 2**40)
    (tmp_path / "het-file").touch()
    shared = make("shared")  # others may have written it
    shared.write_text("1 1")
    shared.parent.chmod(0o777)
    dead = make("dead")
    dead.write_text("1 1")
    monkeypatch.setattr(session, "_LONGEST_FOLDER", 200)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert session._make_folder().parent == tmp_path
    assert not dead.parent.exists()
    assert {path.name for path in tmp_path.iterdir()} >= {
        "het-pipe",
        "het-device",
        "het-sparse",
        "het-file",
        "het-shared",
    }


def test_pool_commands_resolve_the_address_auto(monkeypatch):
    monkeypatch.setattr(pool_service, "find_cluster", lambda: "10.0.0.1:6379")
    monkeypatch.setattr(pool_service, "find_head", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert pool_service._known("auto") == "10.0.0.1:6379"
    assert pool_service._known("10.0.0.2:6379") == "10.0.0.2:6379"
    with pytest.raises(local_cluster.ClusterError, match="no pool is up"):
        pool_service._known(None)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert pool_service._known(None) == "10.0.0.1:6379"
