"""Benchmark: the CPU device against ONNX Runtime and onnx's ReferenceEvaluator, one thread each.

The CPU device is the reference: it runs kernels one after the other, and no goal is set for its
speed. The figures are information for lists of devices in which it computes a part.

``python -m benchmarks.kernels [--json] [--models a,b] [--rounds N] [--no-reference]``. The three
run by turns in one process, so that a change of the machine's speed meets all of them; each row
gives the median of its rounds (the evaluator, far slower, runs once).
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

# Before numpy is loaded: its BLAS reads these once. A core type that somebody forced would have
# numpy's products use half of the vector units that ONNX Runtime uses.
if __name__ == "__main__":  # who only imports this keeps the environment of its own processes
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ.pop("OPENBLAS_CORETYPE", None)

import numpy as np
import onnx
import threadpoolctl
from onnx.reference import ReferenceEvaluator

from benchmarks.networks import NETWORKS
from benchmarks.sessions import bare_session
from benchmarks.small_networks import SMALL_NETWORKS
from benchmarks.tables import names, print_rows
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.light_models import light_model_names, light_model_path
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.request.device_model import DeviceModel

#: Seconds that a model is measured for at least, however many rounds that makes.
SHORTEST_S = 0.5
#: Sizes of the dimensions that models leave free.
FREE_SIZES = {"batch": 1, "length": 32}

_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Slice", "Split")


def load(name: str) -> onnx.ModelProto:
    """Return a light model with random weights, or one of our own models."""
    builders = NETWORKS | SMALL_NETWORKS
    return builders[name]() if name in builders else drawn(onnx.load(light_model_path(name)))


def drawn(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a light model with random weights instead of its own, which are all equal.

    Equal weights would favour kernels that detect equal filters. Variances stay positive, and
    activations keep about the same size from layer to layer.
    """
    graph, random = model.graph, np.random.default_rng(0)
    shapes = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "ConstantOfShape"]:
        shape = shapes[node.input[0]]
        if len(shape) > 1:
            weights = random.standard_normal(shape, np.float32)
            weights *= math.sqrt(2 / math.prod(shape[1:]))
        else:
            weights = random.random(shape, np.float32) + np.float32(0.5)
        graph.node.remove(node)
        graph.initializer.append(onnx.numpy_helper.from_array(weights, node.output[0]))
    return model


def model_names() -> list[str]:
    """Return the names of the models that `load` can load."""
    return [*light_model_names(), *NETWORKS, *SMALL_NETWORKS]


def inputs_of(model: Model) -> dict[str, np.ndarray]:
    """Return floats from 0 to 1 in order; token ids below 2,000 for integers."""
    feeds = {}
    for port in model.inputs:
        shape = [n if isinstance(n, int) else FREE_SIZES[str(n)] for n in port.shape or ()]
        order = np.arange(math.prod(shape)).reshape(shape)
        is_integer = port.dtype is not None and port.dtype.kind == "i"
        feeds[port.name] = (order % 2000 if is_integer else order / order.size).astype(port.dtype)
    return feeds


def row(name: str, rounds: int, reference: bool) -> dict[str, Any]:
    """Measure one model; times in milliseconds, memory in bytes."""
    proto = load(name)
    model = read_model(proto)
    feeds = inputs_of(model)
    start = time.perf_counter()
    plugin = CPUPlugin()
    compiled = plugin.compile_model(model, {"INFERENCE_NUM_THREADS": 1})
    compile_s = time.perf_counter() - start
    session = bare_session(proto, 1)
    inputs = list(feeds.values())
    ours = compiled.run(inputs)
    theirs = session.run(None, feeds)
    worst = max(
        float(np.max(np.abs(a - b) / (np.abs(b) + 1e-3))) for a, b in zip(ours, theirs, strict=True)
    )
    contestants: dict[str, Callable[[], Any]] = {
        "cpu": lambda: compiled.run(inputs),
        "ort": lambda: session.run(None, feeds),
    }
    times: dict[str, list[float]] = {key: [] for key in contestants}
    for call in contestants.values():
        call()
    end_s = time.perf_counter() + SHORTEST_S
    while len(times["ort"]) < rounds or time.perf_counter() < end_s:
        for key, call in contestants.items():
            times[key].append(_processor_seconds(call))
    medians = {key: statistics.median(values) for key, values in times.items()}
    result = {
        "model": name,
        "nodes": len(model.nodes),
        "compile_s": compile_s,
        "cpu_ms": medians["cpu"] * 1e3,
        "ort_ms": medians["ort"] * 1e3,
        "cpu_over_ort": medians["cpu"] / medians["ort"],
        "difference": worst,
    }
    if reference:
        evaluator = ReferenceEvaluator(proto)
        seconds = _processor_seconds(lambda: evaluator.run(None, feeds))
        result |= {"reference_ms": seconds * 1e3, "reference_over_cpu": seconds / medians["cpu"]}
    transformed = plugin.transform_model(model, plugin.effective_config())
    again = plugin.compile_model(model, {"INFERENCE_NUM_THREADS": 1})
    memory = _memory(again, transformed, inputs)
    return result | {"given_weights_nbytes": model.weight_nbytes} | memory


def _processor_seconds(call: Callable[[], Any]) -> float:
    """Return the processor seconds of a call on one thread, without other work on the machine."""
    start = time.process_time()
    call()
    return time.process_time() - start


def _memory(compiled: DeviceModel, model: Model, inputs: list[np.ndarray]) -> dict[str, Any]:
    """Return the weights' bytes, the peak of a run's allocations, and the least that it needs."""
    tracemalloc.start()
    compiled.run(inputs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    live = largest_live_nbytes(model)
    return {
        "peak_nbytes": peak + model.weight_nbytes,
        "weights_nbytes": model.weight_nbytes,
        "live_nbytes": live,
        "peak_over_needed": (peak + model.weight_nbytes) / (live + model.weight_nbytes),
    }


def largest_live_nbytes(model: Model) -> int:
    """Return the bytes of the largest set of values that are needed at once.

    Values that share memory with their input (reshapes, transpositions) count once; the model's
    inputs are the caller's.
    """
    owner: dict[str, str] = {}
    last: dict[str, int] = {}
    for i, node in enumerate(model.nodes):
        if node.op_type in _VIEWS:
            owner[node.outputs[0]] = owner.get(node.inputs[0], node.inputs[0])
        for value in (*node.reads, *node.writes):
            last[owner.get(value, value)] = i
    last |= {owner.get(port.name, port.name): len(model.nodes) for port in model.outputs}
    most, live = 0, dict[str, int]()
    for i, node in enumerate(model.nodes):
        live |= {v: model.spec(v).nbytes or 0 for v in node.writes if v not in owner}
        most = max(most, sum(live.values()))
        live = {value: nbytes for value, nbytes in live.items() if last[value] > i}
    return most


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--models", default=",".join(model_names()))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-reference", action="store_true")
    options = parser.parse_args()
    blas = [
        {key: library.get(key) for key in ("internal_api", "version", "architecture")}
        for library in threadpoolctl.threadpool_info()
        if library["user_api"] == "blas"
    ]
    rows = []
    for name in names(options.models):
        rows.append(row(name, options.rounds, not options.no_reference))
        print(name, f"{rows[-1]['cpu_over_ort']:.3f}", file=sys.stderr, flush=True)
    summary = {"cpu_over_ort": geometric_mean([r["cpu_over_ort"] for r in rows])}
    summary["worst_cpu_over_ort"] = max(r["cpu_over_ort"] for r in rows)
    if not options.no_reference:
        faster = geometric_mean([r["reference_over_cpu"] for r in rows])
        summary["reference_over_cpu"] = faster
    print_rows(rows, options.json, blas=blas, geometric_mean=summary)


if __name__ == "__main__":
    main()
