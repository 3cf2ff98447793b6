"""Each use of Ray's private modules, on a real cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import ray

import hetero
from hetero.scheduler.ray import private_api

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def core():
    with hetero.Core(devices={"CPU": 1}) as core:
        assert core.available_devices
        yield core


def test_alive_hosts_names_this_node(core):
    address = ray.get_runtime_context().gcs_address
    assert private_api.alive_hosts(address, 10.0) == {ray.util.get_node_ip_address()}


def test_current_connection_is_one_object_while_connected(core):
    connection = private_api.current_connection()
    assert connection is not None
    assert private_api.current_connection() is connection


#: Starts a local Ray and prints the command lines of all processes.
PROGRAM = """
import contextlib, pathlib, ray, hetero
with hetero.Core() as core:
    core.executor
    print("ADDRESS", ray.get_runtime_context().gcs_address)
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            print(path.read_bytes().replace(b"\\0", b" ").decode(errors="replace"))
"""


@pytest.mark.slow
def test_local_ray_runs_no_monitors_and_no_dashboard():
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    address = re.search("^ADDRESS (.+)$", result.stdout, re.MULTILINE)[1]
    commands = [line for line in result.stdout.splitlines() if address in line]
    assert any("raylet" in command for command in commands)
    unneeded = re.compile(r"monitor\.py|dashboard/dashboard\.py")
    assert [command for command in commands if unneeded.search(command)] == []


@pytest.fixture
def add_raylet(tmp_path):
    """Return a function that adds a raylet of a cluster to the folder of processes."""

    def add(number: int, address: str, started_address: str = "", program: str = "raylet") -> Path:
        folder = tmp_path / f"ray{number}"
        folder.mkdir()
        if started_address:
            (folder / "ray_current_cluster").write_text(f"{started_address}\n")
        command = [
            f"/ray/{program}",
            "--port=1",
            f"--temp_dir={folder}",
            f"--gcs-address={address}",
        ]
        (tmp_path / "proc" / str(number)).mkdir(parents=True)
        (tmp_path / "proc" / str(number) / "cmdline").write_text("\0".join(command))
        return tmp_path / "proc"

    return add


def test_only_running_clusters_of_ray_start_are_shared(add_raylet):
    add_raylet(1, "10.0.0.1:6379", "10.0.0.1:6379")
    add_raylet(2, "10.0.0.1:7000")  # a program's own Ray
    add_raylet(3, "10.0.0.1:8000", "10.0.0.1:8001")  # the file names a later cluster
    processes = add_raylet(4, "10.0.0.1:9000", "10.0.0.1:9000", program="python")
    assert private_api.shared_clusters(processes) == {"10.0.0.1:6379"}


def test_ray_of_this_program_is_not_shared(core):
    assert ray.get_runtime_context().gcs_address not in private_api.shared_clusters()


def test_store_keeps_the_first_value_without_overwrite(core):
    store, other = private_api.ClusterStore(b"test-a"), private_api.ClusterStore(b"test-b")
    assert store.get(b"key") is None
    assert not store.put(b"key", b"first", overwrite=False)
    assert store.put(b"key", b"second", overwrite=False)
    assert store.get(b"key") == b"first"
    assert store.put(b"key", b"third")
    assert store.get(b"key") == b"third"
    assert other.get(b"key") is None
    assert list(store.keys("k")) == [b"key"]
    store.delete(b"key")
    assert store.get(b"key") is None


def test_reload_credentials_keeps_the_cluster_usable(core):
    private_api.enable_token()
    private_api.reload_credentials()
    assert ray.get(ray.put(1)) == 1


def test_fork_ends_without_ending_the_parents_ray(core):
    child = os.fork()
    if not child:
        os._exit(0 if private_api.current_connection() is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ray.get(ray.put(2)) == 2
