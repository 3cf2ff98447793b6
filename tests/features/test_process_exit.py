"""Exit codes: processes that exit with requests in flight, and forked processes."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading
import numpy as np
import hetero
device, ending, executor = sys.argv[1:]
compiled = hetero.Core(executor=executor).compile_model(
    "light:squeezenet", device, {"VERIFY": "NO"}
)
(port,) = compiled.inputs
x = np.ones(port.shape, np.float32)
if ending == "daemon":
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
    if ending == "raises":
        raise SystemExit(7)
"""


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


EXIT_CASES = pytest.mark.parametrize(
    ("ending", "code"), [slow("returns", 0), ("raises", 7), slow("daemon", 0)]
)


def run_script(device, ending, executor):
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, device, ending, executor],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return process.returncode, process.stderr


@EXIT_CASES
@pytest.mark.parametrize(
    "device", [slow("ORT"), "HETERO:ORT,CPU", slow("OV"), slow("HETERO:OV,ORT,CPU")]
)
def test_exit_code_with_requests_in_flight(device, ending, code):
    for vendor, module in (("ORT", "onnxruntime"), ("OV", "openvino")):
        if vendor in device:
            pytest.importorskip(module)
    exit_code, errors = run_script(device, ending, "inprocess")
    assert exit_code == code, errors


@pytest.mark.slow
@pytest.mark.ray
@EXIT_CASES
def test_exit_code_with_requests_in_flight_on_ray(ending, code):
    exit_code, errors = run_script("HETERO:CPU", ending, "ray")
    assert exit_code == code, errors


FORK = """
import os, signal, sys, time
import numpy as np
import hetero
unverified = {"VERIFY": "NO"}
device, ending, code = sys.argv[1], sys.argv[2], int(sys.argv[3])
x = np.ones((1, 3, 224, 224), np.float32)
core = hetero.Core(executor="inprocess")
compiled = core.compile_model("light:squeezenet", device, unverified)
compiled(x)
child = os.fork()
if not child:
    if ending == "core":
        core = hetero.Core(executor="inprocess")
        core.compile_model("light:squeezenet", device, unverified)(x)
    if ending == "raises":
        raise ValueError("by design")
    sys.exit(code)
deadline_s = time.monotonic() + 100
while not (status := os.waitpid(child, os.WNOHANG))[0]:
    if time.monotonic() > deadline_s:
        os.kill(child, signal.SIGKILL)
    time.sleep(0.01)
assert os.waitstatus_to_exitcode(status[1]) == code
compiled(x)
"""


@pytest.mark.parametrize(("ending", "code"), [("ends", 5), slow("raises", 1), slow("core", 0)])
@pytest.mark.parametrize("device", [slow("CPU"), "ORT", slow("OV")])
def test_exit_code_of_forked_process(device, ending, code):
    for vendor, module in (("ORT", "onnxruntime"), ("OV", "openvino")):
        if vendor in device:
            pytest.importorskip(module)
    process = subprocess.run(
        [sys.executable, "-c", FORK, device, ending, str(code)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
