"""Whole networks, transformers and recurrent ones, against ONNX Runtime; memory of many runs."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks.kernels import inputs_of, largest_live_nbytes, load
from benchmarks.networks import bert, lstm, vit
from hetero import Core
from hetero.devices.model.reader import read_model
from tests.support.small_models import compile_cpu, make_model, run_cpu, run_onnxruntime

SMALL = {
    "bert": bert(layers=1, width=128, length=16),
    "vit": vit(layers=1, width=128, image=32, patch=8),
    "lstm": lstm(length=6, width=32, layers=2),
}


@pytest.mark.parametrize("name", SMALL)
def test_agrees_with_onnxruntime(name):
    model = SMALL[name]
    feeds = inputs_of(read_model(model))
    for raw in (True, False):
        actual = run_cpu(model, feeds, DISABLE_TRANSFORMATIONS=raw)
        for a, b in zip(actual, run_onnxruntime(model, feeds), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", ["CPU", "HETERO:ORT,CPU"])
def test_squeezenet_agrees_with_onnxruntime(device):
    """Run it with random weights, and as shipped without the Softmax, whose classes tie."""
    shipped = read_model("light:squeezenet")
    *before, softmax = shipped.nodes
    with Core("inprocess") as core:
        for model in (
            load("squeezenet"),
            shipped.extract(range(len(before)), [softmax.inputs[0]]).to_proto(),
        ):
            feeds = inputs_of(read_model(model))
            (want,) = run_onnxruntime(model, feeds)
            with core.compile_model(model, device, affinity={"op:Concat": "CPU"}) as compiled:
                actual = compiled(feeds)[0]
            np.testing.assert_allclose(actual, want, rtol=1e-3, atol=1e-7)
            assert actual.size == 1000


def dynamic_attention(opset: int) -> onnx.ModelProto:
    """Return self-attention over (batch, length, 32) whose sizes depend on the inputs."""
    axes = np.array([0], np.int64)

    def size(axis: int) -> list[onnx.NodeProto]:
        picked = helper.make_node("Gather", ["shape", f"axis{axis}"], [f"g{axis}"])
        if opset < 13:
            return [picked, helper.make_node("Unsqueeze", [f"g{axis}"], [f"n{axis}"], axes=[0])]
        return [picked, helper.make_node("Unsqueeze", [f"g{axis}", "zero"], [f"n{axis}"])]

    nodes = [helper.make_node("Shape", ["x"], ["shape"]), *size(0), *size(1)]
    nodes.append(helper.make_node("Concat", ["n0", "n1", "heads"], ["split"], axis=0))
    nodes.append(helper.make_node("Concat", ["n0", "n1", "width"], ["joined"], axis=0))
    for part, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            helper.make_node("MatMul", ["x", f"w{part}"], [f"{part}0"]),
            helper.make_node("Add", [f"{part}0", "b"], [f"{part}1"]),
            helper.make_node("Reshape", [f"{part}1", "split"], [f"{part}2"]),
            helper.make_node("Transpose", [f"{part}2"], [part], perm=perm),
        ]
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=3),
        helper.make_node("MatMul", ["weights", "v"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["turned"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["turned", "joined"], ["y"]),
    ]
    random = np.random.default_rng(0)
    constants: dict[str, Any] = {
        f"w{p}": random.normal(0, 0.2, (32, 32)).astype(np.float32) for p in "qkv"
    }
    constants |= {
        "b": random.normal(size=32).astype(np.float32),
        "zero": axes,
        "axis0": np.array(0),
        "axis1": np.array(1),
        "heads": np.array([4, 8]),
        "width": np.array([32]),
    }
    model = make_model(
        nodes, {"x": np.zeros((1, 1, 32), np.float32)}, ["y"], constants, opset=opset
    )
    for axis, name in enumerate(("batch", "length")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    return model


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_sizes_known_only_at_run_time(opset):
    model = dynamic_attention(opset)
    compiled = compile_cpu(model)
    for shape in ((1, 5, 32), (3, 1, 32), (2, 17, 32)):
        x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        (expected,) = run_onnxruntime(model, {"x": x})
        np.testing.assert_allclose(compiled.run([x])[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", pytest.param("vit", marks=pytest.mark.slow)])
def test_peak_memory_is_near_the_live_values(name):
    network = bert(layers=2, width=256) if name == "bert" else vit(layers=2, width=256)
    model = read_model(network)
    inputs = list(inputs_of(model).values())
    compile_cpu(network).run(inputs)  # fills the caches of BLAS and numpy
    compiled = compile_cpu(network)
    tracemalloc.start()
    compiled.run(inputs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    live_nbytes = model.weight_nbytes + largest_live_nbytes(model)
    assert model.weight_nbytes + peak <= 1.3 * live_nbytes


@pytest.mark.slow
def test_memory_after_many_runs():
    x = np.ones((64, 64), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"]),
        helper.make_node("Softmax", ["t"], ["y"]),
    ]
    compiled = compile_cpu(make_model(nodes, {"x": x}, ["y"], {"w": x}))
    tracemalloc.start()
    for _ in range(2500):  # Python keeps up to 2,000 tuples of each length for use again
        compiled.run([x])
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(2000):
        compiled.run([x])
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
@pytest.mark.slow
def test_process_memory_after_twenty_thousand_requests():
    command = [sys.executable, "-m", "tests.support.memory_growth", "20000"]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300)
    # One leaked output per request would be 45 MB, one leaked Python object per request 1 MB.
    assert int(printed.stdout) < 1 << 20
