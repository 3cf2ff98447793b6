"""Random memory budgets: whether processes that the kernel limits to them run the plans that fit.

``python -m benchmarks.memory_budgets [--count N] [--seed N] [--devices NAMES] [--json]``. A budget
is a random share of the memory that a random model needs on one device, with or without copies of
its weights, for each of two devices. A `hetero.Core` plans the model within the budgets. The plugin
then runs each device's part in a new process, whose RLIMIT_DATA is the budget without the parts
that it does not bound: the idle process, the libraries of the device, and the weights, which are
mapped from a file.

`exceeded`: parts that failed within their limit. `over_peak`: parts whose largest resident memory
(VmHWM) was above the budget. `missed`: budgets without a plan for which an assignment of all
enumerated ones fits; models with more than `MAX_ASSIGNMENTS` are not enumerated.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import multiprocessing
import random
import resource
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

import hetero
from benchmarks import networks, small_networks
from benchmarks.tables import names, print_rows
from hetero.devices.errors import HeteroError, PlanError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.heap import release_free_memory
from hetero.devices.plugin.program import RunContext
from hetero.devices.plugin.registry import find_plugin, load_plugins
from hetero.devices.request.device_model import DeviceModel
from hetero.partition.partition import Subgraph, partition
from hetero.planning.memory.device_memory import DeviceMemory, MemoryModel
from hetero.planning.memory.predict_memory import block_nbytes, predict_memory

DEVICES: Final = ("CPU", "ORT")
#: Budgets of each model.
BUDGETS: Final = 5
#: Smallest and largest budget of a device, relative to the memory of the whole model on it.
SHARES: Final = (0.4, 1.1)
#: Maximum number of assignments that are enumerated.
MAX_ASSIGNMENTS: Final = 2048
#: Runs of each part; the peak does not grow afterwards.
RUNS: Final = 2
#: Modules that the server of the forked processes imports once.
_PRELOADED: Final = [
    "benchmarks.networks",
    "benchmarks.small_networks",
    "hetero.devices.ort.plugin",
    "benchmarks.memory_budgets",
]
#: Width of the product that initializes libraries: OpenBLAS reserves its buffers for large ones.
_WARM_UP_WIDTH: Final = 256
#: Stack of a thread; the whole stack counts as private memory, even if it is unused.
_STACK_NBYTES: Final = 2**18


def convolutions(dice: random.Random) -> onnx.ModelProto:
    """Return convolutions and activations of random widths over an image."""
    size, channels = dice.choice([64, 128]), 3
    inputs = [helper.make_tensor_value_info("v0", 1, [1, channels, size, size])]
    nodes, weights = [], []
    count = dice.randint(3, 6)
    for i in range(count):
        width = dice.choice([16, 32, 64])
        weights.append(
            numpy_helper.from_array(np.full((width, channels, 3, 3), 0.01, np.float32), f"w{i}")
        )
        nodes += [
            helper.make_node("Conv", [f"v{i}", f"w{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4),
            helper.make_node("Relu", [f"c{i}"], [f"v{i + 1}"], f"relu{i}"),
        ]
        channels = width
    outputs = [helper.make_tensor_value_info(f"v{count}", 1, [1, channels, size, size])]
    return _proto("convolutions", nodes, inputs, outputs, weights)


def products(dice: random.Random) -> onnx.ModelProto:
    """Return products of a random number of rows with weights of several megabytes."""
    width, rows = dice.choice([512, 1024]), dice.choice([1, 256, 2048])
    count = dice.randint(2, 5)
    inputs, outputs = (
        [helper.make_tensor_value_info(n, 1, [rows, width])] for n in ("v0", f"v{count}")
    )
    weight = np.full((width, width), 0.001, np.float32)
    weights = [numpy_helper.from_array(weight, f"w{i}") for i in range(count)]
    nodes = [
        helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"], f"n{i}") for i in range(count)
    ]
    return _proto("products", nodes, inputs, outputs, weights)


def residuals(dice: random.Random) -> onnx.ModelProto:
    """Return blocks of two products whose result is added to their input."""
    width, rows, count = dice.choice([256, 512]), dice.choice([64, 512]), dice.randint(2, 4)
    inputs, outputs = (
        [helper.make_tensor_value_info(n, 1, [rows, width])] for n in ("v0", f"v{count}")
    )
    nodes, weights = [], []
    for i in range(count):
        for name, shape in (("up", (width, 4 * width)), ("down", (4 * width, width))):
            weights.append(numpy_helper.from_array(np.full(shape, 1e-4, np.float32), f"{name}{i}"))
        nodes += [
            helper.make_node("MatMul", [f"v{i}", f"up{i}"], [f"a{i}"], f"up_{i}"),
            helper.make_node("Relu", [f"a{i}"], [f"b{i}"], f"relu_{i}"),
            helper.make_node("MatMul", [f"b{i}", f"down{i}"], [f"c{i}"], f"down_{i}"),
            helper.make_node("Add", [f"v{i}", f"c{i}"], [f"v{i + 1}"], f"add_{i}"),
        ]
    return _proto("residuals", nodes, inputs, outputs, weights)


def unet(dice: random.Random) -> onnx.ModelProto:
    """Return a U-Net of a random image and width."""
    return small_networks.unet(image=dice.choice([64, 128]), width=dice.choice([16, 32]))


def bert(dice: random.Random) -> onnx.ModelProto:
    """Return an encoder of random size."""
    width = dice.choice([128, 256])
    return networks.bert(layers=dice.randint(1, 3), width=width, length=dice.choice([64, 256]))


MODELS: Final[Sequence[Callable[[random.Random], onnx.ModelProto]]] = (
    convolutions,
    products,
    residuals,
    unet,
    bert,
)


def _proto(name: str, nodes: Any, inputs: Any, outputs: Any, weights: Any) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, name, inputs, outputs, weights)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


def cases(device: str, seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield the outcome of each of `count` budgets of random models for two like devices."""
    dice = random.Random(f"{device} {seed}")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    devices = f"{device}.0", f"{device}.1"
    with (
        hetero.Core("inprocess", devices={device: 2}) as core,
        ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool,
    ):
        traits = {d.name: d.memory_traits.with_blocks for d in core.device_descriptors}
        full = traits[devices[0]]
        for number in range(count):
            if number % BUDGETS == 0:
                make = dice.choice(MODELS)
                model = core.read_model(make(dice))
                split = partition(model, dict.fromkeys(model.node_names, devices[0]))
                memory = MemoryModel({devices[0]: dice.choice([full, full.compact])}, {})
                whole = predict_memory(model, split.subgraphs, memory)[devices[0]]
            own_nbytes = whole.peak_nbytes - whole.runtime_nbytes
            budgets = {
                name: whole.runtime_nbytes + int(own_nbytes * dice.uniform(*SHARES))
                for name in devices
            }
            row = {"device": device, "model": make.__name__, "seed": seed, "number": number}
            try:
                report = core.plan_model(
                    model,
                    f"HETERO:{','.join(devices)}",
                    {"FIT_MEMORY": True, "DEVICE_MEMORY_NBYTES": budgets},
                )
            except PlanError as error:
                memory = MemoryModel({name: traits[name] for name in devices}, budgets)
                is_missed = _enumerates_a_fit(model, devices, memory)
                yield row | {"outcome": "missed" if is_missed else "no plan", "error": str(error)}
                continue
            subgraphs = report.replicas[0].partition.subgraphs
            for prediction in report.memory:
                parts = [s for s in subgraphs if s.device == prediction.device]
                config = dict(full.compact_options) if prediction.compact else {}
                if full.values_option:
                    config[full.values_option] = block_nbytes(model, parts, prediction)
                with tempfile.TemporaryDirectory(prefix="hetero-budgets-") as folder:
                    paths = [_save(s, Path(folder)) for s in parts]
                    outcome = pool.submit(run_part, device, paths, prediction, config).result()
                yield row | outcome


def _enumerates_a_fit(model: Model, devices: Sequence[str], memory: MemoryModel) -> bool:
    """Return whether any assignment of the nodes fits; False if there are too many of them."""
    node_names = model.node_names
    if len(devices) ** len(node_names) > MAX_ASSIGNMENTS:
        return False
    for choice in itertools.product(devices, repeat=len(node_names)):
        split = partition(model, dict(zip(node_names, choice, strict=True)))
        predictions = predict_memory(model, split.subgraphs, memory)
        if all(prediction.fits for prediction in predictions.values()):
            return True
    return False


def _save(subgraph: Subgraph, folder: Path) -> Path:
    """Write a subgraph with its weights in a file to map; return its path."""
    path = folder / f"{subgraph.index}.onnx"
    networks.save_with_mapped_weights(subgraph.model.to_proto(), path)
    return path


def run_part(
    device: str, paths: Sequence[Path], prediction: DeviceMemory, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Compile and run models in this process, limited to the budget of a prediction."""
    threading.stack_size(_STACK_NBYTES)
    budget_nbytes = prediction.budget_nbytes or 0
    plugin = find_plugin(load_plugins((), only=device), device)
    options = {"INFERENCE_NUM_THREADS": 1, **config}
    for proto in _warm_up_models():
        _run(plugin.compile_model(read_model(proto), options))
    models = [read_model(path) for path in paths]
    gc.collect()
    release_free_memory()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    base = _status()
    room_nbytes = budget_nbytes - prediction.runtime_nbytes
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    limit_nbytes = base["VmData"] + room_nbytes
    if not prediction.compact:  # weights that ONNX Runtime maps itself count as private
        limit_nbytes -= prediction.weights_nbytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit_nbytes, hard_limit))
    error_text = ""
    try:
        programs = [plugin.compile_model(model, options) for model in models]
        for program in programs:
            _run(program)
    except (MemoryError, HeteroError) as error:
        error_text = " ".join(repr(error).split())[:300]
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (hard_limit, hard_limit))
    peak = _status()["VmHWM"] - base["VmRSS"]
    return {
        "outcome": "exceeded" if error_text else "fits",
        "error": error_text,
        "compact": prediction.compact,
        "over_peak": peak > room_nbytes,
        "ratio": (prediction.peak_nbytes - prediction.runtime_nbytes) / max(1, peak),
        "budget_mb": round(budget_nbytes / 1e6, 1),
        "room_mb": round(room_nbytes / 1e6, 1),
        "peak_mb": round(peak / 1e6, 1),
    }


def _run(program: DeviceModel) -> None:
    """Run a compiled model on ones; the caller does not keep the results."""
    inputs = [np.ones([int(d or 1) for d in p.shape or ()], p.dtype) for p in program.inputs]
    for _ in range(RUNS):
        program.run(inputs, RunContext())


def _warm_up_models() -> Iterator[onnx.ModelProto]:
    """Yield small models that load the libraries of a device and the code of its kernels."""
    ports = [helper.make_tensor_value_info(name, 1, [_WARM_UP_WIDTH] * 2) for name in "xy"]
    weight = numpy_helper.from_array(np.ones([_WARM_UP_WIDTH] * 2, np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    yield _proto("warm_up", [node], ports[:1], ports[1:], [weight])
    yield small_networks.unet(image=32, width=4)
    yield networks.bert(layers=1, width=64, length=16)


def _status() -> dict[str, int]:
    """Return the memory of this process in bytes, by the kernel's names."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    fields = (line.split() for line in lines if line.startswith("Vm"))
    return {name[:-1]: 1024 * int(size) for name, size, *_ in fields}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the counts of budgets and parts by outcome."""
    budgets = {(row["device"], row["seed"], row["number"]) for row in rows}
    parts = [row for row in rows if "ratio" in row]
    return {
        "budgets": len(budgets),
        "parts": len(parts),
        **{
            outcome: sum(row["outcome"] == outcome for row in rows)
            for outcome in ("exceeded", "no plan", "missed")
        },
        "over_peak": sum(row["over_peak"] for row in parts),
        "lowest ratio": min((row["ratio"] for row in parts), default=None),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=500, help="budgets of each device")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", type=names, default=DEVICES)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    rows = [row for device in options.devices for row in cases(device, options.seed, options.count)]
    print_rows(rows, options.json, **summary(rows))


if __name__ == "__main__":
    main()
