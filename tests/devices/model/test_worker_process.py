"""Calls that crash, hang or exceed memory end the worker process only; the next call succeeds."""

import os
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest

import hetero
from hetero.devices.model import worker_process
from hetero.devices.model.worker_process import WorkerFailure, WorkerProcess
from hetero.devices.plugin.node_queries import QueryProcess
from tests.support import crashing_vendor

ROOT = Path(__file__).parents[3]
LIMITS = {"memory_nbytes": 2**30, "time_s": 1.0}


@pytest.fixture(scope="module")
def worker():
    return WorkerProcess("tests.support.crashing_vendor:respond", [str(ROOT)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"crash", "its process ended with SIGSEGV"),
        (b"exit", "its process ended with exit status 3"),
        (b"spin", "it took too long"),
        (b"wait", "it took too long"),
        (b"memory", "its process ended with exit status 0"),
    ],
)
def test_worker_restarts_after_failure(worker, content, reason, monkeypatch):
    wait_s = {b"spin": 60, b"wait": 1}.get(content, 5)
    monkeypatch.setattr(worker_process, "_WAIT_S", wait_s)
    monkeypatch.setattr(worker_process, "_WAIT_PER_S", 0)
    assert worker.call(content, **LIMITS) == WorkerFailure(reason)
    monkeypatch.setattr(worker_process, "_WAIT_S", 60)
    assert worker.call(b"well", **LIMITS) == b"well"


def test_native_output_to_stdout_does_not_corrupt_response(worker):
    assert worker.call(b"print", **LIMITS) == b"print"


def test_worker_process_is_reused(worker):
    worker.call(b"well", **LIMITS)
    process = worker._process
    worker.start()
    assert worker.call(b"again", **LIMITS) == b"again"
    assert worker._process is process


def test_request_during_a_call_does_not_end_the_worker(worker, tmp_path):
    worker.call(b"well", **LIMITS)
    marker = tmp_path / "started"

    def next_request():
        deadline = time.monotonic() + 60
        while not marker.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        worker._process.stdin.write(struct.pack("<QQd", 4, 2**30, 1.0) + b"next")
        worker._process.stdin.flush()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(next_request)
        assert worker.call(os.fsencode(marker), **LIMITS) == os.fsencode(marker)
    worker._end()  # its next response would belong to the request above


SCRIPT = """
import os, signal, threading, time
from hetero.devices.model.worker_process import WorkerProcess
worker = WorkerProcess("tests.support.crashing_vendor:respond", [os.getcwd()])
limits = {"memory_nbytes": 2**30, "time_s": 1000.0}
assert worker.call(b"well", **limits) == b"well"
threading.Thread(target=worker.call, args=(b"wait",), kwargs=limits, daemon=True).start()
status = f"/proc/{worker._process.pid}/wchan"
while "nanosleep" not in open(status).read():
    time.sleep(0.01)
print(worker._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_worker_ends_with_its_parent():
    parent = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    status = Path(f"/proc/{int(parent.stdout)}/stat")
    deadline = time.monotonic() + 60
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the worker outlives its parent"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["ORT", "OV"])
def test_node_that_crashes_a_vendor_is_refused(device, monkeypatch):
    if device == "ORT":
        module = pytest.importorskip("hetero.devices.ort.query", reason="needs ONNX Runtime")
    else:
        pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")
        from hetero.devices.openvino import query as module
    monkeypatch.setattr(module, "WORKER", QueryProcess("The vendor", crashing_vendor.verdicts))
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y)'
        "{ a = Relu(x) b = Tanh(a) y = Neg(b) }"
    )
    with hetero.Core(executor="inprocess") as core:
        support = core.query_model(model, f"HETERO:{device},CPU")
    assert {name: chosen.partition(".")[0] for name, chosen in support.items()} == {
        "a": device,
        "b": "CPU",
        "y": device,
    }
    (refusal,) = support.refusals["b"].values()
    assert "The vendor crashed in a query of Tanh" in refusal.message
    assert "SIGSEGV" in refusal.message
    assert "asked on" in support.notes["a"]


def test_response_of_many_parts_is_read_completely():
    data = bytes(range(256)) * 2**13  # 2 MiB; a pipe has 64 KiB
    reader, writer = os.pipe()
    try:
        with ThreadPoolExecutor(1) as pool, os.fdopen(writer, "wb") as file:
            written = pool.submit(lambda: (file.write(data), file.flush()))
            assert worker_process._read(reader, len(data), time.monotonic() + 60) == data
            written.result()
        assert worker_process._read(reader, 1, time.monotonic() + 60) is None
    finally:
        os.close(reader)


def test_worker_has_a_session_of_its_own(worker):
    """Ctrl-C in a terminal reaches only the processes of its session."""
    worker.call(b"session", **LIMITS)
    assert os.getsid(worker._process.pid) == worker._process.pid != os.getsid(0)
