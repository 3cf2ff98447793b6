"""Programs that end while requests are in flight end with their own exit code."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading
import numpy as np
import hetero
device, how, executor = sys.argv[1:]
compiled = hetero.Core(executor=executor).compile_model("light:squeezenet", device)
(port,) = compiled.inputs
x = np.ones(port.shape, np.float32)
if how == "daemon":
    started = threading.Barrier(5)
    def run():
        compiled(x)
        started.wait()
        while True:
            compiled(x)
    for _ in range(4):
        threading.Thread(target=run, daemon=True).start()
    started.wait()
else:
    requests = [compiled.create_infer_request() for _ in range(8)]
    for request in requests:
        request.start_async([x])
    if how == "raises":
        raise SystemExit(7)
"""


ENDS = pytest.mark.parametrize(("how", "code"), [("returns", 0), ("raises", 7), ("daemon", 0)])


def ends(device, how, executor):
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, device, how, executor],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return ran.returncode, ran.stderr


@pytest.mark.sampled(4)
@ENDS
@pytest.mark.parametrize("device", ["ORT", "HETERO:ORT,CPU", "OV", "HETERO:OV,ORT,CPU"])
def test_it_ends_with_requests_in_flight(device, how, code):
    for vendor, module in (("ORT", "onnxruntime"), ("OV", "openvino")):
        if vendor in device:
            pytest.importorskip(module)
    found, errors = ends(device, how, "inprocess")
    assert found == code, errors


@pytest.mark.slow
@pytest.mark.ray
@ENDS
def test_it_ends_with_requests_in_flight_on_ray(how, code):
    found, errors = ends("HETERO:CPU", how, "ray")
    assert found == code, errors


FORK = """
import os, signal, sys, time
import numpy as np
import hetero
device, how, code = sys.argv[1], sys.argv[2], int(sys.argv[3])
x = np.ones((1, 3, 224, 224), np.float32)
compiled = hetero.Core(executor="inprocess").compile_model("light:squeezenet", device)
compiled(x)
child = os.fork()
if not child:
    if how == "core":
        hetero.Core(executor="inprocess").compile_model("light:squeezenet", device)(x)
    if how == "raises":
        raise ValueError("by design")
    sys.exit(code)
until_s = time.monotonic() + 100
while not (ended := os.waitpid(child, os.WNOHANG))[0]:
    if time.monotonic() > until_s:
        os.kill(child, signal.SIGKILL)
    time.sleep(0.01)
assert os.waitstatus_to_exitcode(ended[1]) == code
compiled(x)
"""


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("how", "code"), [("ends", 5), ("raises", 1), ("core", 0)])
@pytest.mark.parametrize("device", ["CPU", "ORT", "OV"])
def test_a_fork_ends_with_its_own_code(device, how, code):
    for vendor, module in (("ORT", "onnxruntime"), ("OV", "openvino")):
        if vendor in device:
            pytest.importorskip(module)
    ran = subprocess.run(
        [sys.executable, "-c", FORK, device, how, str(code)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
