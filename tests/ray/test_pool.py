"""A pool: commands and programs find its devices started, share them, and end without them."""

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
from hetero.scheduler.ray.pool import Pool, dissolve
from hetero.scheduler.ray.pool_keeper import open_pool
from hetero.scheduler.ray.survey import NodeSurvey
from tests.scheduler.models import chain

pytestmark = pytest.mark.ray

#: Has a device keep 400 bytes, says ready once its model has answered, then answers each line.
CLIENT = """
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

#: Is a client of a Ray of its own, of a pool that ends then, of its own again, and of its user's.
MANY_RAYS = """
import os, subprocess, sys
import numpy as np
import ray
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

#: Has two texts in their middle, ends the first, says ready, and the next token for each line.
TALKER = """
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
def environment() -> Iterator[dict[str, str]]:
    """An environment in which no other pool is, and none is left."""
    folder = tempfile.mkdtemp(prefix="p", dir="/tmp")
    gone = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
    kept = {name: value for name, value in os.environ.items() if name not in gone}
    environment = {**kept, "TMPDIR": folder, "PYTHONPATH": str(Path.cwd())}
    yield environment
    subprocess.run(hetero("pool down"), env=environment, capture_output=True, check=False)
    left = [line for line in commands() if f"{folder}/" in line]
    shutil.rmtree(folder, ignore_errors=True)
    assert not left


def commands() -> Iterator[str]:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue


def hetero(arguments: str) -> list[str]:
    return [sys.executable, "-m", "hetero", *shlex.split(arguments)]


def told(arguments: str, environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        hetero(f"{arguments} --json"), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_the_examples_of_the_help(environment: dict[str, str]) -> None:
    for line in EXAMPLES["pool"]:
        done = subprocess.run(
            hetero(line.removeprefix("hetero ")),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, line + done.stdout + done.stderr
    none = subprocess.run(
        hetero("pool status"), env=environment, capture_output=True, text=True, check=False
    )
    assert none.returncode == 1
    assert "no pool is up on this machine; `hetero pool up` starts one" in none.stderr


@pytest.mark.slow
def test_a_process_goes_from_one_ray_to_another(environment: dict[str, str]) -> None:
    """Ray keeps what let it into the first for as long as a process lives, unless it is told."""
    done = subprocess.run(
        [sys.executable, "-c", MANY_RAYS],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_clients_share_devices_and_one_that_is_killed_takes_nothing_with_it(
    environment: dict[str, str],
) -> None:
    assert told("pool up --devices NULL=2", environment)["pool"]["devices"] == {"NULL": 2}
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for client in clients:
        assert answer(client) == "ready"
    before = {row["name"]: row for row in told("pool status", environment)["devices"]}
    assert [before[name]["clients"] for name in ("NULL.0", "NULL.1")] == [2, 2]
    assert before["NULL.0"]["kept_nbytes"] == 800
    opened = Path(f"/proc/{before['NULL.0']['process']}/fd")
    num_open = len(list(opened.iterdir()))
    clients[0].send_signal(signal.SIGKILL)
    clients[0].wait()
    while True:
        after = {row["name"]: row for row in told("pool status", environment)["devices"]}
        counts = [after[name]["clients"] for name in ("NULL.0", "NULL.1")]
        if counts == [1, 1] and after["NULL.0"]["kept_nbytes"] == 400:
            break
        time.sleep(0.1)
    assert [row["process"] for row in after.values()] == [r["process"] for r in before.values()]
    assert clients[1].stdin is not None
    clients[1].stdin.write("again\n")
    clients[1].stdin.flush()
    assert answer(clients[1]) == "(16,)"
    clients[1].communicate()
    assert told("run light:squeezenet --device ORT", environment)["check"]["matches"]
    while any(
        row["clients"] or row["kept_nbytes"] for row in told("pool status", environment)["devices"]
    ):
        time.sleep(0.1)
    while len(list(opened.iterdir())) > num_open - 2 * 3:  # of each: its process, and two sockets
        time.sleep(0.1)


def answer(client: subprocess.Popen[str]) -> str:
    assert client.stdout is not None
    return client.stdout.readline().strip()


@pytest.fixture
def pool(local_ray: None) -> Iterator[None]:
    """A pool in the Ray of these tests."""
    open_pool(Pool({"NULL": 2}))
    yield
    dissolve()


def test_a_second_client_asks_no_node_and_finds_the_devices_of_the_first(
    pool: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process() -> int:
        executor: Any = create_executor("ray")
        try:
            listed.append(executor.devices())
            number: int = ray.get(executor._devices.device("NULL.1").actor.ping.remote())
            return number
        finally:
            executor.close()

    listed: list[Any] = []
    first = process()
    monkeypatch.setattr(NodeSurvey, "_ask", None)
    assert process() == first
    assert listed[0] == listed[1]


def test_a_device_that_dies_is_started_anew_once_by_the_pools_keeper(
    pool: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process(executor: Any) -> int:
        number: int = ray.get(executor._devices.device("NULL.0").actor.ping.remote())
        return number

    executors: list[Any] = [create_executor("ray") for _ in range(2)]
    try:
        deployments = [executor.deploy(*chain("NULL.0")) for executor in executors]
        before = process(executors[0])
        with monkeypatch.context() as patch:
            patch.setattr(ray, "kill", None)  # not for clients to do
            os.kill(before, signal.SIGKILL)
            for deployment in deployments:
                made = deployment.submit({"x": np.ones(4, np.float32)})
                assert made.future.result(300).outputs["t0"].shape == (4,)
        assert process(executors[0]) == process(executors[1]) != before
    finally:
        for executor in executors:
            executor.close()


@pytest.mark.slow
def test_caches_of_a_text_that_is_cancelled_and_of_a_client_that_is_killed_are_freed(
    environment: dict[str, str],
) -> None:
    def kept() -> list[int]:
        rows = {row["name"]: row for row in told("pool status", environment)["devices"]}
        return [rows[name]["kept_nbytes"] for name in ("CPU.0", "CPU.1")]

    def await_kept(least: int, most: int) -> None:
        until_s = time.monotonic() + 60
        while not all(least <= nbytes <= most for nbytes in kept()):
            assert time.monotonic() < until_s, kept()

    told("pool up --devices CPU=2", environment)
    talker = subprocess.Popen(
        [sys.executable, "-c", TALKER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert answer(talker) == "ready"
    # On each device keys and values of 2 heads of 8 floats for each of 4 tokens, the next one's
    # among them, and what makes them again: of one text less than two have.
    caches_nbytes = 2 * 2 * 8 * 4 * 4
    await_kept(caches_nbytes, 2 * caches_nbytes - 1)
    talker.send_signal(signal.SIGKILL)
    talker.wait()
    await_kept(0, 0)
