"""Batches of batchable models of ONNX's suite equal single runs in ONNX Runtime."""

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

#: Minimum number of batchable models: there were 700 with onnx 1.23 and ONNX Runtime 1.31.
MIN_BATCHABLE_MODELS = 700


def open_batch_axis(
    model: onnx.ModelProto, inputs: list[Any], batched_inputs: tuple[int, ...]
) -> onnx.ModelProto:
    """Return a model where the inputs `rows` have an open batch axis and others are constants."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    ports = list(result.graph.input)
    for i, port in enumerate(ports):
        if i in batched_inputs:
            port.type.tensor_type.shape.dim[0].dim_param = "N"
        else:
            result.graph.initializer.append(
                onnx.numpy_helper.from_array(np.asarray(inputs[i]), port.name)
            )
    del result.graph.input[:]
    result.graph.input.extend(
        onnx.ValueInfoProto.FromString(ports[i].SerializeToString()) for i in batched_inputs
    )
    for port in result.graph.output:
        if port.type.HasField("tensor_type"):
            port.type.tensor_type.ClearField("shape")
    return result


def batch_variants(case: Case) -> Iterator[tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]]:
    """Yield variants of a case with a batch axis of all inputs or one, and two requests each."""
    model = case.model()
    (inputs, _), *_ = case.data_sets(model)
    if len(inputs) != len(model.graph.input) or not all(isinstance(x, np.ndarray) for x in inputs):
        return
    has_shape = [bool(port.type.tensor_type.shape.dim) for port in model.graph.input]
    tensors = [i for i, x in enumerate(inputs) if has_shape[i] and x.ndim and x.dtype != object]
    for batched_inputs in dict.fromkeys((tuple(tensors), *((i,) for i in tensors[:3]))):
        if len({inputs[i].shape[0] for i in batched_inputs}) != 1:
            continue
        request = {model.graph.input[i].name: inputs[i] for i in batched_inputs}
        reversed_request = {name: np.ascontiguousarray(np.flip(x)) for name, x in request.items()}
        yield open_batch_axis(model, inputs, batched_inputs), [request, reversed_request]


def run(session: onnxruntime.InferenceSession, request: dict[str, Any]) -> list[Any] | None:
    try:
        outputs: list[Any] = session.run(None, request)
    except Exception:
        return None
    return outputs


def compare_batch(model: onnx.ModelProto, requests: list[dict[str, Any]]) -> str | None:
    """Return the difference of a batch from single runs, "" if equal, None if it cannot run."""
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString())
    except Exception:
        return None
    single_outputs = [run(session, request) for request in requests]
    if None in single_outputs:
        return None
    names = requests[0]
    batched_outputs = run(session, {n: np.concatenate([r[n] for r in requests]) for n in names})
    if batched_outputs is None:
        return "the batch failed"
    for batched, *single in zip(batched_outputs, *single_outputs, strict=True):
        try:
            np.testing.assert_allclose(
                batched.astype(np.float64), np.concatenate(single).astype(np.float64), 1e-3, 1e-5
            )
        except AssertionError as error:
            return str(error)
    return ""


@pytest.mark.slow
def test_batchable_onnx_cases_batch_equals_single_runs():
    differences = {}
    onnxruntime.set_default_logger_severity(4)
    for case in backend_cases():
        if case.kind == "real":
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for model, requests in batch_variants(case):
                if why_not_batchable(read_model(model)) is None:
                    differences[case.name, *requests[0]] = compare_batch(model, requests)
    onnxruntime.set_default_logger_severity(2)
    assert {case: difference for case, difference in differences.items() if difference} == {}
    assert list(differences.values()).count("") >= MIN_BATCHABLE_MODELS
