"""Programs that end while requests are in flight end with their own exit code."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading
import numpy as np
import hetero
device, how = sys.argv[1:]
compiled = hetero.Core(executor="inprocess").compile_model("light:squeezenet", device)
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


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("how", "code"), [("returns", 0), ("raises", 7), ("daemon", 0)])
@pytest.mark.parametrize("device", ["ORT", "HETERO:ORT,CPU", "OV", "HETERO:OV,ORT,CPU"])
def test_it_ends_with_requests_in_flight(device, how, code):
    for vendor, module in (("ORT", "onnxruntime"), ("OV", "openvino")):
        if vendor in device:
            pytest.importorskip(module)
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, device, how],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == code, ran.stderr
