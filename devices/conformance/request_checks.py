"""Checks of requests: right answers, in any order of things, and no memory shared by accident."""

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


def check_answers_are_right(subject: Subject) -> None:
    """Every sample that is taken gives the outputs that the specification says."""
    for sample, compiled in compiled_samples(subject):
        for _ in range(2):
            expect_outputs(subject, sample, compiled(dict(sample.inputs)))


def check_inputs_are_only_read(subject: Subject) -> None:
    """Read-only inputs work, and hold the same values afterwards."""
    for sample, compiled in compiled_samples(subject):
        inputs = {name: array.copy() for name, array in sample.inputs.items()}
        for array in inputs.values():
            array.setflags(write=False)
        compiled(inputs, share_inputs=True)
        for name, array in inputs.items():
            expect(np.array_equal(array, sample.inputs[name]), f"{sample.name}: {name} changed")


def check_answers_share_no_memory(subject: Subject) -> None:
    """Writing into an answer changes no input, weight or other output."""
    for sample, compiled in compiled_samples(subject):
        answers = compiled(dict(sample.inputs))
        weights = [constant.array for constant in sample.model.constants.values()]
        for name, answer in answers.items():
            others = [*sample.inputs.values(), *weights]
            others += [other for key, other in answers.items() if key != name]
            shared = any(np.shares_memory(answer, other) for other in others)
            expect(not shared, f"{sample.name}: output {name} shares memory")


def check_answers_outlive_the_next_run(subject: Subject) -> None:
    """An answer does not change when the request, or another, runs again."""
    for sample, compiled in compiled_samples(subject):
        request = compiled.create_infer_request()
        first = request.infer(dict(sample.inputs))
        kept = {name: np.array(value) for name, value in first.items()}
        others = {n: np.flip(a).copy() for n, a in sample.inputs.items()}
        request.infer(others)
        compiled(others)
        for name, value in kept.items():
            expect(np.array_equal(first[name], value), f"{sample.name}: {name} changed")


def check_strided_inputs(subject: Subject) -> None:
    """A window into a larger array, transposed ones and foreign byte order included, just works."""
    for sample, compiled in compiled_samples(subject):
        inputs = {}
        for name, array in sample.inputs.items():
            inputs[name] = np.repeat(array, 2, -1)[..., ::2] if array.ndim else array
            if array.dtype.kind in "fi":
                inputs[name] = inputs[name].astype(array.dtype.newbyteorder(">"))
        expect_outputs(subject, sample, compiled(inputs))


def check_wrong_inputs_are_refused(subject: Subject) -> None:
    """Missing, misnamed, wrongly typed or shaped inputs: typed errors, and the request lives on."""
    for sample, compiled in compiled_samples(subject):
        if not sample.inputs or sample.model.inputs[0].element_type != "float":
            continue
        good, name = dict(sample.inputs), sample.model.inputs[0].name
        request = compiled.create_infer_request()
        wrong: dict[str, tuple[type[Exception], object]] = {
            "nothing": (TensorTypeError, None),
            "complex numbers": (TensorTypeError, good[name].astype("complex64")),
            "one more dimension": (TensorShapeError, good[name][..., None]),
        }
        for what, (kind, value) in wrong.items():
            bad = good | {name: value}
            expect_raises(kind, partial(request.infer, bad), f"{sample.name}: {name} is {what}")
        missing = expect_raises(TensorNameError, partial(request.infer, {}), "no inputs")
        expect(name in str(missing), "the error does not name the missing input")
        extra = partial(request.infer, good | {"nope": 1})
        expect_raises(TensorNameError, extra, "an extra input")
        expect_outputs(subject, sample, request.infer(good))


def check_two_requests_do_not_mix(subject: Subject) -> None:
    """Requests of one compiled model, interleaved, each give their own answer."""
    sample = supported_samples(subject)[0]
    compiled = subject.compile_model(sample.model)
    zeros = {name: np.zeros_like(array) for name, array in sample.inputs.items()}
    first, second = compiled.create_infer_request(), compiled.create_infer_request()
    first.start_async(dict(sample.inputs))
    second.start_async(zeros)
    second.wait()
    first.wait()
    expect_outputs(subject, sample, first.results)
    alone = compiled(zeros)
    for name, value in second.results.items():
        expect(np.array_equal(value, alone[name]), f"{sample.name}: {name} mixed up")
    compiled.close()


def check_streams_run_at_once(subject: Subject) -> None:
    """With NUM_STREAMS of 3, runs from many threads all give the right answer."""
    sample = supported_samples(subject)[-1]
    compiled = subject.compile_model(sample.model, {"NUM_STREAMS": 3})
    expect(
        compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") >= 3, "3 streams, fewer requests"
    )
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: compiled(dict(sample.inputs)), range(24)))
    for answer in answers:
        expect_outputs(subject, sample, answer)
    compiled.close()


def check_async_with_callback(subject: Subject) -> None:
    """The callback is called once per run, in another thread, before wait returns."""
    sample = supported_samples(subject)[0]
    compiled = subject.compile_model(sample.model)
    request = compiled.create_infer_request()
    calls: list[tuple[object, int]] = []
    request.set_callback(lambda data: calls.append((data, threading.get_ident())), "mine")
    request.start_async(dict(sample.inputs))
    request.wait()
    expect([data for data, _ in calls] == ["mine"], f"one call with 'mine', got {calls}")
    expect(calls[0][1] != threading.get_ident(), "the callback ran in the caller's thread")
    expect_outputs(subject, sample, request.results)
    compiled.close()


def check_cancelled_request_is_usable(subject: Subject) -> None:
    """Cancelling ends a run with RequestCancelledError or lets it finish; then it runs again."""
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


def check_close_may_come_twice(subject: Subject) -> None:
    """Closing waits for what runs, or cancels it; closing again does nothing."""
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
