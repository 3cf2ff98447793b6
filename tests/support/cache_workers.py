"""Worker functions of the cache tests, in an importable module for the forkserver."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import hetero
from tests.support.counting_plugin import CountingPlugin

X = np.linspace(-1, 1, 256, dtype=np.float32).reshape(1, 256)


def layers(count: int = 4) -> onnx.ModelProto:
    """Return a model of MatMul and Relu layers with 256 kB of weights each."""
    random = np.random.default_rng(7)
    nodes, weights, value = [], [], "x"
    for i in range(count):
        weight = random.normal(0, 1 / 16, (256, 256)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"], f"matmul{i}"))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [f"r{i}"], f"relu{i}"))
        value = f"r{i}"
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 256]) for n in ("x", value)]
    graph = helper.make_graph(nodes, "layers", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expected(count: int = 4) -> np.ndarray:
    """Return the output of `layers` for `X`."""
    value = X
    for tensor in layers(count).graph.initializer:
        value = np.maximum(value @ numpy_helper.to_array(tensor), 0)
    return value


def compile_once(folder: str, log: str, compile_s: float, results: Any = None) -> bool:
    """Compile with a cache in a new Core, check the result, and return whether it was a hit."""
    config = {
        "CACHE_DIR": folder,
        "COUNT_FILE": log,
        "COUNT_COMPILE_S": compile_s,
        "VERIFY": "NO",  # it compiles subgraphs too
    }
    with (
        hetero.Core(executor="inprocess", plugins=[CountingPlugin]) as core,
        core.compile_model(
            layers(), "HETERO:COUNT,CPU", config, affinity={"relu1": "CPU"}
        ) as compiled,
    ):
        np.testing.assert_allclose(compiled({"x": X})[0], expected(), rtol=1e-4, atol=1e-5)
        hit: bool = compiled.get_property("LOADED_FROM_CACHE")
    if results is not None:
        results.put(hit)
    return hit


def forkserver_context() -> ForkServerContext:
    """Return a multiprocessing context whose server has imported this module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def cache_log(folder: Path) -> Path:
    """Return the path of the log of a folder's compilations."""
    return folder.with_name(f"{folder.name}.log")
