"""Preprocessing steps compared with formulas, Pillow and numpy on CPU, ORT and both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

import hetero
from hetero import ColorFormat, PrePostProcessor
from tests.support import preprocess_formulas as formulas
from tests.support.preprocess_cases import CASES, camera, model, picture


def build_model(
    takes: tuple[int | str | None, ...], describe: Callable[[PrePostProcessor], Any]
) -> hetero.Model:
    ppp = PrePostProcessor(model(takes))
    describe(ppp)
    return ppp.build()


def run_on_devices(core: hetero.Core, source: hetero.Model, *inputs: np.ndarray) -> np.ndarray:
    """Return the output after checks that single devices and a device list agree."""
    onnx.checker.check_model(source.to_proto(), full_check=True)
    pins = {name: "CPU" if name == "model" else "ORT" for name in source.node_names}
    outputs = [core.compile_model(source, d)(list(inputs))[0] for d in ("CPU", "ORT")]
    compiled = core.compile_model(source, "HETERO:ORT,CPU", affinity=pins)
    outputs.append(compiled(list(inputs))[0])
    for other in outputs[1:]:
        # Values at one half round differently if the order of the sum differs.
        np.testing.assert_allclose(other, outputs[0], rtol=1e-4, atol=1.0)
    return outputs[0]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("case", CASES, ids=repr)
@pytest.mark.parametrize("opset", [9, 11, 13, 18, 23])
def test_steps_are_valid_onnx_at_the_models_opset(case, opset):
    ppp = PrePostProcessor(model(case.takes, opset))
    case.describe(ppp, hetero)
    source = ppp.build()
    assert source.opset_imports[""] == opset or (
        opset == 9 and source.opset_imports[""] in (10, 11)
    )
    onnx.checker.check_model(source.to_proto(), full_check=True)
    assert tuple(source.spec("y").shape or ()) == source.outputs[0].shape
    assert len(set(source.node_names)) == len(source.nodes)
    assert all("/" in node.name for node in source.nodes if node.name != "model")


@pytest.mark.parametrize("algorithm", ["RESIZE_NEAREST", "RESIZE_LINEAR", "RESIZE_CUBIC"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("size", [(7, 31), (29, 9)])
def test_resizing_equals_the_formula(core, algorithm, layout, size):
    def describe(ppp: PrePostProcessor) -> None:
        tensor = ppp.input().tensor().set_element_type("u8").set_layout(layout)
        tensor.set_spatial_static_shape(13, 18)
        ppp.input().preprocess().convert_element_type("f32").resize(algorithm)
        ppp.input().model().set_layout("NCHW")

    x = picture((13, 18, 3))
    pixels = x[None] if layout == "NHWC" else x.transpose(2, 0, 1)[None]
    output = run_on_devices(core, build_model((1, 3, *size), describe), pixels)
    expected = formulas.resize(x, algorithm, *size).transpose(2, 0, 1)[None]
    np.testing.assert_allclose(output, expected, atol=2e-3)


@pytest.mark.parametrize(
    ("algorithm", "resampling"),
    [("RESIZE_LINEAR", Image.Resampling.BILINEAR), ("RESIZE_NEAREST", Image.Resampling.NEAREST)],
)
def test_enlarged_bytes_equal_pillows(core, algorithm, resampling):
    def describe(ppp: PrePostProcessor) -> None:
        tensor = ppp.input().tensor().set_element_type("u8").set_layout("NHWC")
        tensor.set_spatial_static_shape(13, 18)
        ppp.input().preprocess().resize(algorithm)
        ppp.input().model().set_layout("NHWC")

    x = picture((13, 18, 3))
    output = run_on_devices(core, build_model((1, 31, 40, 3), describe), x[None])
    expected = np.asarray(Image.fromarray(x).resize((40, 31), resampling), np.float32)
    np.testing.assert_allclose(output[0], expected, atol=1)  # Pillow computes in steps of 1/256


@pytest.mark.parametrize("target", ["RGB", "BGR", "GRAY"])
@pytest.mark.parametrize(
    "source", ["NV12_SINGLE_PLANE", "NV12_TWO_PLANES", "I420_THREE_PLANES", "I420_SINGLE_PLANE"]
)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_yuv_conversion_equals_the_formula(core, source, target, layout):
    y, u, v = picture((10, 14)), picture((5, 7), seed=1), picture((5, 7), seed=2)
    uv = np.stack([u, v], -1)
    planes = {
        "NV12_SINGLE_PLANE": [np.concatenate([y, uv.reshape(5, 14)])[..., None]],
        "NV12_TWO_PLANES": [y[..., None], uv],
        "I420_SINGLE_PLANE": [np.concatenate([y.ravel(), u.ravel(), v.ravel()]).reshape(15, 14, 1)],
        "I420_THREE_PLANES": [plane[..., None] for plane in (y, u, v)],
    }[source]

    def describe(ppp: PrePostProcessor) -> None:
        tensor = ppp.input().tensor().set_element_type("u8").set_layout(layout)
        tensor.set_color_format(source)
        ppp.input().preprocess().convert_color(target)
        ppp.input().model().set_layout("NCHW")

    pixels = [p[None] if layout == "NHWC" else p.transpose(2, 0, 1)[None] for p in planes]
    expected = formulas.yuv_to_rgb(y, u, v)
    expected = {"RGB": expected, "BGR": expected[..., ::-1], "GRAY": y[..., None]}[target]
    output = run_on_devices(core, build_model((1, expected.shape[-1], 10, 14), describe), *pixels)
    np.testing.assert_allclose(output[0], expected.transpose(2, 0, 1), atol=0.501)


@pytest.mark.parametrize("source", ["RGB", "BGR", "RGBX", "BGRX"])
@pytest.mark.parametrize("target", ["RGB", "BGR", "GRAY"])
def test_color_conversions_reorder_and_sum_channels(core, source, target):
    def describe(ppp: PrePostProcessor) -> None:
        ppp.input().tensor().set_layout("NCHW").set_color_format(source)
        ppp.input().preprocess().convert_color(ColorFormat[target])
        ppp.input().model().set_layout("NHWC")

    x = picture((1, len(source), 6, 8), np.float32)
    rgb = np.moveaxis(x, 1, -1)[..., [2, 1, 0] if source.startswith("B") else [0, 1, 2]]
    expected = {"RGB": rgb, "BGR": rgb[..., ::-1], "GRAY": formulas.gray(rgb)[..., None]}[target]
    output = run_on_devices(core, build_model((1, 6, 8, expected.shape[-1]), describe), x)
    np.testing.assert_allclose(output, expected, atol=1e-3)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_padding_equals_numpys(core, mode):
    def describe(ppp: PrePostProcessor) -> None:
        ppp.input().tensor().set_shape([1, 6, 8, 3])
        ppp.input().preprocess().pad([0, 1, 2, 0], [0, 3, 5, 0], 7.5 * (mode == "constant"), mode)

    x = picture((1, 6, 8, 3), np.float32)
    more = {"constant_values": 7.5} if mode == "constant" else {}
    expected = np.pad(x, [(0, 0), (1, 3), (2, 5), (0, 0)], mode, **more)
    np.testing.assert_array_equal(
        run_on_devices(core, build_model((1, 10, 15, 3), describe), x), expected
    )


def test_dynamic_sizes_differ_between_requests(core):
    def describe(ppp: PrePostProcessor) -> None:
        tensor = ppp.input().tensor().set_element_type("u8").set_layout("NHWC")
        tensor.set_spatial_dynamic_shape()
        ppp.input().preprocess().convert_element_type("f32").resize("RESIZE_CUBIC")
        ppp.input().model().set_layout("NCHW")

    source = build_model(("batch", 3, 9, 11), describe)
    assert source.inputs[0].shape == ("batch", None, None, 3)
    for shape in ((1, 13, 18, 3), (2, 5, 9, 3)):
        x = picture(shape)
        expected = [formulas.resize(item, "RESIZE_CUBIC", 9, 11).transpose(2, 0, 1) for item in x]
        np.testing.assert_allclose(run_on_devices(core, source, x), expected, atol=2e-3)


def test_steps_run_in_the_order_of_their_calls(core):
    source = build_model(
        (4,), lambda ppp: ppp.input().preprocess().mean(2).scale(4).mean(-1).scale(0.5)
    )
    x = np.float32([0, 1, 2, 6])
    np.testing.assert_array_equal(run_on_devices(core, source, x), ((x - 2) / 4 + 1) / 0.5)


def test_float16_stays_float16_until_the_model(core):
    def describe(ppp: PrePostProcessor) -> None:
        ppp.input().tensor().set_element_type("f16")
        ppp.input().preprocess().scale(3)

    source = build_model((4,), describe)
    assert source.spec("x/div").element_type == "float16"
    x = np.float16([0, 1, 2, 6])
    np.testing.assert_array_equal(
        run_on_devices(core, source, x), (x / np.float16(3)).astype(np.float32)
    )


def test_postprocessing_changes_the_output(core):
    def describe(ppp: PrePostProcessor) -> None:
        ppp.output("y").model().set_layout("NCHW")
        ppp.output("y").postprocess().convert_layout("NHWC").convert_element_type("i32")
        ppp.output("y").tensor().set_element_type(hetero.Type.i64)

    source = build_model((1, 3, 4, 5), describe)
    assert (source.outputs[0].name, source.outputs[0].layout) == ("y", "NHWC")
    x = picture((1, 3, 4, 5), np.float32)
    output = run_on_devices(core, source, x)
    assert output.dtype == np.int64
    np.testing.assert_array_equal(output, x.transpose(0, 2, 3, 1).astype(np.int64))


def test_build_does_not_change_the_model(core):
    source = core.read_model(model((1, 3, 10, 22)))
    before, digest = source.to_bytes(), source.content_hash
    ppp = PrePostProcessor(source)
    camera(ppp, hetero)
    first, second = ppp.build(), ppp.build()
    assert (source.to_bytes(), source.content_hash) == (before, digest)
    assert first.content_hash == second.content_hash != digest
