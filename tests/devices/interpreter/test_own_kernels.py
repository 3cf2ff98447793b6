"""A device's own kernels replace the shared ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.interpreter.backend import ArrayBackend
from hetero.devices.kernels import KERNELS, KernelRegistry, op
from hetero.devices.model.reader import read_model
from tests.support.small_models import make_model

X = np.array([-1.0, 2.0], np.float32)


def device(**since: int) -> CPUPlugin:
    """Return a device whose own kernels of these operators return zeros."""
    registry = KernelRegistry()

    def zeros(xp: Any, x: Any) -> Any:
        return xp.zeros_like(x)

    for op_type, version in since.items():
        op(op_type, since=version, registry=registry)(zeros)

    class Own(CPUPlugin):
        backend = ArrayBackend("numpy", np, registry)

    return Own()


def test_own_kernel_replaces_the_shared_one():
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["z"])]
    model = read_model(make_model(nodes, {"x": X}, ["y", "z"]))
    compiled = device(Relu=14).compile_model(model)
    y, z = compiled.run([X])
    assert y.tolist() == [0, 0]
    assert z.tolist() == [1, 2]
    assert compiled.executed_nodes()[0].implementation == "numpy:zeros"
    again, _ = CPUPlugin().compile_model(model).run([X])
    assert again.tolist() == [0, 2], "another device has the shared kernel still"


@pytest.mark.parametrize(("since", "own"), [(1, False), (7, False), (13, True), (18, False)])
def test_older_own_kernel_is_not_used(since, own):
    backend = device(Softmax=since).backend
    kernel, shared = backend.find_kernel("", "Softmax", 17), KERNELS.find("", "Softmax", 17)
    assert shared is not None
    assert shared.since == 13
    assert kernel is not None
    assert (kernel is not shared) is own
