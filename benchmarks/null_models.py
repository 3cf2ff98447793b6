"""Chains of NULL stages, and functions that submit requests to a compiled model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

import hetero
from benchmarks.sessions import parsed
from benchmarks.timing import Submit, at_once


def chain(stages: int, nbytes: int) -> onnx.ModelProto:
    """Return a chain of nodes ``n0``, ``n1``, ... over tensors of `nbytes`."""
    values = ["x", *(f"t{i}" for i in range(stages - 1)), "y"]
    port = f"float[{nbytes // 4}]"
    nodes = [f"[n{i}] {values[i + 1]} = Neg({values[i]})" for i in range(stages)]
    return parsed(f"chain ({port} x) => ({port} y) {{ {' '.join(nodes)} }}")


def compile_chain(
    core: hetero.Core,
    stages: int,
    nbytes: int = 4,
    *,
    devices: int = 0,
    config: Mapping[str, Any] | None = None,
) -> hetero.CompiledModel:
    """Compile a chain with one stage for each node, assigned to NULL devices in turn.

    `devices`: number of devices, by default one for each stage.
    """
    names = [f"NULL.{i}" for i in range(devices or stages)]
    pins = {f"n{i}": name for i, name in zip(range(stages), itertools.cycle(names), strict=False)}
    compiled = core.compile_model(
        chain(stages, nbytes), "HETERO:" + ",".join(names), config, affinity=pins
    )
    num_stages = len(compiled.subgraphs)
    if num_stages != (stages if len(names) > 1 else 1):
        raise RuntimeError(
            f"{stages} stages on {len(names)} devices came to {num_stages} subgraphs"
        )
    return compiled


def submit_to(compiled: hetero.CompiledModel, x: np.ndarray | Mapping[str, Any]) -> Submit:
    """Return a function that starts requests from a pool that grows with the number in flight."""
    idle: list[hetero.InferRequest] = []

    def submit() -> Callable[[], hetero.Results]:
        request = idle.pop() if idle else compiled.create_infer_request()
        request.start_async(x, share_inputs=True)

        def wait() -> hetero.Results:
            request.wait()
            results = request.results
            idle.append(request)
            return results

        return wait

    return submit


def call(compiled: hetero.CompiledModel, x: np.ndarray | Mapping[str, Any]) -> Submit:
    """Return a function that runs requests one by one in the caller's thread."""
    infer = compiled.create_infer_request().infer
    return at_once(lambda: infer(x, share_inputs=True, share_outputs=True))
