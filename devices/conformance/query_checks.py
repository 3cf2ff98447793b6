"""Checks of query_model and compile_model: support, refusals, ports and options."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from hetero.devices.conformance.expectation import expect, expect_raises, expect_value
from hetero.devices.conformance.samples import (
    Sample,
    foreign_domain_alone,
    foreign_operator,
    invalid_models,
    samples,
    typed_samples,
)
from hetero.devices.conformance.subject import Subject
from hetero.devices.errors import UnsupportedNodesError
from hetero.devices.plugin.properties import Config
from hetero.devices.request.base_compiled_model import BaseCompiledModel
from hetero.devices.request.results import Results

#: Element types of the typed samples.
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
    """Return the samples that the subject supports completely; AssertionError if none."""
    supported = [s for s in samples() if not subject.query_model(s.model).unsupported]
    expect(
        supported,
        f"{subject.name} supports none of the sample models, which have Add, MatMul, Relu, "
        "Softmax, Sigmoid, Gemm, NonZero, Identity and Constant; the checks need at least one",
    )
    return supported


def compiled_samples(
    subject: Subject, config: Config | None = None
) -> Iterator[tuple[Sample, BaseCompiledModel]]:
    """Yield the supported samples, each with its compiled model, which is closed afterwards."""
    for sample in supported_samples(subject):
        compiled = subject.compile_model(sample.model, config)
        yield sample, compiled
        compiled.close()


def expect_outputs(subject: Subject, sample: Sample, results: Results, context: str = "") -> None:
    """Compare all outputs of a sample; messages contain `context`."""
    names = {port.name for port in results}
    expect(
        names == set(sample.outputs),
        f"{sample.name}{context}: expected outputs {set(sample.outputs)}, got {names}",
    )
    for name, expected in sample.outputs.items():
        label = f"{sample.name}{context}: output {name}"
        expect_value(results[name], expected, sample.rtol, subject.computes, label)


def check_query_covers_every_node(subject: Subject) -> None:
    """Expect each node to be either supported or refused, constants and unused nodes too."""
    for sample in samples():
        support = subject.query_model(sample.model)
        nodes = set(sample.model.node_names)
        results = set(support) | set(support.unsupported)
        expect(results == nodes, f"{sample.name}: expected results for {nodes}, got {results}")
        both = set(support) & set(support.unsupported)
        expect(not both, f"{sample.name}: {both} are supported and refused")


def check_query_does_not_change_the_model(subject: Subject) -> None:
    """Expect an unchanged model, and equal results of a second query."""
    for sample in samples():
        before = sample.model.to_bytes()
        first = subject.query_model(sample.model)
        second = subject.query_model(sample.model)
        expect(sample.model.to_bytes() == before, f"{sample.name}: query_model changed the model")
        expect(dict(first) == dict(second), f"{sample.name}: two queries have different results")


def check_refusals_have_messages(subject: Subject) -> None:
    """Expect a message for the refusal of an unknown operator, by query and by compilation."""
    model = foreign_operator("Odd")
    node = model.node_names[1]
    support = subject.query_model(model)
    if subject.computes:
        expect(node in support.unsupported, f"{subject.name} supports unknown.domain.Odd")
    for refusals in support.unsupported.values():
        for device, refusal in refusals.items():
            expect(
                len(refusal.message) > 8, f"{device}: expected a reason, got {refusal.message!r}"
            )
    if support.unsupported:
        error = expect_raises(
            UnsupportedNodesError, lambda: subject.compile_model(model), "an unknown operator"
        )
        expect(node in str(error), "the error does not name the node")
        expect(
            set(error.unsupported) == set(support.unsupported),
            "the error lists other nodes than the query",
        )


def check_operators_of_unknown_domains_are_refused(subject: Subject) -> None:
    """Expect the refusal of `unknown.domain.Relu`, with and without the standard domain."""
    if not subject.computes:
        return
    for op_type in ("Add", "Identity", "MatMul", "NonZero", "Relu"):
        for model in (foreign_operator(op_type), foreign_domain_alone(op_type)):
            name = model.node_names[-1]
            expect(
                name in subject.query_model(model).unsupported,
                f"{subject.name} supports unknown.domain.{op_type}, which is not {op_type}",
            )


def check_supported_element_types_are_computed(subject: Subject) -> None:
    """Expect correct results in each supported element type."""
    for element_type in ELEMENT_TYPES:
        for sample in typed_samples(element_type):
            if not subject.query_model(sample.model).unsupported:
                compiled = subject.compile_model(sample.model)
                expect_outputs(subject, sample, compiled(dict(sample.inputs)))
                compiled.close()


def check_invalid_nodes_are_refused(subject: Subject) -> None:
    """Expect the refusal of nodes whose types, inputs or attributes violate ONNX."""
    for model in invalid_models():
        support = subject.query_model(model)
        name = model.node_names[-1]
        expect(name in support.unsupported, f"{subject.name} supports {model.name}")
        expect_raises(UnsupportedNodesError, partial(subject.compile_model, model), model.name)


def check_dynamic_shapes_are_supported_or_refused(subject: Subject) -> None:
    """Expect the code `dynamic_shape` of a device that supports static shapes only."""
    supports = {sample.name: subject.query_model(sample.model) for sample in samples()}
    if supports["matmul chain"].unsupported or not supports["open batch"].unsupported:
        return
    for refusals in supports["open batch"].unsupported.values():
        for device, refusal in refusals.items():
            expect(
                refusal.code == "dynamic_shape",
                f"{device} supports static shapes only: expected code 'dynamic_shape', "
                f"got {refusal.code!r}",
            )


def check_refused_models_do_not_compile(subject: Subject) -> None:
    """Expect UnsupportedNodesError for each sample that is not completely supported."""
    for sample in samples():
        if subject.query_model(sample.model).unsupported:
            compile_model = partial(subject.compile_model, sample.model)
            expect_raises(UnsupportedNodesError, compile_model, sample.name)


def check_ports_equal_the_models(subject: Subject) -> None:
    """Expect the model's ports, in order, and the mandatory properties."""
    for sample, compiled in compiled_samples(subject):
        expect(
            tuple(compiled.inputs) == sample.model.inputs,
            f"{sample.name}: inputs differ from the model's",
        )
        expect(
            tuple(compiled.outputs) == sample.model.outputs,
            f"{sample.name}: outputs differ from the model's",
        )
        expect(compiled.get_property("NETWORK_NAME") == sample.model.name, "NETWORK_NAME differs")
        devices = compiled.get_property("EXECUTION_DEVICES")
        expect(devices or not sample.model.nodes, f"{sample.name}: EXECUTION_DEVICES is empty")
        expect(compiled.get_property("LOADED_FROM_CACHE") is False, "LOADED_FROM_CACHE is true")
        expect(
            compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") >= 1, "OPTIMAL_NUMBER is 0"
        )


def check_compiled_models_are_independent(subject: Subject) -> None:
    """Expect two independent compiled models of one model, which stays unchanged."""
    sample = supported_samples(subject)[0]
    before = sample.model.to_bytes()
    first, second = subject.compile_model(sample.model), subject.compile_model(sample.model)
    first.close()
    result = second(sample.inputs)
    expect_outputs(subject, sample, result)
    expect(sample.model.to_bytes() == before, "compile_model changed the model")
    second.close()


def check_compile_accepts_all_defaults(subject: Subject) -> None:
    """Expect that compilation accepts every mutable property at its default."""
    sample = supported_samples(subject)[0]
    config = {p.name: p.default for p in subject.properties.values() if p.mutable}
    compiled = subject.compile_model(sample.model, config)
    expect(len(compiled(sample.inputs).to_tuple()) == len(sample.outputs), "outputs are missing")
    compiled.close()


def check_results_without_transformations_are_equal(subject: Subject) -> None:
    """Expect correct results with DISABLE_TRANSFORMATIONS, if the property exists."""
    if "DISABLE_TRANSFORMATIONS" in subject.properties:
        for sample, compiled in compiled_samples(subject, {"DISABLE_TRANSFORMATIONS": True}):
            expect_outputs(subject, sample, compiled(dict(sample.inputs)), ", untransformed")
