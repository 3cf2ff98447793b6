"""Small models for the transformations, and the check that those change no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper

from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.transforms import transform
from tests.support.small_models import run_cpu, run_onnxruntime

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.uniform(0.5, 1.5, shape).astype(np.float32)


def node(op_type: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], name=f"n_{output}", **attributes)


def operators(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in transform(read_model(model)).nodes]


def check(
    model: onnx.ModelProto,
    feeds: dict[str, np.ndarray],
    oracle: Callable[..., list[Any]] = run_onnxruntime,
) -> None:
    """Compare transformed and untransformed runs with the oracle, and check what is covered."""
    wanted = oracle(model, feeds)
    for raw in (True, False):
        got = run_cpu(model, feeds, DISABLE_TRANSFORMATIONS=raw)
        for a, b in zip(got, wanted, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    check_covers(read_model(model))


def check_covers(model: Model) -> None:
    """Each original node is covered at most once; those that are not, needed no running."""
    transformed = transform(model)
    covered = [name for n in transformed.nodes for name in n.covers]
    assert len(set(covered)) == len(covered)
    assert set(covered) <= set(model.node_names)
    assert [p.name for p in transformed.inputs] == [p.name for p in model.inputs]
    assert [p.name for p in transformed.outputs] == [p.name for p in model.outputs]
