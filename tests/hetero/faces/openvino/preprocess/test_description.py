"""The text of a processor equals OpenVINO's."""

from typing import Any

import onnx
import pytest

import hetero.openvino as face

ov = pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")

MODEL = """<ir_version: 8, opset_import: ["": 18]>
    g (float[1,3,224,224] x, float[2,3] w) => (float[1,3,224,224] y, float[2,3] v)
    {y = Relu(x) v = Neg(w)}"""


def image(module: Any, processor: Any) -> None:
    tensor = processor.input(0).tensor()
    tensor.set_layout(module.Layout("NHWC")).set_element_type(module.Type.u8)
    tensor.set_spatial_dynamic_shape()
    steps = processor.input(0).preprocess()
    steps.convert_element_type(module.Type.f32).reverse_channels()
    steps.mean([1, 2, 3]).scale([4, 5.5, 6])
    steps.resize(module.preprocess.ResizeAlgorithm.RESIZE_LINEAR)
    processor.input(0).model().set_layout(module.Layout("NCHW"))


def colors(module: Any, processor: Any) -> None:
    formats, algorithms = module.preprocess.ColorFormat, module.preprocess.ResizeAlgorithm
    tensor = processor.input("x").tensor().set_layout(module.Layout("NHWC"))
    tensor.set_element_type(module.Type.u8).set_color_format(formats.BGR)
    steps = processor.input("x").preprocess().convert_color(formats.RGB)
    steps.convert_element_type(module.Type.f32).convert_layout(module.Layout("NCHW"))
    steps.mean(1.5).resize(algorithms.RESIZE_CUBIC, 224, 224)
    processor.input("x").model().set_layout("NCHW")


def outputs(module: Any, processor: Any) -> None:
    processor.output(1).tensor().set_element_type(module.Type.f16)
    processor.output(1).postprocess().convert_element_type(module.Type.f32)
    processor.output(0).model().set_layout("NCHW")
    processor.output(0).tensor().set_layout("NHWC")


def implied_type(module: Any, processor: Any) -> None:
    processor.input(1).tensor().set_element_type(module.Type.i32)


@pytest.mark.parametrize("describe", [image, colors, outputs, implied_type])
def test_text_of_steps(describe):
    texts = []
    with face.Core("inprocess") as core:
        for module, own_core in ((face, core), (ov, ov.Core())):
            data = onnx.parser.parse_model(MODEL).SerializeToString()
            processor = module.preprocess.PrePostProcessor(own_core.read_model(data))
            assert not str(processor)
            describe(module, processor)
            texts.append(str(processor).strip())
    assert texts[0] == texts[1]


def test_text_of_an_invalid_step():
    with face.Core("inprocess") as core:
        data = onnx.parser.parse_model(MODEL).SerializeToString()
        processor = face.preprocess.PrePostProcessor(core.read_model(data))
    processor.input(1).tensor().set_element_type("u8")
    processor.input(1).preprocess().mean(1.0)
    assert "mean (1): ([2,3], <no layout>, u8) -> Error: input 'w': mean" in str(processor)
