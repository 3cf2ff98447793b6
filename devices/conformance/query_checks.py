"""Checks of query_model and compile_model: what is taken, what is refused, and why."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from hetero.devices.conformance.expectation import expect, expect_raises, expect_value
from hetero.devices.conformance.samples import (
    Sample,
    foreign_domain_alone,
    foreign_operator,
    ill_formed,
    samples,
    typed_samples,
)
from hetero.devices.conformance.subject import Subject
from hetero.devices.errors import UnsupportedNodesError
from hetero.devices.plugin.properties import Config
from hetero.devices.request.base_compiled_model import BaseCompiledModel
from hetero.devices.request.results import Results

#: Those that models are tried in.
ELEMENT_TYPES: Final = (
    "float",
    "double",
    "float16",
    "bfloat16",
    "bool",
    "int4",
    "uint4",
    "complex64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float8e4m3fn",
)


def supported_samples(subject: Subject) -> list[Sample]:
    """Return the samples that the device takes whole; AssertionError if there are none."""
    found = [s for s in samples() if not subject.query_model(s.model).unsupported]
    expect(
        found,
        f"{subject.name} takes none of the sample models, which have Add, MatMul, Relu, NonZero, "
        "Identity and Constant: nothing can be checked on it",
    )
    return found


def compiled_samples(
    subject: Subject, config: Config | None = None
) -> Iterator[tuple[Sample, BaseCompiledModel]]:
    """Yield the samples that the device takes, each compiled, and closed afterwards."""
    for sample in supported_samples(subject):
        compiled = subject.compile_model(sample.model, config)
        yield sample, compiled
        compiled.close()


def expect_outputs(subject: Subject, sample: Sample, results: Results, how: str = "") -> None:
    """Compare all outputs of a sample; `how` it ran is for messages."""
    names = {port.name for port in results}
    expect(names == set(sample.outputs), f"{sample.name}{how}: outputs {names}")
    for name, want in sample.outputs.items():
        where = f"{sample.name}{how}: output {name}"
        expect_value(results[name], want, sample.rtol, subject.computes, where)


def check_query_answers_for_every_node(subject: Subject) -> None:
    """Each node is supported or refused; constants and unused nodes too."""
    for sample in samples():
        support = subject.query_model(sample.model)
        asked = set(sample.model.node_names)
        answered = set(support) | set(support.unsupported)
        expect(answered == asked, f"{sample.name}: asked about {asked}, answered {answered}")
        both = set(support) & set(support.unsupported)
        expect(not both, f"{sample.name}: {both} both supported and refused")


def check_query_leaves_the_model_alone(subject: Subject) -> None:
    """Asking changes neither the model nor its nodes; asking again answers the same."""
    for sample in samples():
        before = sample.model.to_bytes()
        first = subject.query_model(sample.model)
        second = subject.query_model(sample.model)
        expect(sample.model.to_bytes() == before, f"{sample.name}: the model was changed")
        expect(dict(first) == dict(second), f"{sample.name}: asked twice, answered differently")


def check_refusals_say_why(subject: Subject) -> None:
    """An operator that nobody knows is refused with a sentence, by query and by compile."""
    model = foreign_operator("Odd")
    odd = model.node_names[1]
    support = subject.query_model(model)
    if subject.computes:
        expect(odd in support.unsupported, f"{subject.name} claims to support nobody.knows.Odd")
    for refusals in support.unsupported.values():
        for device, refusal in refusals.items():
            expect(len(refusal.message) > 8, f"{device}: a refusal says {refusal.message!r}")
    if support.unsupported:
        error = expect_raises(
            UnsupportedNodesError, lambda: subject.compile_model(model), "an unknown operator"
        )
        expect(odd in str(error), "the error does not name the node")
        expect(set(error.unsupported) == set(support.unsupported), "it has other nodes than query")


def check_operators_of_other_domains_are_refused(subject: Subject) -> None:
    """`nobody.knows.Relu` is not Relu, whether the model imports the standard domain or not."""
    if not subject.computes:
        return
    for op_type in ("Add", "Identity", "MatMul", "NonZero", "Relu"):
        for model in (foreign_operator(op_type), foreign_domain_alone(op_type)):
            name = model.node_names[-1]
            expect(
                name in subject.query_model(model).unsupported,
                f"{subject.name} takes nobody.knows.{op_type} for an operator that it knows",
            )


def check_element_types_that_are_taken_are_computed(subject: Subject) -> None:
    """Whatever element type a query takes, the answer is right in it; others are refused."""
    for element_type in ELEMENT_TYPES:
        for sample in typed_samples(element_type):
            if not subject.query_model(sample.model).unsupported:
                compiled = subject.compile_model(sample.model)
                expect_outputs(subject, sample, compiled(dict(sample.inputs)))
                compiled.close()


def check_what_breaks_a_definition_is_refused(subject: Subject) -> None:
    """Nodes whose types, inputs or attributes ONNX does not define: no device takes them."""
    for model in ill_formed():
        support = subject.query_model(model)
        name = model.node_names[-1]
        expect(name in support.unsupported, f"{subject.name} takes {model.name}")
        expect_raises(UnsupportedNodesError, partial(subject.compile_model, model), model.name)


def check_open_shapes_are_taken_or_refused_as_such(subject: Subject) -> None:
    """A device that takes a model with fixed shapes only says `dynamic_shape` of the open one."""
    found = {sample.name: subject.query_model(sample.model) for sample in samples()}
    if found["matmul chain"].unsupported or not found["open batch"].unsupported:
        return
    for refusals in found["open batch"].unsupported.values():
        for device, refusal in refusals.items():
            expect(
                refusal.code == "dynamic_shape",
                f"{device} takes fixed shapes only; its refusal has code {refusal.code!r}",
            )


def check_what_a_query_refuses_does_not_compile(subject: Subject) -> None:
    """Compiling raises UnsupportedNodesError; what is taken whole is compiled by other checks."""
    for sample in samples():
        if subject.query_model(sample.model).unsupported:
            compile_model = partial(subject.compile_model, sample.model)
            expect_raises(UnsupportedNodesError, compile_model, sample.name)


def check_ports_are_the_models(subject: Subject) -> None:
    """A compiled model's inputs and outputs equal the model's, in order."""
    for sample, compiled in compiled_samples(subject):
        expect(tuple(compiled.inputs) == sample.model.inputs, f"{sample.name}: other inputs")
        expect(tuple(compiled.outputs) == sample.model.outputs, f"{sample.name}: other outputs")
        expect(compiled.get_property("NETWORK_NAME") == sample.model.name, "NETWORK_NAME")
        devices = compiled.get_property("EXECUTION_DEVICES")
        expect(devices or not sample.model.nodes, f"{sample.name}: EXECUTION_DEVICES is empty")
        expect(compiled.get_property("LOADED_FROM_CACHE") is False, "LOADED_FROM_CACHE")
        expect(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") >= 1, "OPTIMAL_NUMBER")


def check_compiling_twice_gives_two(subject: Subject) -> None:
    """Two compiled models of one model live and end apart; the model stays as it was."""
    sample = supported_samples(subject)[0]
    before = sample.model.to_bytes()
    first, second = subject.compile_model(sample.model), subject.compile_model(sample.model)
    first.close()
    result = second(sample.inputs)
    expect_outputs(subject, sample, result)
    expect(sample.model.to_bytes() == before, "the model was changed")
    second.close()


def check_all_defaults_may_be_given(subject: Subject) -> None:
    """Compiling with every mutable property at its default is compiling with none."""
    sample = supported_samples(subject)[0]
    config = {p.name: p.default for p in subject.properties.values() if p.mutable}
    compiled = subject.compile_model(sample.model, config)
    expect(len(compiled(sample.inputs).to_tuple()) == len(sample.outputs), "outputs are missing")
    compiled.close()


def check_no_transformations_changes_no_answer(subject: Subject) -> None:
    """DISABLE_TRANSFORMATIONS, where there is such a property, gives the same outputs."""
    if "DISABLE_TRANSFORMATIONS" in subject.properties:
        for sample, plain in compiled_samples(subject, {"DISABLE_TRANSFORMATIONS": True}):
            expect_outputs(subject, sample, plain(dict(sample.inputs)), ", untransformed")
