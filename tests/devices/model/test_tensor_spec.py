"""Types of values: ONNX protos, sizes, layouts, and element types."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hetero.devices.errors import ArgumentError, ModelError
from hetero.devices.model.element_type import ELEMENT_TYPES, Type, element_type_name
from hetero.devices.model.tensor_spec import TensorSpec, type_string
from tests.support.rows import for_each_row

TENSOR = helper.make_tensor_type_proto(TensorProto.INT64, ["n", 2])


@pytest.mark.parametrize(
    ("proto", "text"),
    [
        (TENSOR, "tensor(int64)"),
        (helper.make_sparse_tensor_type_proto(TensorProto.DOUBLE, [3]), "sparse_tensor(double)"),
        (helper.make_sequence_type_proto(TENSOR), "seq(tensor(int64))"),
        (helper.make_optional_type_proto(TENSOR), "optional(tensor(int64))"),
        (
            helper.make_optional_type_proto(helper.make_sequence_type_proto(TENSOR)),
            "optional(seq(tensor(int64)))",
        ),
        (helper.make_map_type_proto(TensorProto.STRING, TENSOR), "map(string,tensor(int64))"),
        (onnx.TypeProto(), ""),
    ],
)
def test_type_strings_and_protos_convert_both_ways(proto, text):
    assert type_string(proto) == text
    spec = TensorSpec("x", text)
    assert spec.is_tensor == text.startswith("tensor")
    assert type_string(spec.to_proto().type) == text
    assert str(spec) == (text or "unknown type")


def info(*dimensions: Any, denotations: tuple[str, ...] = ()) -> onnx.ValueInfoProto:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(dimensions))
    for dimension, text in zip(value.type.tensor_type.shape.dim, denotations, strict=False):
        dimension.denotation = text
    return value


def test_shape_of_a_proto():
    spec = TensorSpec.from_proto(info(3, "n", None, -1, "?", "", 0))
    assert spec == TensorSpec("x", "tensor(float)", (3, "n", None, None, None, None, 0))
    assert str(spec) == "tensor(float)[3, n, ?, ?, ?, ?, 0]"
    assert TensorSpec.from_proto(spec.to_proto()) == spec
    scalar, unranked = info(), helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    assert TensorSpec.from_proto(scalar).shape == ()
    assert TensorSpec.from_proto(TensorSpec.from_proto(scalar).to_proto()).shape == ()
    assert TensorSpec.from_proto(unranked).shape is None
    assert not TensorSpec.from_proto(unranked).to_proto().type.tensor_type.HasField("shape")
    sparse = onnx.ValueInfoProto(name="s")
    sparse.type.CopyFrom(helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [2, "k"]))
    assert TensorSpec.from_proto(sparse).shape == (2, "k")


@pytest.mark.parametrize(
    ("denotations", "layout"),
    [
        (("DATA_BATCH", "DATA_CHANNEL", "H", "W"), "NCHW"),
        (("DATA_BATCH", "", "H"), "N?H?"),
        (("DATA_FEATURE", "C"), "?C??"),
        ((), ""),
    ],
)
def test_layout_is_read_from_denotations(denotations, layout):
    spec = TensorSpec.from_proto(info(1, 2, 3, 4, denotations=denotations))
    assert spec.layout == layout
    dimensions = (
        TensorSpec("x", spec.type, spec.shape, layout).to_proto().type.tensor_type.shape.dim
    )
    expected = {"N": "DATA_BATCH", "C": "DATA_CHANNEL", "?": ""}
    assert [d.denotation for d in dimensions] == [expected.get(k, k) for k in layout.ljust(4, "?")]


@for_each_row(
    "kind, shape, nbytes",
    [
        ("float", (2, 3), 24),
        ("float", (), 4),
        ("float", (2, 0), 0),
        ("int4", (3,), 2),  # 12 bits
        ("uint2", (5,), 2),  # 10 bits
        ("float4e2m1", (4,), 2),
        ("bool", (9,), 9),
        ("complex128", (2,), 32),
        ("bfloat16", (3,), 6),
        ("float", (2, "n"), None),
        ("float", (2, None), None),
        ("float", None, None),
    ],
)
def test_bytes_of_a_value(kind, shape, nbytes):
    assert TensorSpec("x", f"tensor({kind})", shape).nbytes == nbytes
    assert TensorSpec("x", f"seq(tensor({kind}))", shape).nbytes is None


@pytest.mark.parametrize(
    ("declared", "shape", "fits"),
    [
        ((2, 3), (2, 3), True),
        ((2, 3), (2, 4), False),
        ((2, None), (2, 9), True),
        ((None, 3), (2, 9), False),
        (("n", "n"), (2, 9), True),
        ((2,), (2, 1), False),
        ((2, "n"), (2,), False),
        ((), (), True),
        ((), (1,), False),
        (None, (1, 2, 3), True),
    ],
)
def test_declared_shape_accepts_arrays(declared, shape, fits):
    assert TensorSpec("x", "tensor(float)", declared).accepts(shape) == fits


def test_port_has_openvino_names():
    port = TensorSpec("x", "tensor(float16)", (2, 3), "NC")
    assert (port.any_name, port.friendly_name, port.get_any_name()) == ("x", "x", "x")
    assert (port.get_name(), port.get_friendly_name(), port.names, port.get_names()) == (
        *("x", "x"),
        *({"x"}, {"x"}),
    )
    for same in (port.node, port.tensor, port.get_node(), port.get_tensor()):
        assert same is port
    assert (port.index, port.get_index(), port.size, port.get_size()) == (0, 0, 6, 6)
    assert (port.element_type, port.get_element_type(), port.dtype) == (
        *(Type.f16, Type.f16),
        np.float16,
    )
    assert port.get_shape() == port.partial_shape == port.get_partial_shape() == [2, 3]
    assert port.is_static
    dynamic = TensorSpec("x", "seq(tensor(float))")
    assert (dynamic.get_shape(), dynamic.element_type, dynamic.dtype) == (None, "", None)
    assert (dynamic.is_static, str(dynamic.partial_shape)) == (False, "[...]")
    assert not TensorSpec("x", "tensor(float)", (2, "n")).is_static
    with pytest.raises(ArgumentError):
        _ = TensorSpec("x", "tensor(float)", (2, "n")).size


def test_spec_of_an_array_is_exact():
    assert TensorSpec.from_array("x", np.zeros((2, 0), np.int8)) == TensorSpec(
        "x", "tensor(int8)", (2, 0)
    )
    assert TensorSpec.from_array("x", np.array(["a"])).type == "tensor(string)"


def test_unreadable_protos_raise():
    unknown = onnx.TypeProto()
    unknown.tensor_type.elem_type = 99
    with pytest.raises(ModelError, match="does not define element type 99"):
        type_string(unknown)
    for field in (b"name", b"dimension"):
        value = info("n")
        data = (
            value.SerializeToString().replace(b"x", b"\xff")
            if field == b"name"
            else (value.SerializeToString().replace(b"n", b"\xff"))
        )
        with pytest.raises(ModelError, match="is not UTF-8"):
            TensorSpec.from_proto(onnx.ValueInfoProto.FromString(data))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("f32", "float", "float32", np.float32, np.dtype("f4")), Type.f32),
        (("i64", "int64", np.int64, int), Type.i64),
        (("boolean", "bool", bool, np.bool_), Type.boolean),
        (("string", str, object, np.dtype("U3"), np.dtype("S2"), bytes), Type.string),
        (("bf16", "bfloat16", ml_dtypes.bfloat16), Type.bf16),
        (("u4", "uint4", ml_dtypes.uint4), Type.u4),
        (("f64", "double", "float64", float), Type.f64),
        (("dynamic",), Type.dynamic),
    ],
)
def test_element_type_has_many_names(names, expected):
    assert {Type(name) for name in names} == {expected}


@pytest.mark.parametrize("name", ["f31", None, np.timedelta64, "none", 3])
def test_unknown_element_type_raises(name):
    with pytest.raises(ArgumentError, match="unknown element type"):
        Type(name)


# By OpenVINO 2026.4: bits, bytes, is_real, is_integral_number, is_signed, is_quantized.
@for_each_row(
    "kind, expected",
    [
        (Type.f32, (32, 4, True, False, True, False)),
        (Type.bf16, (16, 2, True, False, True, False)),
        (Type.f4e2m1, (4, 1, True, False, True, True)),
        (Type.f8e8m0, (8, 1, True, False, True, True)),
        (Type.i4, (4, 1, False, True, True, True)),
        (Type.i8, (8, 1, False, True, True, True)),
        (Type.u2, (2, 1, False, True, False, False)),
        (Type.u8, (8, 1, False, True, False, True)),
        (Type.i32, (32, 4, False, True, True, True)),
        (Type.i64, (64, 8, False, True, True, False)),
        (Type.boolean, (8, 1, False, False, True, False)),
        (Type.string, (0, 0, False, False, False, False)),
        (Type.dynamic, (0, 0, False, False, False, False)),
    ],
)
def test_properties_of_element_types(kind, expected):
    assert expected == (
        kind.bitwidth,
        kind.size,
        kind.real,
        kind.integral_number,
        kind.signed,
        kind.quantized,
    )
    assert expected == (
        kind.get_bitwidth(),
        kind.get_size(),
        kind.is_real(),
        kind.is_integral_number(),
        kind.is_signed(),
        kind.is_quantized(),
    )
    assert kind.integral is kind.is_integral() is not kind.real
    assert kind.type_name == kind.get_type_name() == kind.to_string() == kind.name
    assert kind.is_static() is not kind.is_dynamic() is (kind is Type.dynamic)
    assert (kind.merge(Type.dynamic), Type.dynamic.merge(kind), kind.merge(kind)) == (kind,) * 3
    assert kind.compatible(Type.dynamic)
    assert kind.compatible(Type.u16) == (kind is Type.dynamic)


def test_dtypes_of_element_types_are_those_of_onnx():
    for kind in set(Type) - {Type.dynamic, Type.string}:
        number = TensorProto.DataType.Value(kind.value.upper())
        dtype = helper.tensor_dtype_to_np_dtype(number)
        assert kind.to_dtype() == dtype
        assert element_type_name(dtype) == kind.value
    assert Type.string.to_dtype() == np.dtype(object)
    assert {kind.value for kind in Type} - {"dynamic"} <= ELEMENT_TYPES
    with pytest.raises(ArgumentError, match="'dynamic' is unknown"):
        Type.dynamic.to_dtype()
    with pytest.raises(TypeError, match="not an ONNX element type"):
        element_type_name(np.dtype("m8[s]"))
