"""Questions that crash, hang or grow end the process that is asked, and nothing else."""

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
from hetero.devices.model.worker_process import Ended, WorkerProcess
from hetero.devices.plugin.node_queries import QueryProcess
from tests.support import crashing_vendor

ROOT = Path(__file__).parents[2]
LIMITS = {"memory_nbytes": 2**30, "time_s": 1.0}


@pytest.fixture(scope="module")
def worker():
    return WorkerProcess("tests.support.crashing_vendor:answers", [str(ROOT)])


@pytest.mark.parametrize(
    ("request_", "how"),
    [
        (b"crash", "its process ended with SIGSEGV"),
        (b"exit", "its process ended with exit status 3"),
        (b"spin", "it took too long"),
        (b"wait", "it took too long"),
        (b"memory", "its process ended with exit status 0"),
    ],
)
def test_after_a_request_that_ends_it_another_is_answered(worker, request_, how, monkeypatch):
    wait_s = {b"spin": 60, b"wait": 1}.get(request_, 5)
    monkeypatch.setattr(worker_process, "_WAIT_S", wait_s)
    monkeypatch.setattr(worker_process, "_WAIT", 0)
    assert worker.ask(request_, **LIMITS) == Ended(how)
    monkeypatch.setattr(worker_process, "_WAIT_S", 60)
    assert worker.ask(b"well", **LIMITS) == b"well"


def test_what_native_code_prints_is_no_answer(worker):
    assert worker.ask(b"print", **LIMITS) == b"print"


def test_it_stays_warm(worker):
    worker.ask(b"well", **LIMITS)
    process = worker._process
    assert worker.ask(b"again", **LIMITS) == b"again"
    assert worker._process is process


def test_a_request_that_comes_while_it_computes_does_not_end_it(worker, tmp_path):
    worker.ask(b"well", **LIMITS)
    started = tmp_path / "started"

    def next_request():
        deadline = time.monotonic() + 60
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        worker._process.stdin.write(struct.pack("<QQd", 4, 2**30, 1.0) + b"next")
        worker._process.stdin.flush()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(next_request)
        assert worker.ask(os.fsencode(started), **LIMITS) == os.fsencode(started)
    worker._end()  # whose next answer would be to the request above


SCRIPT = """
import os, signal, threading, time
from hetero.devices.model.worker_process import WorkerProcess
worker = WorkerProcess("tests.support.crashing_vendor:answers", [os.getcwd()])
limits = {"memory_nbytes": 2**30, "time_s": 1000.0}
assert worker.ask(b"well", **limits) == b"well"
threading.Thread(target=worker.ask, args=(b"wait",), kwargs=limits, daemon=True).start()
status = f"/proc/{worker._process.pid}/wchan"
while "nanosleep" not in open(status).read():
    time.sleep(0.01)
print(worker._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_one_that_is_asked_ends_with_the_process_that_asked():
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    status = Path(f"/proc/{int(ran.stdout)}/stat")
    deadline = time.monotonic() + 60
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "it outlives the process that asked"
        time.sleep(0.01)


@pytest.mark.parametrize("device", ["ORT", "OV"])
def test_a_node_that_a_vendor_crashes_on_is_refused_with_the_crash(device, monkeypatch):
    if device == "ORT":
        module = pytest.importorskip("hetero.devices.ort.query", reason="needs ONNX Runtime")
    else:
        pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")
        from hetero.devices.openvino import query as module
    asked = QueryProcess("The vendor", crashing_vendor.verdicts)
    monkeypatch.setattr(module, "WORKER", asked)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y)'
        "{ a = Relu(x) b = Tanh(a) y = Neg(b) }"
    )
    with hetero.Core(executor="inprocess") as core:
        support = core.query_model(model, f"HETERO:{device},CPU")
    assert {name: on.partition(".")[0] for name, on in support.items()} == {
        "a": device,
        "b": "CPU",
        "y": device,
    }
    (refusal,) = support.refusals["b"].values()
    assert "The vendor crashed when it was asked about Tanh" in refusal.message
    assert "SIGSEGV" in refusal.message
    assert "asked on" in support.notes["a"]
