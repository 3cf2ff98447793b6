"""Exhausted descriptors and threads: a typed error, and no leaks."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

import hetero
from hetero.devices.errors import HeteroError, OverloadedError
from hetero.scheduler.channels.direct import DirectChannel
from hetero.scheduler.device.workers import PumpingWorkers
from tests.scheduler.endpoints import LONG_S, ChannelEndpoint

DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
from hetero.devices.errors import ClusterError
from hetero.scheduler.channels import addresses
from hetero.scheduler.channels.direct import DirectChannel
from tests.scheduler.endpoints import check, values

def num_open():
    return len(os.listdir("/proc/self/fd"))

def allow(number):
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, most))

def fill():
    while True:
        try:
            filling.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return

def channel(receive=None):
    return DirectChannel(receive, folder=folder, host="127.0.0.1", curve=False)

folder, filling = Path(sys.argv[1]), []
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
channel().close()
before, refused = num_open(), 0
for more in range(80):
    allow(before + more)
    made = []
    try:
        made.append(channel())
        made.append(channel())
    except ClusterError as error:
        refused += "ulimit -n" in str(error)
    allow(most)
    for one in made:
        one.close()
    del made
    assert (num_open(), list(folder.iterdir())) == (before, []), more
print(refused, flush=True)
for node in (addresses.this_node(), "elsewhere"):
    addresses.this_node = lambda: node
    came = []
    one, other = channel(), channel(came.append)
    allow(num_open())
    fill()
    one.watch(other.address)
    first = []  # between nodes it is sent once there is a descriptor
    try:
        one.send(other.address, values(1))
        first = [1]
    except ClusterError as error:
        assert "ulimit -n" in str(error)
    assert bool(first) == (node == "elsewhere")
    allow(most)
    one.send(other.address, values(2))
    while len(came) <= len(first):
        other.pump(1.0)
    for message, number in zip(came, [*first, 2], strict=True):
        check(message, number)
    one.close(), other.close()
    while filling:
        os.close(filling.pop())
assert (num_open(), list(folder.iterdir())) == (before, [])
"""


def test_process_without_descriptors_continues_without_channel(folder):
    done = subprocess.run(
        [sys.executable, "-c", DESCRIPTORS, folder],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert 40 < int(done.stdout) < 80  # the second channel is created after the first failed


class Threads:
    """Limit of the number of threads that can be started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 10**6
        self.num_started = 0
        real = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if not self.left:
                raise RuntimeError("can't start new thread")
            self.left -= 1
            self.num_started += 1
            real(thread)

        monkeypatch.setattr(threading.Thread, "start", start)


@pytest.fixture
def threads(monkeypatch):
    return Threads(monkeypatch)


def test_channel_without_threads_is_refused_and_leaves_nothing(folder, threads):
    ChannelEndpoint(folder, host="127.0.0.1").channel.close()
    thread_count, threads.num_started = threads.num_started, 0
    before = len(list(Path("/proc/self/fd").iterdir()))
    for threads.left in range(thread_count):
        with pytest.raises(OverloadedError, match="ulimit -u"):
            DirectChannel(lambda message: None, folder=folder, host="127.0.0.1")
        assert list(folder.iterdir()) == []
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_device_without_new_threads_continues_with_existing_ones(threads, caplog):
    class Idle:
        num_waits = 0

        def pump(self, timeout_s: float) -> int:
            time.sleep(0.01)
            return 0

        def wake(self) -> None:
            pass

    workers = PumpingWorkers("device")
    channel: Any = Idle()
    threads.left = 0
    with pytest.raises(OverloadedError, match="'device-0'"):
        workers.serve(channel)
    threads.left = 2
    with caplog.at_level(logging.WARNING, "scheduler"):
        workers.run_at_once(4)
    assert workers.count == 2
    assert "2 threads do the work of 4" in caplog.text
    threads.left = 100
    workers.run_at_once(4)
    assert workers.count == 4
    workers.stop()


def test_user_without_threads_gets_a_typed_error(threads):
    model = parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Neg(x) }'
    )
    inputs = {"x": np.ones(4, np.float32)}

    def use() -> None:
        with hetero.Core("inprocess") as core, core.compile_model(model, "CPU") as compiled:
            compiled(inputs)
            request = compiled.create_infer_request()
            request.set_callback(lambda *_: None)
            request.start_async(inputs)
            request.wait()

    use()
    thread_count, before = threads.num_started, threading.active_count()
    for threads.left in range(thread_count):
        with pytest.raises(HeteroError, match="can't start new thread"):
            use()
    threads.left = 10**6
    use()
    end_s = time.monotonic() + LONG_S
    while threading.active_count() > before:
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_models_of_an_executor_share_its_threads():
    model = parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Neg(x) }'
    )
    with hetero.Core("inprocess") as core:
        models, threads = [], []
        for _ in range(20):
            models.append(core.compile_model(model, "CPU"))
            models[-1]({"x": np.ones(4, np.float32)})
            threads.append({*threading.enumerate()})
    assert threads[-1] <= threads[0], "threads of earlier tests may end meanwhile"
