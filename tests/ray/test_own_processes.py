"""What is this process's own: a fork leaves its parent's Ray alone, a pool ends what it started."""

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
from hetero.scheduler.ray import own_head, pool_service
from hetero.scheduler.ray.address import check_is_node

FORK = """
import os, sys
import numpy as np
from onnx.parser import parse_model
import hetero
from hetero.scheduler.ray import start
text = '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Neg(x) }'
core = hetero.Core("ray", devices={"CPU": 1})
model = core.compile_model(parse_model(text), "CPU")
inputs = {"x": np.ones(4, np.float32)}
model(inputs)
folder = start._current.folder
codes = []
for end in (lambda: sys.exit(3), lambda: 1 / 0):
    child = os.fork()
    if child == 0:
        end()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert folder.exists()
model(inputs)
core.close()
print(*codes)
"""


POOL = """
import sys, time
from pathlib import Path
import numpy as np
import ray
from onnx.parser import parse_model
import hetero
from hetero.scheduler.ray import own_head, pool_service
own_head.folder = lambda: Path(sys.argv[1])
text = '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Neg(x) }'
pool_service.bring_up(devices={"CPU": 1})
try:
    with hetero.Core("ray") as core:
        model = core.compile_model(parse_model(text), "CPU")
        inputs = {"x": np.ones(4, np.float32)}
        model(inputs)
        (device,) = model.deployment.devices.values()
        process = ray.get(device.actor.ping.remote())
        keeper = core.executor._keeper
        # As if this client alone were cut off, for longer than a device of its own could be.
        keeper.suspected(device.address, 2.0)
        time.sleep(10)
        keeper.live_again(device.address)
        answer = model(inputs)["y"]
        (again,) = model.deployment.devices.values()
        print(answer.tolist(), ray.get(again.actor.ping.remote()) == process)
finally:
    pool_service.take_down()
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_client_that_hears_nothing_ends_no_device_of_a_pool() -> None:
    with tempfile.TemporaryDirectory(prefix="hp") as folder:
        done = subprocess.run(
            [sys.executable, "-c", POOL, f"{folder}/p"],
            capture_output=True,
            text=True,
            timeout=150,
            cwd=Path(__file__).parents[2],
            check=False,
        )
    assert "is started again" not in done.stderr
    assert done.stdout.splitlines()[-1] == "[-1.0, -1.0, -1.0, -1.0] True", done.stderr[-2000:]


@pytest.mark.ray
@pytest.mark.slow
def test_a_fork_that_ends_leaves_its_parents_ray() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.stdout.split()[-2:] == ["3", "1"], done.stderr[-2000:]


@pytest.mark.slow
def test_a_pool_ends_the_processes_that_it_started_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "pool"
    place.mkdir(mode=0o700)
    monkeypatch.setattr(own_head, "folder", lambda: place)
    sleep = f"sleep 600; : {place}/ray/session_latest/logs"
    alike = subprocess.Popen(["/bin/sh", "-c", sleep])
    mine = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 601 & echo $!; trap '' TERM; wait; sleep 602"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert mine.stdout is not None
    child = int(mine.stdout.readline())
    own = f"{mine.pid} {process_start(mine.pid)}"
    try:
        (place / "session").write_text(f"{mine.pid} 1")  # the number was another's
        own_head.stop_head()
        assert process_start(child)
        place.mkdir(mode=0o700)
        (place / "session").write_text(own)
        own_head.stop_head()
        assert not place.exists()
        assert mine.wait(60) == -signal.SIGKILL
        assert not process_start(child)
        assert alike.poll() is None
    finally:
        for process in (alike, mine):
            process.kill()
            process.wait()
        mine.stdout.close()


@pytest.mark.parametrize(
    ("hosts", "here"), [(["127.0.0.1", "192.0.2.77"], True), (["192.0.2.77"], False), ([], True)]
)
def test_a_machine_that_is_no_node_of_the_cluster_is_told(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str], here: bool
) -> None:
    class Row:
        state = 0

        def __init__(self, host: str) -> None:
            self.node_manager_address = host

    class Head:
        def __init__(self, address: str) -> None:
            assert address == "192.0.2.77:6379"

        def get_all_node_info(self, timeout: float) -> dict[int, Row]:
            return {number: Row(host) for number, host in enumerate(hosts)}

    monkeypatch.setattr("ray._raylet.GcsClient", Head)
    if here:
        check_is_node("192.0.2.77:6379")
    else:
        with pytest.raises(own_head.ClusterError, match=r"no node .* 192\.0\.2\.77"):
            check_is_node("192.0.2.77:6379")


def test_a_token_is_in_its_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_head, "folder", lambda: tmp_path)
    (tmp_path / "token").write_text("secret")
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "other")
    own_head._let_in()
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "token")
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_a_cluster_whose_token_is_not_here_asks_for_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    environment = {**os.environ, "HOME": str(tmp_path), "RAY_AUTH_MODE": "token"}
    join = "from hetero.scheduler.ray import start\nstart._join('127.0.0.1:6379')"
    done = subprocess.run(
        [sys.executable, "-c", join], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1  # Ray itself ends the process by SIGABRT
    assert "takes nobody without its token" in done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (exceptions.ActorUnavailableError("lost", None), "the connection to it was lost"),
        (exceptions.GetTimeoutError("late"), "its process did not answer within"),
    ],
)
def test_a_pools_status_says_in_words_why_a_device_is_away(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(pool_service.ray, "get", fail)
    assert said in (pool_service._device("CPU", None).error or "")
