"""The query, not the run, refuses attribute values that no kernel supports."""

from __future__ import annotations

import inspect

import numpy as np
import onnx
import pytest
from onnx import helper, parser

import hetero
from hetero.devices import Model, read_model
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.errors import ModelError
from hetero.devices.kernels import KERNELS, Kernel, KernelRegistry
from hetero.devices.kernels.registry import op
from hetero.devices.plugin.schema_validation import schema_violations
from hetero.errors import UnsupportedNodesError
from tests.support.rows import for_each_row
from tests.support.single_nodes import single_node_models

#: Attributes whose value is any text.
TEXT = {
    "classes_strings",
    "classlabels_strings",
    "cats_strings",
    "default_string",
    "delimiter",
    "equation",
    "keys_strings",
    "locale",
    "pool_strings",
    "replaced_value_string",
    "stopwords",
    "string_vocabulary",
    "value_string",
    "value_strings",
    "values_strings",
    "pattern",
    "classlabels",
    "keys_as_string",
    "cast_map",
}
#: Kernels with choices whose operator has a schema in ONNX; one operator of ONNX Runtime has none.
CHOOSING = [
    kernel
    for kernel in KERNELS
    if kernel.choices
    and kernel.domain != "hetero"
    and (kernel.domain or onnx.defs.has(kernel.op_type))
]


def schema_of(kernel: Kernel) -> onnx.defs.OpSchema:
    # ONNX Runtime had LayerNormalization before ONNX did.
    version = 17 if kernel.op_type == "LayerNormalization" else kernel.since
    return onnx.defs.get_schema(kernel.op_type, version, kernel.domain)


def sound_model(kernel: Kernel) -> onnx.ModelProto | None:
    """Return a model of one node that the kernel runs, or None if it is hard to generate."""
    types = ["float", "int64", "uint8", "string", "float16", "int32"]
    if kernel.domain:
        return None
    schema = schema_of(kernel)
    for proto in single_node_models(schema, max(kernel.since, schema.since_version, 7), types):
        (node,) = proto.graph.node
        for attribute in node.attribute:
            if attribute.name in kernel.choices:
                name = attribute.name
                attribute.CopyFrom(helper.make_attribute(name, kernel.choices[name][0]))
        if not schema_violations(read_model(proto)):
            return proto
    return None


@for_each_row("kernel", CHOOSING, lambda kernel: f"{kernel.op_type}-{kernel.since}")
def test_query_refuses_invalid_attribute_values(kernel):
    proto = sound_model(kernel)
    if proto is None:
        hard = ("TfIdfVectorizer", "RMSNormalization")
        assert kernel.domain or not schema_of(kernel).inputs or kernel.op_type in hard
        return
    assert not CPUPlugin().query_model(read_model(proto)).unsupported
    for name in kernel.choices:
        kind = schema_of(kernel).attributes[name].type.name
        wrong = {"STRING": "nonsense", "STRINGS": ["nonsense"], "INT": 99}[kind]
        node = onnx.NodeProto()
        node.CopyFrom(proto.graph.node[0])
        others = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend([*others, helper.make_attribute(name, wrong)])
        broken = onnx.ModelProto()
        broken.CopyFrom(proto)
        broken.graph.node[0].CopyFrom(node)
        if kind == "INT" and kernel.op_type.endswith(("Window", "WeightMatrix")):
            with pytest.raises(ModelError, match="element type 99"):  # inference says it first
                CPUPlugin().query_model(read_model(broken))
            continue
        (by,) = CPUPlugin().query_model(read_model(broken)).unsupported.values()
        (refusal,) = by.values()
        assert refusal.code == "attribute"
        assert f"attribute {name!r} is" in refusal.message


def test_kernels_declare_the_values_of_text_attributes():
    """The valid values include the defaults."""
    for kernel in KERNELS:
        for name, parameter in inspect.signature(kernel.function).parameters.items():
            if name in kernel.choices and parameter.default not in (inspect.Parameter.empty, None):
                default = parameter.default
                values = default if isinstance(default, tuple | list) else (default,)
                assert all(value in kernel.choices[name] for value in values), kernel
        if onnx.defs.has(kernel.op_type, kernel.since, kernel.domain):
            for name, attribute in schema_of(kernel).attributes.items():
                if attribute.type.name in ("STRING", "STRINGS"):
                    assert name in kernel.choices or name in TEXT, kernel


def model_of(text: str) -> Model:
    return read_model(
        parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "own" : 1]> g {text}')
    )


@pytest.mark.parametrize(
    "text",
    [
        (
            "(float[N,1,4,4] x, float[1,1,3,3] w, bool c) => (y) {y = If(c) <then_branch = a () => "
            '(o) {o = Conv<auto_pad = "SAME">(x, w)}, else_branch = b () => (p) {p = Conv(x, w)}>}'
        ),
        (
            "(float[N,1,4,4] x, float[1,1,3,3] w) => (y) {y = own.F(x, w)} "
            '<domain: "own", opset_import: ["" : 17]> '
            'F (a, b) => (c) {c = Conv<auto_pad = "SAME">(a, b)}'
        ),
        (
            '(float[N,1,4,4] x, float[1,1,3,3] w) => (y) {y = own.F<pad = "SAME">(x, w)} '
            '<domain: "own", opset_import: ["" : 17]> '
            "F <pad>(a, b) => (c) {c = Conv<auto_pad = @pad>(a, b)}"
        ),
    ],
    ids=["branch", "function", "attribute of a function"],
)
@pytest.mark.parametrize("plain", [False, True])
def test_query_refuses_values_in_bodies_and_functions(text, plain):
    config = {"DISABLE_TRANSFORMATIONS": plain}
    (by,) = CPUPlugin().query_model(model_of(text), config).unsupported.values()
    (refusal,) = by.values()
    assert refusal.code == "attribute"
    assert "attribute 'auto_pad' is 'SAME'; valid values are 'NOTSET'" in refusal.message


def test_function_is_checked_for_the_attributes_of_each_call():
    text = (
        '(float[1,1,4,4] x, float[1,1,3,3] w) => (y, z) {y = own.F<pad = "VALID">(x, w) '
        'z = own.F<pad = "SAME">(x, w)} <domain: "own", opset_import: ["" : 17]> '
        "F <pad>(a, b) => (c) {c = Conv<auto_pad = @pad>(a, b)}"
    )
    support = CPUPlugin().query_model(model_of(text), {"DISABLE_TRANSFORMATIONS": True})
    assert (set(support), set(support.unsupported)) == ({"y"}, {"z"})


def test_a_user_reads_the_valid_values():
    text = '(float[1,1,4,4] x, float[4] s) => (y) {y = Resize<mode = "lanczos">(x, "", s)}'
    with (
        hetero.Core("inprocess") as core,
        pytest.raises(UnsupportedNodesError, match=r"'lanczos'; valid values are 'nearest'"),
    ):
        core.compile_model(model_of(text), "CPU")


def test_choices_of_unknown_attributes_are_refused(monkeypatch):
    monkeypatch.setattr("hetero.devices.kernels.registry.KERNELS", KernelRegistry())
    with pytest.raises(ValueError, match="no attribute 'mode' to choose for"):
        op("Odd", since=1, choices={"mode": ("a",)})(lambda xp, x: np.abs(x))
