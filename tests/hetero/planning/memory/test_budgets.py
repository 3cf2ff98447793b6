"""Plans within random budgets: a process whose memory the kernel limits runs each stage."""

from __future__ import annotations

import gc
import multiprocessing
import random
import resource
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from onnx import helper, numpy_helper

import hetero
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.errors import PlanError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.heap import release_free_memory
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import RunContext
from tests.support.graphs import proto

pytestmark = pytest.mark.slow

#: Budgets of each model.
BUDGETS: Final = 5


def convolutions(dice: random.Random) -> Model:
    """Return convolutions, activations and pools of a random width over an image."""
    size, channels = dice.choice([64, 128]), 3
    ports = [helper.make_tensor_value_info("v0", 1, [1, channels, size, size])]
    nodes, weights = [], []
    for i in range(dice.randint(3, 6)):
        outputs = dice.choice([16, 32, 64])
        weight = np.full((outputs, channels, 3, 3), 0.01, np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{i}"))
        nodes += [
            helper.make_node("Conv", [f"v{i}", f"w{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4),
            helper.make_node("Relu", [f"c{i}"], [f"v{i + 1}"], f"relu{i}"),
        ]
        channels = outputs
    ports.append(helper.make_tensor_value_info(nodes[-1].output[0], 1, [1, channels, size, size]))
    return read_model(proto(nodes, ports[:1], ports[1:], weights))


def products(dice: random.Random) -> Model:
    """Return products of a random number of rows with weights of several megabytes."""
    width, rows = dice.choice([512, 1024]), dice.choice([1, 256, 2048])
    count = dice.randint(2, 5)
    ports = [helper.make_tensor_value_info(n, 1, [rows, width]) for n in ("v0", f"v{count}")]
    weight = np.full((width, width), 0.001, np.float32)
    weights = [numpy_helper.from_array(weight, f"w{i}") for i in range(count)]
    nodes = [
        helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"], f"n{i}") for i in range(count)
    ]
    return read_model(proto(nodes, ports[:1], ports[1:], weights))


def residuals(width: int, count: int) -> Model:
    """Return blocks of two products whose result is added to their input."""
    ports = [helper.make_tensor_value_info(n, 1, [64, width]) for n in ("v0", f"v{count}")]
    nodes, weights = [], []
    for i in range(count):
        for name in ("up", "down"):
            weight = np.full((width, width), 1e-4, np.float32)
            weights.append(numpy_helper.from_array(weight, f"{name}{i}"))
        nodes += [
            helper.make_node("MatMul", [f"v{i}", f"up{i}"], [f"a{i}"], f"up_{i}"),
            helper.make_node("MatMul", [f"a{i}", f"down{i}"], [f"b{i}"], f"down_{i}"),
            helper.make_node("Add", [f"v{i}", f"b{i}"], [f"v{i + 1}"], f"add_{i}"),
        ]
    return read_model(proto(nodes, ports[:1], ports[1:], weights))


@pytest.fixture(scope="module")
def worker():
    """Process that runs models within a limit."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


def run_within(
    models: list[Model],
    nbytes: int,
    plugin_type: type[Plugin] = CPUPlugin,
    config: Mapping[str, Any] | None = None,
) -> str:
    """Run models with this much private memory beside their weights; return the error as text."""
    plugin = plugin_type()
    options = {"INFERENCE_NUM_THREADS": 1, **(config or {})}
    inputs = [
        [np.ones([int(d or 1) for d in port.shape or ()], np.float32) for port in model.inputs]
        for model in models
    ]
    np.ones((256, 256), np.float32) @ np.ones((256, 256), np.float32)  # starts the threads
    small = residuals(64, 1)
    plugin.compile_model(small, options).run([np.ones((64, 64), np.float32)], RunContext())
    gc.collect()
    release_free_memory()
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    used = 1024 * int(fields["VmData"].split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + nbytes, hard))
    try:
        for model, values in zip(models, inputs, strict=True):
            compiled = plugin.compile_model(model, options)
            for _ in range(2):
                compiled.run(values, RunContext())
    except (MemoryError, hetero.HeteroError) as error:
        return repr(error)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    return ""


@pytest.mark.parametrize("make", [convolutions, products])
@pytest.mark.parametrize("seed", range(10))
def test_stages_run_within_random_budgets(worker, make, seed):
    dice = random.Random(seed)
    model = make(dice)
    with hetero.Core("inprocess", devices={"CPU": 2}) as core:
        whole = core.plan_model(model, "CPU.0", {"FIT_MEMORY": True}).memory[0]
        own_nbytes = whole.peak_nbytes - whole.runtime_nbytes
        for _ in range(BUDGETS):
            budgets = {
                device: whole.runtime_nbytes + int(own_nbytes * dice.uniform(0.4, 1.1))
                for device in ("CPU.0", "CPU.1")
            }
            config = {"FIT_MEMORY": True, "DEVICE_MEMORY_NBYTES": budgets}
            try:
                report = core.plan_model(model, "HETERO:CPU.0,CPU.1", config)
            except PlanError as error:
                assert error.data["constraint"] == "memory"  # noqa: PT017
                continue
            for memory in report.memory:
                stages = report.replicas[0].partition.subgraphs
                models = [s.model for s in stages if s.device == memory.device]
                room = budgets[memory.device] - memory.runtime_nbytes - memory.weights_nbytes
                error_text = worker.submit(run_within, models, room).result()
                assert not error_text, (budgets, memory, error_text)


def test_mapped_weights_run_within_the_predicted_memory_and_not_below(worker):
    plugin = pytest.importorskip("hetero.devices.ort.plugin").ORTPlugin
    model = residuals(1024, 4)
    with hetero.Core("inprocess", devices={"ORT": 1}) as core:
        idle_nbytes = plugin.memory_traits.idle_nbytes
        # Too little for copies of the weights, enough without them.
        budget = {"ORT": idle_nbytes + int(1.5 * model.weight_nbytes)}
        config = {"FIT_MEMORY": True, "DEVICE_MEMORY_NBYTES": budget}
        (memory,) = core.plan_model(model, "ORT", config).memory
    assert memory.compact
    options = plugin.memory_traits.compact_options | {"ORT_ARENA_NBYTES": memory.values_nbytes}
    own_nbytes = memory.peak_nbytes - idle_nbytes
    run = partial(worker.submit, run_within, [model])
    assert not run(own_nbytes, plugin, options).result()
    assert "DeviceMemoryError" in run(own_nbytes * 7 // 10, plugin, options).result()
    # The same room does not hold the copies that a session makes by default.
    assert "DeviceMemoryError" in run(own_nbytes - model.weight_nbytes, plugin).result()
