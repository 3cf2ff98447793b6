"""Checks of infer requests: results, concurrency, memory, cancellation and errors."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from hetero.devices.conformance.expectation import expect, expect_raises
from hetero.devices.conformance.query_checks import (
    compiled_samples,
    expect_outputs,
    supported_samples,
)
from hetero.devices.conformance.subject import Subject
from hetero.devices.errors import (
    RequestCancelledError,
    TensorNameError,
    TensorShapeError,
    TensorTypeError,
)


def check_results_are_correct(subject: Subject) -> None:
    """Expect the specified outputs of every supported sample, twice."""
    for sample, compiled in compiled_samples(subject):
        for _ in range(2):
            expect_outputs(subject, sample, compiled(dict(sample.inputs)))


def check_inputs_are_not_changed(subject: Subject) -> None:
    """Expect that read-only inputs work, and stay unchanged."""
    for sample, compiled in compiled_samples(subject):
        inputs = {name: array.copy() for name, array in sample.inputs.items()}
        for array in inputs.values():
            array.setflags(write=False)
        compiled(inputs, share_inputs=True)
        for name, array in inputs.items():
            expect(np.array_equal(array, sample.inputs[name]), f"{sample.name}: {name} changed")


def check_results_share_no_memory(subject: Subject) -> None:
    """Expect that outputs share no memory with inputs, weights or other outputs."""
    for sample, compiled in compiled_samples(subject):
        results = compiled(dict(sample.inputs))
        weights = [constant.array for constant in sample.model.constants.values()]
        for name, result in results.items():
            others = [*sample.inputs.values(), *weights]
            others += [other for key, other in results.items() if key != name]
            shares_memory = any(np.shares_memory(result, other) for other in others)
            expect(not shares_memory, f"{sample.name}: output {name} shares memory")


def check_results_survive_the_next_run(subject: Subject) -> None:
    """Expect that results stay unchanged when this or another request runs."""
    for sample, compiled in compiled_samples(subject):
        request = compiled.create_infer_request()
        first = request.infer(dict(sample.inputs))
        copies = {name: np.array(value) for name, value in first.items()}
        others = {n: np.flip(a).copy() for n, a in sample.inputs.items()}
        request.infer(others)
        compiled(others)
        for name, value in copies.items():
            expect(np.array_equal(first[name], value), f"{sample.name}: {name} changed")


def check_strided_inputs_are_accepted(subject: Subject) -> None:
    """Expect correct results for strided inputs and for foreign byte order."""
    for sample, compiled in compiled_samples(subject):
        inputs = {}
        for name, array in sample.inputs.items():
            inputs[name] = np.repeat(array, 2, -1)[..., ::2] if array.ndim else array
            if array.dtype.kind in "fi":
                inputs[name] = inputs[name].astype(array.dtype.newbyteorder(">"))
        expect_outputs(subject, sample, compiled(inputs))


def check_invalid_inputs_raise(subject: Subject) -> None:
    """Expect typed errors for missing, extra and ill-typed inputs, and a working request."""
    for sample, compiled in compiled_samples(subject):
        if not sample.inputs or sample.model.inputs[0].element_type != "float":
            continue
        valid_inputs, name = dict(sample.inputs), sample.model.inputs[0].name
        request = compiled.create_infer_request()
        invalid_values: dict[str, tuple[type[Exception], object]] = {
            "nothing": (TensorTypeError, None),
            "complex numbers": (TensorTypeError, valid_inputs[name].astype("complex64")),
            "one more dimension": (TensorShapeError, valid_inputs[name][..., None]),
        }
        for description, (kind, value) in invalid_values.items():
            inputs = valid_inputs | {name: value}
            message = f"{sample.name}: {name} is {description}"
            expect_raises(kind, partial(request.infer, inputs), message)
        error = expect_raises(TensorNameError, partial(request.infer, {}), "no inputs")
        expect(name in str(error), "the error does not name the missing input")
        infer = partial(request.infer, valid_inputs | {"nope": 1})
        expect_raises(TensorNameError, infer, "an extra input")
        expect_outputs(subject, sample, request.infer(valid_inputs))


def check_concurrent_requests_are_independent(subject: Subject) -> None:
    """Expect separate results of two concurrent requests of one compiled model."""
    sample = supported_samples(subject)[0]
    compiled = subject.compile_model(sample.model)
    zeros = {name: np.zeros_like(array) for name, array in sample.inputs.items()}
    first, second = compiled.create_infer_request(), compiled.create_infer_request()
    first.start_async(dict(sample.inputs))
    second.start_async(zeros)
    second.wait()
    first.wait()
    expect_outputs(subject, sample, first.results)
    expected = compiled(zeros)
    for name, value in second.results.items():
        expect(np.array_equal(value, expected[name]), f"{sample.name}: {name} differs")
    compiled.close()


def check_concurrent_streams_are_correct(subject: Subject) -> None:
    """Expect correct results of calls from many threads with NUM_STREAMS=3."""
    sample = supported_samples(subject)[-1]
    compiled = subject.compile_model(sample.model, {"NUM_STREAMS": 3})
    expect(
        compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") >= 3,
        "OPTIMAL_NUMBER_OF_INFER_REQUESTS is less than NUM_STREAMS",
    )
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda _: compiled(dict(sample.inputs)), range(24)))
    for result in results:
        expect_outputs(subject, sample, result)
    compiled.close()


def check_callback_runs_once(subject: Subject) -> None:
    """Expect one call of the callback per run, in another thread, before wait returns."""
    sample = supported_samples(subject)[0]
    compiled = subject.compile_model(sample.model)
    request = compiled.create_infer_request()
    calls: list[tuple[object, int]] = []
    request.set_callback(lambda data: calls.append((data, threading.get_ident())), "mine")
    request.start_async(dict(sample.inputs))
    request.wait()
    expect([data for data, _ in calls] == ["mine"], f"expected one call with 'mine', got {calls}")
    expect(calls[0][1] != threading.get_ident(), "the callback ran in the caller's thread")
    expect_outputs(subject, sample, request.results)
    compiled.close()


def check_cancelled_request_is_reusable(subject: Subject) -> None:
    """Expect RequestCancelledError or a result after a cancellation, and a working request."""
    sample = supported_samples(subject)[0]
    compiled = subject.compile_model(sample.model)
    request = compiled.create_infer_request()
    request.cancel()
    for _ in range(5):
        request.start_async(dict(sample.inputs))
        request.cancel()
        try:
            request.wait()
        except RequestCancelledError:
            continue
    expect_outputs(subject, sample, request.infer(dict(sample.inputs)))
    compiled.close()


def check_close_is_idempotent(subject: Subject) -> None:
    """Expect that closing waits for running requests or cancels them, and that it can repeat."""
    sample = supported_samples(subject)[0]
    compiled = subject.compile_model(sample.model)
    request = compiled.create_infer_request()
    request.start_async(dict(sample.inputs))
    compiled.close()
    try:
        request.wait()
    except RequestCancelledError:
        pass
    else:
        expect_outputs(subject, sample, request.results)
    compiled.close()
