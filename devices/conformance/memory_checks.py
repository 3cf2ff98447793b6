"""Checks of what outlives a run: the states of requests, and tensors in a device's memory."""

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

#: y is twice the sum of each x so far.
_SUM: Final = """<ir_version: 8, opset_import: ["" : 17]>
sum (float[3] x, float[3] before) => (float[3] y, float[3] after)
{ after = Add (before, x) y = Add (after, after) }"""
_X: Final = np.array([1, 2, 3], np.float32)


def check_each_request_has_its_own_states(subject: Subject) -> None:
    """A state is no port; it begins with zeros, and is what the request's last run made of it.

    A device alone knows no states: they are inputs and outputs like any other.
    """
    for first, second in _requests(subject):
        for request, times in ((first, 1), (first, 2), (first, 3), (second, 1)):
            _expect_sum(subject, request, times)


def check_a_state_can_be_read_set_and_reset(subject: Subject) -> None:
    """It is read after a run, and the next one goes on from what was set, or from zeros."""
    for request, _ in _requests(subject):
        _expect_sum(subject, request, 1)
        (state,) = request.query_state()
        where = f"state {state.name}"
        expect_value(state.state.data, _X, 0, subject.computes, where)
        state.state = _X * 4
        _expect_sum(subject, request, 5)
        state.reset()
        _expect_sum(subject, request, 1)
        request.reset_state()
        _expect_sum(subject, request, 1)


def check_a_run_that_fails_leaves_states_as_they_were(subject: Subject) -> None:
    """A call that is refused is no run."""
    for request, _ in _requests(subject):
        _expect_sum(subject, request, 1)
        short = partial(request.infer, {"x": _X[:2]})
        expect_raises(TensorShapeError, short, "x with 2 elements")
        _expect_sum(subject, request, 2)


def check_remote_memory_is_there_or_refused(subject: Subject) -> None:
    """create_context gives a context whose tensors come back, or says that there is none."""
    context = _context(subject)
    if context is None:
        return
    tensor = context.create_tensor("float32", (2, 3))
    expect(tensor.shape == (2, 3), f"asked for shape (2, 3), got {tensor.shape}")
    expect_raises(UnsupportedOperationError, lambda: tensor.data, "data of a remote tensor")
    expect(tensor.to_host().shape == (2, 3), "to_host gives another shape")
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor.copy_from(values)
    for each in (tensor, context.from_host(values)):
        expect_value(each.to_host(), values, 0, subject.computes, "a remote tensor")


def check_remote_tensors_are_inputs(subject: Subject) -> None:
    """A request takes each input from a device's memory as well, and leaves it as it was."""
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
    try:
        context = subject.create_context()
    except UnsupportedOperationError:
        return None
    expect(isinstance(context, RemoteContext), "create_context gives no RemoteContext")
    return context


def _requests(subject: Subject) -> Iterator[tuple[InferRequest, InferRequest]]:
    """Yield two requests of a model with a state, where the subject takes it and knows states."""
    model = with_states(read_model(parser.parse_model(_SUM)), {"before": "after"})
    if subject.query_model(model).unsupported:
        return
    compiled = subject.compile_model(model)
    ports = [port.name for port in (*compiled.inputs, *compiled.outputs)]
    if compiled.query_state():
        expect(ports == ["x", "y"], f"a state is among the ports {ports}")
        yield compiled.create_infer_request(), compiled.create_infer_request()
    else:
        expect(ports == ["x", "before", "y", "after"], f"neither ports nor states: {ports}")
    compiled.close()


def _expect_sum(subject: Subject, request: InferRequest, times: int) -> None:
    result = request.infer({"x": _X})
    expect_value(result["y"], _X * 2 * times, 1e-6, subject.computes, f"after {times} runs: y")
