"""ONNX's backend suite: whatever is said to keep rows apart does, in ONNX Runtime."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from hetero.batching.batchability import why_not_batchable
from hetero.devices.conformance.onnx_suite import Case, backend_cases
from hetero.devices.model.reader import read_model

#: Cases and choices of inputs with rows that were joined with onnx 1.23 and ONNX Runtime 1.31.
JOINED = 700


def with_rows(model: onnx.ModelProto, inputs: list[Any], rows: tuple[int, ...]) -> onnx.ModelProto:
    """Return a model where some inputs have any number of rows and the others are constants."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    ports = list(made.graph.input)
    for i, port in enumerate(ports):
        if i in rows:
            port.type.tensor_type.shape.dim[0].dim_param = "N"
        else:
            made.graph.initializer.append(
                onnx.numpy_helper.from_array(np.asarray(inputs[i]), port.name)
            )
    del made.graph.input[:]
    made.graph.input.extend(
        onnx.ValueInfoProto.FromString(ports[i].SerializeToString()) for i in rows
    )
    for port in made.graph.output:
        if port.type.HasField("tensor_type"):
            port.type.tensor_type.ClearField("shape")
    return made


def choices(case: Case) -> Iterator[tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]]:
    """Yield models of a case with rows, all inputs or one, and two requests of each."""
    model = case.model()
    (inputs, _), *_ = case.data_sets(model)
    if len(inputs) != len(model.graph.input) or not all(isinstance(x, np.ndarray) for x in inputs):
        return
    ported = [bool(port.type.tensor_type.shape.dim) for port in model.graph.input]
    tensors = [i for i, x in enumerate(inputs) if ported[i] and x.ndim and x.dtype != object]
    for rows in dict.fromkeys((tuple(tensors), *((i,) for i in tensors[:3]))):
        if len({inputs[i].shape[0] for i in rows}) != 1:
            continue
        first = {model.graph.input[i].name: inputs[i] for i in rows}
        other = {name: np.ascontiguousarray(np.flip(x)) for name, x in first.items()}
        yield with_rows(model, inputs, rows), [first, other]


def run(session: onnxruntime.InferenceSession, request: dict[str, Any]) -> list[Any] | None:
    try:
        outputs: list[Any] = session.run(None, request)
    except Exception:
        return None
    return outputs


def difference(model: onnx.ModelProto, requests: list[dict[str, Any]]) -> str | None:
    """Return what a joined run gives other than single ones; None where none can be."""
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString())
    except Exception:
        return None
    alone = [run(session, request) for request in requests]
    if None in alone:
        return None
    names = requests[0]
    joined = run(session, {n: np.concatenate([r[n] for r in requests]) for n in names})
    if joined is None:
        return "the joined run failed"
    for got, *parts in zip(joined, *alone, strict=True):
        try:
            np.testing.assert_allclose(
                got.astype(np.float64), np.concatenate(parts).astype(np.float64), 1e-3, 1e-5
            )
        except AssertionError as error:
            return str(error)
    return ""


@pytest.mark.slow
def test_what_is_joined_is_what_each_has_alone() -> None:
    found = {}
    onnxruntime.set_default_logger_severity(4)
    for case in backend_cases():
        if case.kind == "real":
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for model, requests in choices(case):
                if why_not_batchable(read_model(model)) is None:
                    found[case.name, *requests[0]] = difference(model, requests)
    onnxruntime.set_default_logger_severity(2)
    assert {case: told for case, told in found.items() if told} == {}
    assert list(found.values()).count("") >= JOINED
