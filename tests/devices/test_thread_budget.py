"""Thread budget: devices use no more threads than allowed, measured by the kernel's CPU time.

The test sends one request at a time, so that one device computes at a time. With too many threads,
the CPU time exceeds the allowed multiple of the wall time. Other load on the machine only lowers
this ratio.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from onnx import parser

import hetero

DEVICES = [
    device
    for device, module in {"OV": "openvino", "ORT": "onnxruntime", "CPU": "numpy"}.items()
    if importlib.util.find_spec(module)
]
STEPS = 12
#: Seconds of a measurement: many kernel ticks, and short enough to be undisturbed sometimes.
ROUND_S = 0.15
ROUNDS = 30
X = np.random.default_rng(0).random((384, 384), np.float32)
BODY = "".join(f"p{i} = MatMul(h{i}, x) h{i + 1} = Softmax(p{i}) " for i in range(STEPS))
MODEL = parser.parse_model(
    f'<ir_version: 8, opset_import: ["" : 17]> g (float[384,384] x) => (float[384,384] h{STEPS})'
    f"{{h0 = Identity(x) {BODY}}}"
)


def cpu_time_s(processes: Iterable[int]) -> float:
    """Return the CPU time of all threads of processes."""
    total_ns = 0
    for process in processes:
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has just ended
                total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def max_running_threads(compiled: hetero.CompiledModel, processes: Iterable[int]) -> float:
    """Return the maximum of the average numbers of running threads in all rounds."""
    compiled(X)
    maximum = 0.0
    for _ in range(ROUNDS):
        start_s, start_cpu_s = time.monotonic(), cpu_time_s(processes)
        while time.monotonic() < start_s + ROUND_S:
            compiled(X)
        cpu_s, wall_s = cpu_time_s(processes) - start_cpu_s, time.monotonic() - start_s
        maximum = max(maximum, cpu_s / wall_s)
    return maximum


def compile_split(core: hetero.Core, config: dict[str, Any]) -> hetero.CompiledModel:
    """Compile the model with an equal share of its steps on each of `DEVICES`."""
    affinity = {
        f"{v}{i + o}": DEVICES[i * len(DEVICES) // STEPS]
        for i in range(STEPS)
        for v, o in (("p", 0), ("h", 1))
    }
    compiled = core.compile_model(MODEL, f"HETERO:{','.join(DEVICES)}", config, affinity=affinity)
    assert {s.device.partition(".")[0] for s in compiled.subgraphs} == set(DEVICES)
    return compiled


def max_thread_share(core: hetero.Core) -> int:
    """Return the largest thread budget of a device."""
    cores = next(d.num_threads for d in core.device_descriptors if d.name == "CPU")
    return -(-cores // len(DEVICES))


@pytest.mark.slow  # runs alone in its process, because it counts all threads of the process
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs schedstat")
@pytest.mark.parametrize(
    ("executor", "config"),
    [
        ("inprocess", {"INFERENCE_NUM_THREADS": 1}),
        ("inprocess", {}),
        pytest.param("ray", {"INFERENCE_NUM_THREADS": 1}, marks=pytest.mark.ray),
        pytest.param("ray", {}, marks=pytest.mark.ray),
    ],
)
def test_devices_stay_within_thread_budget(executor, config):
    with hetero.Core(executor) as core, compile_split(core, config) as compiled:
        processes = [os.getpid()]
        if executor == "ray":
            actors = core.executor._devices._actors.values()  # type: ignore[attr-defined]
            processes = ray.get([device.actor.ping.remote() for device in actors])
            assert len(set(processes)) == len(DEVICES)
        budget = config.get("INFERENCE_NUM_THREADS") or max_thread_share(core)
        assert 0.01 < max_running_threads(compiled, processes) < budget + 0.25


def native_threads() -> set[str]:
    """Return the ids of this process's threads that Python did not start."""
    python_threads = {str(thread.native_id) for thread in threading.enumerate()}
    return {path.name for path in Path("/proc/self/task").iterdir()} - python_threads


def test_session_starts_one_thread_less_than_its_budget():
    """The thread of the caller is the remaining one."""
    pytest.importorskip("onnxruntime")
    counts = []
    with hetero.Core("inprocess") as core:
        models = [core.compile_model(MODEL, "CPU")]  # the first model starts other threads
        for budget in (1, 3):
            before = native_threads()
            models.append(core.compile_model(MODEL, "ORT", {"INFERENCE_NUM_THREADS": budget}))
            counts.append(len(native_threads() - before))
    assert counts == [0, 2]
