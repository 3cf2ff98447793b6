"""PrePostProcessor compared with OpenVINO's: calls, ports and results."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import hetero
from tests.support.preprocess_cases import CASES, Case, Describe, camera, model, picture

openvino = pytest.importorskip("openvino", reason="the oracle is OpenVINO: pip install openvino")

#: On processors with bfloat16, OpenVINO computes in bfloat16 by default.
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


class OpenVINO:
    """The names that a test case uses, from OpenVINO."""

    def __init__(self) -> None:
        from openvino import preprocess

        self.Type, self.Layout = openvino.Type, openvino.Layout
        self.ColorFormat = preprocess.ColorFormat
        self.ResizeAlgorithm = preprocess.ResizeAlgorithm
        self.PaddingMode = preprocess.PaddingMode
        self.PrePostProcessor = preprocess.PrePostProcessor


def expected(case: Case) -> tuple[Any, Any]:
    """Return OpenVINO's model with the steps in it, and its compiled form."""
    names = OpenVINO()
    core = openvino.Core()
    source = core.read_model(model(case.takes).SerializeToString())
    ppp = names.PrePostProcessor(source)
    case.describe(ppp, names)
    model_with_steps = ppp.build()
    return model_with_steps, core.compile_model(model_with_steps, "CPU", EXACT)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_ports_and_results_equal_openvinos(case):
    theirs, compiled = expected(case)
    ppp = hetero.PrePostProcessor(model(case.takes))
    case.describe(ppp, hetero)
    ours = ppp.build()
    assert [port.name for port in ours.inputs] == [port.any_name for port in theirs.inputs]
    assert [port.shape for port in ours.inputs] == [tuple(port.shape) for port in theirs.inputs]
    inputs = case.inputs()
    expected_output = compiled(inputs)[0]
    with hetero.Core("inprocess") as core:
        for device in ("CPU", "ORT"):
            output = core.compile_model(ours, device)(inputs)[0]
            assert output.dtype == expected_output.dtype
            np.testing.assert_allclose(output, expected_output, rtol=1e-4, atol=case.atol)
            # Few sums round differently; an error would change many values.
            assert np.mean(np.abs(output.astype(float) - expected_output) > 0.01) < 0.02


def test_twenty_images_equal_openvinos_on_two_devices():
    case = next(case for case in CASES if case.describe is camera)
    _, compiled = expected(case)
    ppp = hetero.PrePostProcessor(model(case.takes))
    case.describe(ppp, hetero)
    model_with_steps = ppp.build()
    before = [name for name in model_with_steps.node_names if name != "model"]
    with hetero.Core("inprocess") as core:
        compiled_on_two = core.compile_model(
            model_with_steps,
            "HETERO:ORT,CPU",
            affinity=dict.fromkeys(before, "CPU") | {"model": "ORT"},
        )
        assert [s.device for s in compiled_on_two.subgraphs] == ["CPU", "ORT"]
        for seed in range(20):
            x = picture((1, 13, 18, 3), seed=seed)
            np.testing.assert_allclose(compiled_on_two(x)[0], compiled(x)[0], rtol=1e-4, atol=1e-4)


def random_steps(seed: int) -> tuple[tuple[int, ...], Describe]:
    """Return the shape of a model and random steps before it, of which not all are valid."""
    rng = random.Random(seed)

    def layout() -> str:
        return "".join(rng.sample("NCHW", 4))

    model_layout, tensor_layout = layout(), rng.choice([layout(), "NHWC", None])
    sizes = {"N": 2, "C": 3, "H": rng.choice([4, 6]), "W": rng.choice([4, 10])}
    # OpenVINO converts colors of other layouts as if they were NHWC.
    color = rng.choice(["BGR", "RGBX", "NV12_SINGLE_PLANE", "I420_SINGLE_PLANE"])
    converts_color = tensor_layout == "NHWC" and rng.random() < 0.7
    kind, has_resize = rng.choice(["u8", "f32"]), tensor_layout is not None and rng.random() < 0.6
    algorithms = ["RESIZE_LINEAR", "RESIZE_CUBIC", "RESIZE_NEAREST"]
    steps = [
        rng.choice(
            [
                ("mean", [[1.0, 20.0, 30.0]]),
                ("scale", [3.0]),
                ("reverse_channels", []),
                ("convert_layout", [layout()]),
                ("convert_layout", [rng.sample(range(4), 4)]),
                ("pad", [[0, 1, 0, 0], [0, 0, 2, 0], 2.0, "SYMMETRIC"]),
                ("crop", [[0, 0, 0, 0], [9, 9, rng.choice([-1, 99]), 99]]),
                ("resize", [rng.choice(algorithms), 5, 7]),
            ]
        )
        for _ in range(rng.randint(0, 3))
    ]

    def describe(ppp: Any, names: Any) -> None:
        tensor = ppp.input().tensor().set_element_type(getattr(names.Type, kind))
        if tensor_layout:
            tensor.set_layout(names.Layout(tensor_layout))
        if converts_color:
            tensor.set_color_format(getattr(names.ColorFormat, color))
        if has_resize:
            tensor.set_spatial_static_shape(12, 8)
        preprocess = ppp.input().preprocess()
        if converts_color:
            preprocess.convert_color(names.ColorFormat.RGB)
        preprocess.convert_element_type(names.Type.f32)
        for step, arguments in steps:
            enumerations = (names.ResizeAlgorithm, names.PaddingMode)
            getattr(preprocess, step)(
                *(
                    next((getattr(e, x) for e in enumerations if hasattr(e, x)), names.Layout)
                    if isinstance(x, str) and len(x) > 4
                    else names.Layout(x)
                    if isinstance(x, str)
                    else x
                    for x in arguments
                )
            )
        if has_resize:
            preprocess.resize(names.ResizeAlgorithm.RESIZE_LINEAR)
        ppp.input().model().set_layout(names.Layout(model_layout))

    return tuple(sizes[letter] for letter in model_layout), describe


@pytest.mark.slow
def test_random_steps_equal_openvinos_or_are_refused():
    num_equal, core = 0, hetero.Core("inprocess")
    for seed in range(150):
        takes, describe = random_steps(seed)
        case = Case(f"seed {seed}", takes, describe, (), np.float32, 1.0)
        try:
            theirs, compiled = expected(case)
        except RuntimeError:
            theirs = None
        ppp = hetero.PrePostProcessor(model(takes))
        try:
            describe(ppp, hetero)
            ours = ppp.build()
        except hetero.ArgumentError:
            continue  # OpenVINO guesses if steps mix positions and names of dimensions
        if theirs is None:
            continue
        assert [port.shape for port in ours.inputs] == [tuple(i.shape) for i in theirs.inputs], seed
        x = picture(ours.inputs[0].shape, ours.inputs[0].dtype, seed)
        output, expected_output = core.compile_model(ours, "CPU")(x)[0], compiled(x)[0]
        np.testing.assert_allclose(
            output, expected_output, rtol=1e-3, atol=case.atol, err_msg=f"seed {seed}"
        )
        num_equal += 1
    core.close()
    assert num_equal > 30


def test_layout_in_the_model_is_used():
    """Also the layout in a model that another processor built."""
    names, data = OpenVINO(), model([1, 3, 4, 6]).SerializeToString()
    source = openvino.Core().read_model(data)
    source.input(0).get_node().set_layout(names.Layout("NCHW"))
    ppp = names.PrePostProcessor(source)
    ppp.input().tensor().set_shape([1, 8, 10, 3]).set_layout(names.Layout("NHWC"))
    ppp.input().preprocess().resize(names.ResizeAlgorithm.RESIZE_LINEAR)
    image = np.random.default_rng(0).random((1, 8, 10, 3), np.float32)
    expected_output = openvino.Core().compile_model(ppp.build(), "CPU", EXACT)(image)[0]

    ppp_layout = hetero.PrePostProcessor(model([1, 3, 4, 6]))
    ppp_layout.input().model().set_layout("NCHW")
    ppp_layout.input().tensor().set_layout("NCHW")
    ppp_model = ppp_layout.build()
    assert ppp_model.input().layout == "NCHW"
    ppp_resize = hetero.PrePostProcessor(ppp_model)
    ppp_resize.input().tensor().set_shape([1, 8, 10, 3]).set_layout("NHWC")
    ppp_resize.input().preprocess().resize(hetero.ResizeAlgorithm.RESIZE_LINEAR)
    with hetero.Core("inprocess") as core:
        output = core.compile_model(ppp_resize.build(), "HETERO:ORT,CPU")(image)[0]
    np.testing.assert_allclose(output, expected_output, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("color", ["RGB", "BGR"])
def test_image_without_a_layout_is_nhwc(color):
    names, data = OpenVINO(), model([1, 4, 6, 1]).SerializeToString()
    image = np.random.default_rng(0).random((1, 4, 6, 3), np.float32)
    outputs = []
    with hetero.Core("inprocess") as core:
        for module, source, target_core, config in (
            (hetero, model([1, 4, 6, 1]), core, {}),
            (names, openvino.Core().read_model(data), openvino.Core(), EXACT),
        ):
            ppp = module.PrePostProcessor(source)
            ppp.input().tensor().set_color_format(getattr(module.ColorFormat, color))
            ppp.input().preprocess().convert_color(module.ColorFormat.GRAY)
            outputs.append(target_core.compile_model(ppp.build(), "CPU", config)(image)[0])
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("color", "shape"), [("NV12_SINGLE_PLANE", (1, 12, 10, 1)), ("BGRX", (1, 8, 10, 4))]
)
def test_image_is_nhwc_although_the_model_has_a_layout(color, shape):
    names, data = OpenVINO(), model([1, 3, 8, 10]).SerializeToString()
    image = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    outputs = []
    with hetero.Core("inprocess") as core:
        for module, source, target_core, config in (
            (hetero, model([1, 3, 8, 10]), core, {}),
            (names, openvino.Core().read_model(data), openvino.Core(), EXACT),
        ):
            ppp = module.PrePostProcessor(source)
            tensor = ppp.input().tensor().set_element_type(module.Type.u8)
            tensor.set_color_format(getattr(module.ColorFormat, color))
            steps = ppp.input().preprocess().convert_color(module.ColorFormat.RGB)
            steps.convert_element_type(module.Type.f32)
            ppp.input().model().set_layout(module.Layout("NCHW"))
            outputs.append(target_core.compile_model(ppp.build(), "CPU", config)(image)[0])
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=2)


@pytest.mark.parametrize("color", ["NV12_SINGLE_PLANE", "I420_SINGLE_PLANE"])
def test_image_of_open_size_is_converted_from_planes(color):
    names, data = OpenVINO(), model([1, 3, 8, 10]).SerializeToString()
    image = np.random.default_rng(0).integers(0, 256, (1, 24, 20, 1)).astype(np.uint8)
    outputs = []
    with hetero.Core("inprocess") as core:
        for module, source, target_core, config in (
            (hetero, model([1, 3, 8, 10]), core, {}),
            (names, openvino.Core().read_model(data), openvino.Core(), EXACT),
        ):
            ppp = module.PrePostProcessor(source)
            tensor = ppp.input().tensor().set_element_type(module.Type.u8)
            tensor.set_color_format(getattr(module.ColorFormat, color)).set_spatial_dynamic_shape()
            steps = ppp.input().preprocess().convert_color(module.ColorFormat.RGB)
            steps.resize(module.ResizeAlgorithm.RESIZE_LINEAR)
            steps.convert_element_type(module.Type.f32)
            ppp.input().model().set_layout(module.Layout("NCHW"))
            outputs.append(target_core.compile_model(ppp.build(), "CPU", config)(image)[0])
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=2)
