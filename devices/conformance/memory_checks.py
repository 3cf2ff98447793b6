"""Checks of data that outlives a run: states of requests, and remote tensors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
from onnx import parser

from hetero.devices.conformance.expectation import expect, expect_raises, expect_value
from hetero.devices.conformance.query_checks import expect_outputs, supported_samples
from hetero.devices.conformance.subject import Subject
from hetero.devices.errors import TensorShapeError, UnsupportedOperationError
from hetero.devices.model.reader import read_model
from hetero.devices.model.variables import with_states
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.request.infer_request import InferRequest

#: A running sum: y is twice the sum of all x since the last reset.
_RUNNING_SUM: Final = """<ir_version: 8, opset_import: ["" : 17]>
sum (float[3] x, float[3] before) => (float[3] y, float[3] after)
{ after = Add (before, x) y = Add (after, after) }"""
_X: Final = np.array([1, 2, 3], np.float32)


def check_requests_have_separate_states(subject: Subject) -> None:
    """Expect states that are separate for each request, start at zero, and are not ports.

    Single devices do not have states: they are ordinary inputs and outputs there.
    """
    for first, second in _requests(subject):
        for request, times in ((first, 1), (first, 2), (first, 3), (second, 1)):
            _expect_sum(subject, request, times)


def check_states_can_be_read_set_and_reset(subject: Subject) -> None:
    """Expect to read a state after a run; the next run starts from the value set, or from zeros."""
    for request, _ in _requests(subject):
        _expect_sum(subject, request, 1)
        (state,) = request.query_state()
        name = f"state {state.name}"
        expect_value(state.state.data, _X, 0, subject.computes, name)
        state.state = _X * 4
        _expect_sum(subject, request, 5)
        state.reset()
        _expect_sum(subject, request, 1)
        request.reset_state()
        _expect_sum(subject, request, 1)


def check_failed_run_keeps_states(subject: Subject) -> None:
    """Expect that a run with invalid inputs does not change states."""
    for request, _ in _requests(subject):
        _expect_sum(subject, request, 1)
        short = partial(request.infer, {"x": _X[:2]})
        expect_raises(TensorShapeError, short, "x with 2 elements")
        _expect_sum(subject, request, 2)


def check_remote_context_works_or_raises(subject: Subject) -> None:
    """Expect a context whose tensors can be written and read, or UnsupportedOperationError."""
    context = _context(subject)
    if context is None:
        return
    tensor = context.create_tensor("float32", (2, 3))
    expect(tensor.shape == (2, 3), f"create_tensor: expected shape (2, 3), got {tensor.shape}")
    expect_raises(UnsupportedOperationError, lambda: tensor.data, "data of a remote tensor")
    expect(tensor.to_host().shape == (2, 3), "to_host returns another shape")
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor.copy_from(values)
    for remote_tensor in (tensor, context.from_host(values)):
        expect_value(remote_tensor.to_host(), values, 0, subject.computes, "a remote tensor")


def check_remote_tensors_as_inputs(subject: Subject) -> None:
    """Expect correct results for remote tensors as inputs, which stay unchanged."""
    context = _context(subject)
    if context is None:
        return
    for sample in supported_samples(subject)[:3]:
        compiled = subject.compile_model(sample.model)
        inputs = {
            name: context.from_host(array) if array.dtype.kind in "biuf" else array
            for name, array in sample.inputs.items()
        }
        for _ in range(2):
            expect_outputs(subject, sample, compiled(inputs), ", of remote tensors")
        compiled.close()


def _context(subject: Subject) -> RemoteContext | None:
    """Return the subject's remote context; None if it has none."""
    try:
        context = subject.create_context()
    except UnsupportedOperationError:
        return None
    expect(isinstance(context, RemoteContext), "create_context does not return a RemoteContext")
    return context


def _requests(subject: Subject) -> Iterator[tuple[InferRequest, InferRequest]]:
    """Yield two requests of a model with a state; nothing if the subject does not support it."""
    model = with_states(read_model(parser.parse_model(_RUNNING_SUM)), {"before": "after"})
    if subject.query_model(model).unsupported:
        return
    compiled = subject.compile_model(model)
    ports = [port.name for port in (*compiled.inputs, *compiled.outputs)]
    if compiled.query_state():
        expect(ports == ["x", "y"], f"expected ports x and y of a model with states, got {ports}")
        yield compiled.create_infer_request(), compiled.create_infer_request()
    else:
        expect(
            ports == ["x", "before", "y", "after"],
            f"expected states, or ports for them, got ports {ports}",
        )
    compiled.close()


def _expect_sum(subject: Subject, request: InferRequest, times: int) -> None:
    result = request.infer({"x": _X})
    expect_value(result["y"], _X * 2 * times, 1e-6, subject.computes, f"after {times} runs: y")
