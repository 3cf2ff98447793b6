"""Errors of invalid preprocessing: each names the port and the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from hetero import Layout, PrePostProcessor
from hetero.devices.errors import ArgumentError, ModelError, TensorNameError
from tests.support.preprocess_cases import model

PICTURES = (1, 3, 10, 12)


def refusal(describe: Callable[[Any], object], takes: tuple[Any, ...] = PICTURES) -> str:
    ppp = PrePostProcessor(model(takes))
    with pytest.raises(ArgumentError) as error:  # noqa: PT012 - some are raised by build
        describe(ppp)
        ppp.build()
    return str(error.value)


@pytest.mark.parametrize("text", ["", "NHHW", "N...C...", "N-C", "[N, , C]", "[mouse, C]"])
def test_invalid_layout_is_refused(text):
    with pytest.raises(ArgumentError, match="layout"):
        Layout(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("nhwc", "NHWC"), ("[batch, ?, height, WIDTH]", "N?HW"), ("[N,...,channels]", "N...C")],
)
def test_layout_accepts_several_forms(text, expected):
    assert Layout(text) == Layout(expected) == expected


@pytest.mark.parametrize("kind", ["u7", "float128x", None, "O,O"])
def test_invalid_element_type_is_refused(kind):
    ppp = PrePostProcessor(model(PICTURES))
    with pytest.raises(ArgumentError, match=r"expected one of .*u8"):
        ppp.input().tensor().set_element_type(kind)


@pytest.mark.parametrize("method", ["resize", "convert_color"])
def test_invalid_mode_error_lists_the_modes(method):
    ppp = PrePostProcessor(model(PICTURES))
    with pytest.raises(ArgumentError, match=r"expected one of .*(RGB|LINEAR)"):
        getattr(ppp.input().preprocess(), method)("bilinear-ish")


def test_layout_of_another_rank_is_refused():
    assert "has 3 dimensions, but the tensor has 4" in refusal(
        lambda ppp: ppp.input().model().set_layout("CHW")
    )


def test_contradictory_layouts_are_refused():
    def describe(ppp: Any) -> None:
        ppp.input().tensor().set_layout("NHWD")
        ppp.input().model().set_layout("NCHW")

    assert "input 'x': cannot convert layout NCHW to NHWD: it has no D" in refusal(describe)


def test_layout_without_batch_of_four_is_refused():
    def describe(ppp: Any) -> None:
        ppp.input().tensor().set_layout("HWC")
        ppp.input().model().set_layout("NCHW")

    assert "has no N, which has size 4 in the model" in refusal(describe, (4, 3, 10, 12))


def test_resize_without_height_and_width_is_refused():
    message = refusal(lambda ppp: ppp.input().preprocess().resize("linear"), (5, 7))
    assert "a layout with H" in message
    assert "set_layout" in message


def test_resize_to_a_dynamic_size_is_refused():
    def describe(ppp: Any) -> None:
        ppp.input().tensor().set_layout("NCHW")
        ppp.input().preprocess().resize("linear")

    assert "set one: resize(" in refusal(describe, (1, 3, "h", "w"))


def test_other_size_without_resize_is_refused():
    def describe(ppp: Any) -> None:
        ppp.input().tensor().set_layout("NHWC").set_spatial_static_shape(20, 30)
        ppp.input().model().set_layout("NCHW")

    message = refusal(describe)
    assert "the steps result in [1,3,20,30] (NCHW), but the model expects [1,3,10,12]" in message
    assert ".resize" in message


@pytest.mark.parametrize("step", ["mean", "scale"])
def test_arithmetic_on_integers_is_refused(step):
    def describe(ppp: Any) -> None:
        ppp.input().tensor().set_element_type("u8")
        getattr(ppp.input().preprocess(), step)(2.0)

    assert "convert_element_type('f32') before" in refusal(describe)


@pytest.mark.parametrize("numbers", [[1, 2], "red", [None]])
def test_wrong_number_of_channel_values_is_refused(numbers):
    def describe(ppp: Any) -> None:
        ppp.input().tensor().set_layout("NCHW")
        ppp.input().preprocess().mean(numbers)

    assert "for each channel" in refusal(describe)


def test_scale_by_zero_is_refused():
    assert "expected numbers other than 0" in refusal(
        lambda ppp: ppp.input().preprocess().scale([1, 0, 2])
    )


@pytest.mark.parametrize(
    ("step", "arguments", "words"),
    [
        ("crop", ([0, 0], [1, 1]), "expected 4 numbers for begin and end"),
        ("crop", ([0, 0, 5, 0], [1, 3, 5, 12]), "is empty"),
        ("pad", ([0, 0], [0, 0]), "expected 4 numbers for begin and end"),
        ("pad", ([0] * 4, [0] * 4, [1, 2, 3]), "one number for the border"),
        ("convert_layout", ([0, 0, 1, 2],), "each of the dimensions 0 to 3 once"),
        ("convert_layout", ("NHWC",), "set_layout"),
        ("reverse_channels", (), "a layout with C"),
    ],
)
def test_invalid_steps_are_refused(step, arguments, words):
    import re

    message = refusal(lambda ppp: getattr(ppp.input().preprocess(), step)(*arguments))
    assert re.search(words, message)
    assert message.startswith("input 'x'")


@pytest.mark.parametrize(
    ("source", "target"),
    [("UNDEFINED", "RGB"), ("GRAY", "RGB"), ("RGB", "NV12_SINGLE_PLANE"), ("RGB", "RGBX")],
)
def test_unsupported_color_conversion_is_refused(source, target):
    def describe(ppp: Any) -> None:
        ppp.input().tensor().set_layout("NCHW").set_color_format(source)
        ppp.input().preprocess().convert_color(target)

    assert f"cannot convert {source} to {target}" in refusal(describe)


@pytest.mark.parametrize("color", ["NV12_TWO_PLANES", "I420_SINGLE_PLANE", "BGRX"])
def test_unconverted_color_format_is_refused(color):
    def describe(ppp: Any) -> None:
        ppp.input().tensor().set_layout("NCHW").set_color_format(color)

    assert f"cannot process {color}; add .preprocess().convert_color" in refusal(describe)


def test_planes_in_a_single_tensor_step_are_refused():
    def describe(ppp: Any) -> None:
        ppp.input().tensor().set_layout("NCHW").set_color_format("NV12_TWO_PLANES")
        ppp.input().preprocess().resize("nearest", 4, 4)

    assert "convert_color(ColorFormat.RGB) first" in refusal(describe)


def test_planes_of_odd_size_are_refused():
    def describe(ppp: Any) -> None:
        ppp.input().tensor().set_layout("NCHW").set_color_format("NV12_SINGLE_PLANE")
        ppp.input().preprocess().convert_color("RGB")

    assert "expected even height and width" in refusal(describe, (1, 3, 9, 12))


def test_wrong_plane_names_are_refused():
    assert "expected one name for each" in refusal(
        lambda ppp: ppp.input().tensor().set_color_format("NV12_TWO_PLANES", ["y"])
    )


def test_unknown_ports_are_refused():
    ppp = PrePostProcessor(model(PICTURES))
    for key in ("z", 1):
        with pytest.raises(TensorNameError):
            ppp.input(key)
        with pytest.raises(TensorNameError):
            ppp.output(key)


def two_ports() -> onnx.ModelProto:
    """Build a model whose input and a constant are also outputs."""
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in "xyc"]
    constant = helper.make_tensor("c", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph([node], "g", ports[:1], [*ports, ports[0]], [constant])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_input_that_is_an_output_is_refused():
    ppp = PrePostProcessor(two_ports())
    ppp.input().preprocess().mean(1)
    with pytest.raises(ArgumentError, match="input 'x' is also an output of the model"):
        ppp.build()
    for name in ("x", "c"):
        ppp = PrePostProcessor(two_ports())
        ppp.output(name).postprocess().convert_element_type("f16")
        with pytest.raises(ArgumentError, match=f"output '{name}' is an input or a constant"):
            ppp.build()


def test_name_is_required_for_several_ports():
    with pytest.raises(TensorNameError, match="because the model has 4: 'x', 'y', 'c', 'x'"):
        PrePostProcessor(two_ports()).output()


def test_sequence_input_is_refused():
    value = helper.make_value_info(
        "s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    )
    length = helper.make_tensor_value_info("n", TensorProto.INT64, [])
    node = helper.make_node("SequenceLength", ["s"], ["n"])
    graph = helper.make_graph([node], "g", [value], [length])
    ppp = PrePostProcessor(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    ppp.input().preprocess().convert_element_type("f32")
    with pytest.raises(ArgumentError, match="input 's': expected a tensor"):
        ppp.build()


def test_opset_that_cannot_be_upgraded_is_refused():
    old = model(PICTURES, opset=6)
    # onnx's version converter cannot convert this GRU to a newer opset.
    old.graph.node.append(helper.make_node("GRU", ["s", "w", "r"], ["states"]))
    for name, shape in {"s": (2, 1, 3), "w": (1, 6, 3), "r": (1, 6, 2)}.items():
        old.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    ppp = PrePostProcessor(old)
    ppp.input("x").tensor().set_layout("NCHW").set_spatial_static_shape(2, 2)
    ppp.input("x").preprocess().resize("linear")
    with pytest.raises(ModelError, match="Export the model for opset 11"):
        ppp.build()
