"""Pools: commands and programs share their devices, which outlive each of them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from hetero.cli.help_examples import EXAMPLES
from hetero.scheduler import create_executor
from hetero.scheduler.ray.node_discovery import NodeDiscovery
from hetero.scheduler.ray.pool import Pool, dissolve
from hetero.scheduler.ray.pool_supervisor import open_pool
from tests.scheduler.models import chain
from tests.support.listening_sockets import LOOPBACK, listening_addresses, session_members

pytestmark = pytest.mark.ray

#: Stores 400 bytes on a device, prints "ready" after a request, then runs one for each line.
CLIENT_PROGRAM = """
import sys
import numpy as np
import hetero
from benchmarks.null_models import compile_chain
with hetero.Core() as core:
    with compile_chain(core, 2, 64) as model:
        model(np.ones(16, np.float32))
        kept = core.create_context("NULL.0").from_host(np.ones(100, np.float32))
        print("ready", flush=True)
        for line in sys.stdin:
            print(model(np.ones(16, np.float32))[0].shape, flush=True)
"""

#: Uses a cluster of its own, then a pool, its own again, and finally a cluster of the user.
MANY_CLUSTERS_PROGRAM = """
import os, subprocess, sys
import numpy as np
import ray
import threadpoolctl  # its import sets an environment variable
import hetero
from tests.support.models import branches
def use(is_local):
    with hetero.Core(devices={"CPU": 1}) as core, core.compile_model(branches(), "CPU") as model:
        assert core.executor._session.is_local == is_local
        assert model({"x": np.zeros((2, 3), np.float32)})[0].shape
def pool(command):
    subprocess.run([sys.executable, "-m", "hetero", "pool", command], check=True)
before = dict(os.environ)
use(True)
pool("up")
use(False)
pool("down")
use(True)
assert os.environ == before
ray.init(address="local", include_dashboard=False, log_to_driver=False)
use(False)
"""

#: Starts two generations, cancels the first, prints "ready", then a token for each line.
GENERATION_PROGRAM = """
import sys
import hetero
from hetero.examples.small_decoder import small_decoder
model = hetero.read_decoder(small_decoder())
pins = {"*_1": "CPU.1", "sample": "CPU.1"}
with hetero.Core() as core:
    with core.compile_model(model, "HETERO:CPU.0,CPU.1", affinity=pins) as compiled:
        texts = [compiled.generate([3, 14, 15], 40) for _ in range(2)]
        for text in texts:
            next(text)
        texts[0].cancel()
        print("ready", flush=True)
        for line in sys.stdin:
            print(next(texts[1]), flush=True)
"""


@pytest.fixture
def environment():
    """Variables of an environment without a pool; stops the pool that the test starts."""
    folder = tempfile.mkdtemp(prefix="p", dir="/tmp")
    removed = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
    variables = {name: value for name, value in os.environ.items() if name not in removed}
    environment = {**variables, "TMPDIR": folder, "PYTHONPATH": str(Path.cwd())}
    yield environment
    subprocess.run(hetero_command("pool down"), env=environment, capture_output=True, check=False)
    processes = [line for line in command_lines() if f"{folder}/" in line]
    shutil.rmtree(folder, ignore_errors=True)
    assert not processes


def command_lines() -> Iterator[str]:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue


def hetero_command(arguments: str) -> list[str]:
    return [sys.executable, "-m", "hetero", *shlex.split(arguments)]


def run_json(arguments: str, environment: dict[str, str]) -> dict[str, Any]:
    result = subprocess.run(
        hetero_command(f"{arguments} --json"),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.mark.slow
def test_help_examples_run(environment):
    for line in EXAMPLES["pool"]:
        result = subprocess.run(
            hetero_command(line.removeprefix("hetero ")),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, line + result.stdout + result.stderr
    status = subprocess.run(
        hetero_command("pool status"), env=environment, capture_output=True, text=True, check=False
    )
    assert status.returncode == 1
    assert "no pool is up on this machine; `hetero pool up` starts one" in status.stderr


@pytest.mark.slow
def test_process_changes_between_clusters(environment):
    """Ray keeps the credentials of the first cluster until they are reloaded."""
    result = subprocess.run(
        [sys.executable, "-c", MANY_CLUSTERS_PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_pool_of_this_machine_listens_on_loopback(environment):
    up = run_json("pool up --devices CPU=1", environment)
    assert up["address"].startswith("127.0.0.1:")
    (device,) = [row for row in up["devices"] if row["name"] == "CPU"]
    members = session_members(os.getsid(device["process"]))
    assert len(members) > 3
    addresses = set().union(*map(listening_addresses, members))
    assert addresses
    assert addresses <= LOOPBACK


@pytest.mark.slow
def test_killed_client_does_not_affect_other_clients(
    environment,
):
    assert run_json("pool up --devices NULL=2", environment)["pool"]["devices"] == {"NULL": 2}
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", CLIENT_PROGRAM],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for client in clients:
        assert read_line(client) == "ready"
    before = {row["name"]: row for row in run_json("pool status", environment)["devices"]}
    assert [before[name]["clients"] for name in ("NULL.0", "NULL.1")] == [2, 2]
    assert before["NULL.0"]["kept_nbytes"] == 800
    descriptors = Path(f"/proc/{before['NULL.0']['process']}/fd")
    num_descriptors = len(list(descriptors.iterdir()))
    clients[0].send_signal(signal.SIGKILL)
    clients[0].wait()
    while True:
        after = {row["name"]: row for row in run_json("pool status", environment)["devices"]}
        counts = [after[name]["clients"] for name in ("NULL.0", "NULL.1")]
        if counts == [1, 1] and after["NULL.0"]["kept_nbytes"] == 400:
            break
        time.sleep(0.1)
    assert [row["process"] for row in after.values()] == [r["process"] for r in before.values()]
    assert clients[1].stdin is not None
    clients[1].stdin.write("again\n")
    clients[1].stdin.flush()
    assert read_line(clients[1]) == "(16,)"
    clients[1].communicate()
    assert run_json("run light:squeezenet --device ORT", environment)["check"]["matches"]
    while any(
        row["clients"] or row["kept_nbytes"]
        for row in run_json("pool status", environment)["devices"]
    ):
        time.sleep(0.1)
    # Each client has three file descriptors: of its process and of two sockets.
    while len(list(descriptors.iterdir())) > num_descriptors - 2 * 3:
        time.sleep(0.1)


def read_line(client: subprocess.Popen[str]) -> str:
    assert client.stdout is not None
    return client.stdout.readline().strip()


@pytest.fixture
def pool(local_ray):
    """A pool on the cluster of these tests."""
    open_pool(Pool({"NULL": 2}))
    yield
    dissolve()


@pytest.mark.slow
def test_second_client_reuses_devices_without_probes(pool, monkeypatch):
    def process_id() -> int:
        executor: Any = create_executor("ray")
        try:
            listings.append(executor.devices())
            pid: int = ray.get(executor._devices.device("NULL.1").actor.ping.remote())
            return pid
        finally:
            executor.close()

    listings: list[Any] = []
    first_pid = process_id()
    monkeypatch.setattr(NodeDiscovery, "_query_node", None)
    assert process_id() == first_pid
    assert listings[0] == listings[1]


@pytest.mark.slow
def test_pool_supervisor_restarts_a_lost_device_once(pool, monkeypatch):
    def process_id(executor: Any) -> int:
        pid: int = ray.get(executor._devices.device("NULL.0").actor.ping.remote())
        return pid

    executors: list[Any] = [create_executor("ray") for _ in range(2)]
    try:
        deployments = [executor.deploy(*chain("NULL.0")) for executor in executors]
        pid_before = process_id(executors[0])
        with monkeypatch.context() as patch:
            patch.setattr(ray, "kill", None)  # clients must not kill devices
            os.kill(pid_before, signal.SIGKILL)
            for deployment in deployments:
                submission = deployment.submit({"x": np.ones(4, np.float32)})
                assert submission.future.result(300).outputs["t0"].shape == (4,)
        assert process_id(executors[0]) == process_id(executors[1]) != pid_before
    finally:
        for executor in executors:
            executor.close()


@pytest.mark.slow
def test_caches_of_cancelled_generations_and_killed_clients_are_freed(
    environment,
):
    def resident_nbytes() -> list[int]:
        rows = {row["name"]: row for row in run_json("pool status", environment)["devices"]}
        return [rows[name]["kept_nbytes"] for name in ("CPU.0", "CPU.1")]

    def await_nbytes(minimum: int, maximum: int) -> None:
        deadline_s = time.monotonic() + 60
        while not all(minimum <= nbytes <= maximum for nbytes in resident_nbytes()):
            assert time.monotonic() < deadline_s, resident_nbytes()

    run_json("pool up --devices CPU=2", environment)
    client = subprocess.Popen(
        [sys.executable, "-c", GENERATION_PROGRAM],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert read_line(client) == "ready"
    # Each device holds keys and values of 2 heads with 8 floats for each of 4 tokens, including
    # the next one, and their lineage: more than one sequence needs, and less than two.
    caches_nbytes = 2 * 2 * 8 * 4 * 4
    await_nbytes(caches_nbytes, 2 * caches_nbytes - 1)
    client.send_signal(signal.SIGKILL)
    client.wait()
    await_nbytes(0, 0)
