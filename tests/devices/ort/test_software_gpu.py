"""A GPU with its own memory on any machine: ggml's provider on Mesa's software Vulkan driver."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.software_gpu import software_gpu_environment

pytest.importorskip("onnxruntime_ggml", reason="onnxruntime-ggml is not installed")

#: Prints the devices of the nodes, and the largest error, of a model on the GPU and other devices.
SPLIT = """
import json, sys
from collections import Counter
import numpy as np
import hetero
from benchmarks.provider_nodes import mlp_with_mish
model = mlp_with_mish()
random = np.random.default_rng(0)
with hetero.Core(sys.argv[1]) as core:
    core.set_property("ORT_GGML", {"PROVIDER_OPTIONS": {"device": "gpu"}})
    compiled = core.compile_model(model, "HETERO:ORT_GGML,ORT,CPU")
    reference = core.compile_model(model, "CPU")
    errors = []
    for _ in range(8):
        x = random.normal(size=(4, 64)).astype(np.float32)
        errors.append(float(np.abs(compiled(x)[0] - reference(x)[0]).max()))
    devices = Counter()
    for subgraph in compiled.subgraphs:
        devices[subgraph.device] += len(subgraph.node_names)
    print(json.dumps({"devices": devices, "error": max(errors)}))
"""


@pytest.fixture(scope="module")
def environment():
    """The environment of processes that use the software GPU."""
    return software_gpu_environment()


def run(environment, *arguments):
    """Run Python with the software GPU; return its stdout and stderr."""
    process = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, (process.stdout + process.stderr)[-3000:]
    return process.stdout, process.stderr


@pytest.mark.slow
def test_gpu_passes_the_conformance_suite(environment):
    out, err = run(
        {**environment, "ORT_GGML_DEVICE": "gpu"}, "-m", "hetero", "check-device", "ORT_GGML"
    )
    passed, total = out.split("passes ")[1].split(" checks")[0].split(" of ")
    assert passed == total
    assert "llvmpipe" in err  # the GPU ran the checks


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inprocess", pytest.param("ray", marks=pytest.mark.ray)])
def test_model_split_between_gpu_and_other_devices_is_right(environment, executor):
    out, _ = run(environment, "-c", SPLIT, executor)
    result = json.loads(out.splitlines()[-1])
    assert result["devices"] == {"ORT_GGML": 30, "ORT": 6}
    assert result["error"] < 0.05  # the software GPU multiplies in float16


@pytest.mark.slow
def test_gpu_is_refused_without_driver(environment):
    """Without its driver, the option that asks for a GPU is an error of the property."""
    process = subprocess.run(
        [sys.executable, "-c", SPLIT, "inprocess"],
        env={**environment, "VK_DRIVER_FILES": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 1
    assert "PropertyError" in process.stderr
    assert "PROVIDER_OPTIONS" in process.stderr
