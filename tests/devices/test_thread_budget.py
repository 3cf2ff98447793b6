"""How much of a node's cores devices really take: the time that threads run, as the kernel counts.

Requests go one at a time, so that one device works at a time: more of its threads than it may have
would run for longer than the clock goes. Other work on the machine can only make that less.
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
    d
    for d, of in {"OV": "openvino", "ORT": "onnxruntime", "CPU": "numpy"}.items()
    if importlib.util.find_spec(of)
]
STEPS = 12
#: Seconds of a turn: many of the kernel's ticks, and the shortest time that may be undisturbed.
TURN_S = 0.15
TURNS = 30
X = np.random.default_rng(0).random((384, 384), np.float32)
BODY = "".join(f"p{i} = MatMul(h{i}, x) h{i + 1} = Softmax(p{i}) " for i in range(STEPS))
MODEL = parser.parse_model(
    f'<ir_version: 8, opset_import: ["" : 17]> g (float[384,384] x) => (float[384,384] h{STEPS})'
    f"{{h0 = Identity(x) {BODY}}}"
)


def ran_s(processes: Iterable[int]) -> float:
    """Return how many seconds all threads of processes have run."""
    total_ns = 0
    for process in processes:
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):  # one that has just ended
                total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def threads_of(compiled: hetero.CompiledModel, processes: Iterable[int]) -> float:
    """Return how many threads ran on average while requests came one at a time, in any turn."""
    compiled(X)
    most = 0.0
    for _ in range(TURNS):
        begun_s, before_s = time.monotonic(), ran_s(processes)
        while time.monotonic() < begun_s + TURN_S:
            compiled(X)
        most = max(most, (ran_s(processes) - before_s) / (time.monotonic() - begun_s))
    return most


def split(core: hetero.Core, config: dict[str, Any]) -> hetero.CompiledModel:
    """Return a model whose steps each device of `DEVICES` has a part of."""
    affinity = {
        f"{v}{i + o}": DEVICES[i * len(DEVICES) // STEPS]
        for i in range(STEPS)
        for v, o in (("p", 0), ("h", 1))
    }
    compiled = core.compile_model(MODEL, f"HETERO:{','.join(DEVICES)}", config, affinity=affinity)
    assert {s.device.partition(".")[0] for s in compiled.subgraphs} == set(DEVICES)
    return compiled


def share(core: hetero.Core) -> int:
    """Return how many threads the device with the most of them has."""
    cores = next(d.num_threads for d in core.device_descriptors if d.name == "CPU")
    return -(-cores // len(DEVICES))


@pytest.mark.slow  # alone in its process: threads of what ran before it would count
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="no such accounting here")
@pytest.mark.parametrize(
    ("executor", "config"),
    [
        ("inprocess", {"INFERENCE_NUM_THREADS": 1}),
        ("inprocess", {}),
        pytest.param("ray", {"INFERENCE_NUM_THREADS": 1}, marks=pytest.mark.ray),
        pytest.param("ray", {}, marks=pytest.mark.ray),
    ],
)
def test_devices_run_no_more_threads_than_they_may(executor: Any, config: dict[str, Any]) -> None:
    with hetero.Core(executor) as core, split(core, config) as compiled:
        processes = [os.getpid()]
        if executor == "ray":
            actors = core.executor._devices._actors.values()  # type: ignore[attr-defined]
            processes = ray.get([device.actor.ping.remote() for device in actors])
            assert len(set(processes)) == len(DEVICES)
        wanted = config.get("INFERENCE_NUM_THREADS") or share(core)
        assert 0.01 < threads_of(compiled, processes) < wanted + 0.25


def foreign() -> set[str]:
    """Return the threads of this process that are not Python's."""
    ours = {str(thread.native_id) for thread in threading.enumerate()}
    return {path.name for path in Path("/proc/self/task").iterdir()} - ours


def test_a_session_has_the_threads_that_it_may_beside_its_callers() -> None:
    pytest.importorskip("onnxruntime")
    made = []
    with hetero.Core("inprocess") as core:
        kept = [core.compile_model(MODEL, "CPU")]  # the first starts threads of its own
        for count in (1, 3):
            before = foreign()
            kept.append(core.compile_model(MODEL, "ORT", {"INFERENCE_NUM_THREADS": count}))
            made.append(len(foreign() - before))
    assert made == [0, 2]
