"""Small models for tests of transformations, and a check that these do not change results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper

from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.transforms import transform
from tests.support.comparison import assert_close
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
    """Compare runs with and without transformations to the oracle, and check the covered nodes."""
    references = oracle(model, feeds)
    for is_disabled in (True, False):
        results = run_cpu(model, feeds, DISABLE_TRANSFORMATIONS=is_disabled)
        for result, expected in zip(results, references, strict=True):
            assert_close(result, expected, rtol=1e-4, atol=1e-5)
    check_covers(read_model(model))


def check_covers(model: Model) -> None:
    """Check that each original node is covered at most once, and that the ports are unchanged."""
    transformed = transform(model)
    names = [name for n in transformed.nodes for name in n.covers]
    assert len(set(names)) == len(names)
    assert set(names) <= set(model.node_names)
    assert [p.name for p in transformed.inputs] == [p.name for p in model.inputs]
    assert [p.name for p in transformed.outputs] == [p.name for p in model.outputs]
