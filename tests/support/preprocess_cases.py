"""Preprocessing cases for both OpenVINO's API and the project's face of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

#: Function of a PrePostProcessor and the namespace of its enumerations; it describes the ports.
Describe = Callable[[Any, Any], None]


@dataclass(frozen=True)
class Case:
    """A model's input shape, the preprocessing steps, and the shapes of the input tensors."""

    name: str
    takes: tuple[int | str, ...]
    describe: Describe
    shapes: tuple[tuple[int, ...], ...]
    dtype: type = np.uint8
    #: Maximum difference of outputs: 1 if a sum may be rounded up or down.
    atol: float = 1e-3

    def __repr__(self) -> str:
        return self.name

    def inputs(self, seed: int = 0) -> list[np.ndarray]:
        return [picture(shape, self.dtype, seed + i) for i, shape in enumerate(self.shapes)]


def picture(shape: tuple[int, ...], dtype: type = np.uint8, seed: int = 0) -> np.ndarray:
    """Return a picture of edges, gradients and noise, with values from 0 to 255."""
    rng = np.random.default_rng(seed)
    waves = sum(
        np.sin(np.arange(size) * rng.uniform(0.05, 1.2) + rng.uniform(0, 6)).reshape(
            [-1 if i == axis else 1 for i in range(len(shape))]
        )
        for axis, size in enumerate(shape)
    )
    noise = rng.normal(0, 0.3, shape)
    step = np.where(rng.random(shape[-2:]) > 0.5, 0.5, -0.5)
    return np.clip(128 + 60 * (waves + noise + step), 0, 255).astype(dtype)


def model(shape: Sequence[int | str | None], opset: int = 17) -> onnx.ModelProto:
    """Return y = x * 1."""
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", "y")]
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    node = helper.make_node("Mul", ["x", "one"], ["y"], "model")
    graph = helper.make_graph([node], "pictures", ports[:1], ports[1:], [one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def camera(ppp: Any, names: Any) -> None:
    """Convert BGR bytes of another size to normalised floats."""
    ppp.input().tensor().set_element_type(names.Type.u8).set_layout(names.Layout("NHWC"))
    ppp.input().tensor().set_color_format(names.ColorFormat.BGR).set_spatial_static_shape(13, 18)
    steps = ppp.input().preprocess().convert_element_type(names.Type.f32)
    steps.convert_color(names.ColorFormat.RGB).resize(names.ResizeAlgorithm.RESIZE_LINEAR)
    steps.mean([123.675, 116.28, 103.53]).scale([58.395, 57.12, 57.375])
    ppp.input().model().set_layout(names.Layout("NCHW"))


def resized(algorithm: str, early: bool, layout: str = "NHWC") -> Describe:
    def describe(ppp: Any, names: Any) -> None:
        tensor = ppp.input().tensor().set_element_type(names.Type.u8)
        tensor.set_layout(names.Layout(layout)).set_spatial_static_shape(13, 18)
        steps = ppp.input().preprocess()
        if not early:
            steps.convert_element_type(names.Type.f32)
        steps.resize(getattr(names.ResizeAlgorithm, algorithm))
        ppp.input().model().set_layout(names.Layout("NCHW"))

    return describe


def sized(ppp: Any, names: Any) -> None:
    """Resize to an explicit size, then crop to the model's."""
    tensor = ppp.input().tensor().set_shape([1, 13, 18, 3])
    tensor.set_layout(names.Layout("NHWC")).set_element_type(names.Type.u8)
    steps = ppp.input().preprocess().convert_element_type(names.Type.f32)
    steps.resize(names.ResizeAlgorithm.RESIZE_LINEAR, 14, 22).crop([0, 2, -21, 0], [1, -2, 21, 3])
    ppp.input().model().set_layout(names.Layout("NCHW"))


def coloured(source: str, target: str, *planes: str, floats: bool = False) -> Describe:
    def describe(ppp: Any, names: Any) -> None:
        tensor = ppp.input().tensor().set_layout(names.Layout("NHWC"))
        tensor.set_element_type(names.Type.f32 if floats else names.Type.u8)
        tensor.set_color_format(getattr(names.ColorFormat, source), list(planes))
        ppp.input().preprocess().convert_color(getattr(names.ColorFormat, target))
        ppp.input().model().set_layout(names.Layout("NCHW"))

    return describe


def padded(mode: str, begin: list[int], end: list[int]) -> Describe:
    def describe(ppp: Any, names: Any) -> None:
        ppp.input().tensor().set_shape([1, 6, 8, 3]).set_layout(names.Layout("NHWC"))
        ppp.input().preprocess().pad(begin, end, 7.5, getattr(names.PaddingMode, mode))
        ppp.input().model().set_layout(names.Layout("NHWC"))

    return describe


def positions(ppp: Any, names: Any) -> None:
    """Convert the layout by axis positions."""
    ppp.input().preprocess().convert_layout([0, 3, 1, 2])


def by_name(ppp: Any, names: Any) -> None:
    """Convert the layout by name between other steps."""
    ppp.input().tensor().set_layout(names.Layout("NHWC"))
    ppp.input().preprocess().convert_layout(names.Layout("NCHW")).mean([1.0, 2.0, 3.0])
    ppp.input().model().set_layout(names.Layout("NCHW"))


def turned(ppp: Any, names: Any) -> None:
    """Reverse the channels for a channels-first model."""
    ppp.input().tensor().set_layout(names.Layout("N...C"))
    ppp.input().preprocess().reverse_channels().scale(2.0)
    ppp.input().model().set_layout(names.Layout("NC??"))


def without_batch(ppp: Any, names: Any) -> None:
    """Pass a picture without a batch axis to a model with one."""
    ppp.input().tensor().set_layout(names.Layout("HWC"))
    ppp.input().model().set_layout(names.Layout("NCHW"))


def behind(ppp: Any, names: Any) -> None:
    """Postprocess with named layouts and types."""
    ppp.output().model().set_layout(names.Layout("NCHW"))
    ppp.output().postprocess().convert_element_type(names.Type.i32)
    ppp.output().tensor().set_layout(names.Layout("NHWC")).set_element_type(names.Type.i64)


def behind_by_position(ppp: Any, names: Any) -> None:
    """Postprocess with a layout by axis positions."""
    ppp.output().postprocess().convert_layout([0, 2, 3, 1])


_TALL = (1, 13, 18, 3)
_RESIZES = [
    Case(
        f"{algorithm} {'of bytes' if early else 'of floats'} {takes[2]}x{takes[3]} {layout}",
        takes,
        resized(algorithm, early, layout),
        (_TALL if layout == "NHWC" else (1, 3, 13, 18),),
        atol=1.0 if early else 2e-3,
    )
    for algorithm in ("RESIZE_LINEAR", "RESIZE_CUBIC", "RESIZE_NEAREST")
    for takes in ((1, 3, 10, 22), (1, 3, 29, 7))
    for early in (True, False)
    for layout in ("NHWC", "NCHW")
]
_COLOURS = [
    Case(
        f"{source} to {target} {'floats' if floats else 'bytes'}",
        (1, 1 if target == "GRAY" else 3, 10, 12),
        coloured(source, target, *planes, floats=floats),
        shapes,
        np.float32 if floats else np.uint8,
        2e-3 if floats else 1.0,
    )
    for source, planes, shapes in (
        ("RGB", (), ((1, 10, 12, 3),)),
        ("BGR", (), ((1, 10, 12, 3),)),
        ("RGBX", (), ((1, 10, 12, 4),)),
        ("BGRX", (), ((1, 10, 12, 4),)),
        ("NV12_SINGLE_PLANE", (), ((1, 15, 12, 1),)),
        ("I420_SINGLE_PLANE", (), ((1, 15, 12, 1),)),
        ("NV12_TWO_PLANES", ("y", "uv"), ((1, 10, 12, 1), (1, 5, 6, 2))),
        ("I420_THREE_PLANES", ("y", "u", "v"), ((1, 10, 12, 1), (1, 5, 6, 1), (1, 5, 6, 1))),
    )
    for target in ("RGB", "BGR", "GRAY")
    for floats in (False, True)
    if not (source in ("RGBX", "BGRX") and target == "GRAY")  # OpenVINO has no such conversion
]
_PADS = [
    Case(f"{mode} {begin} {end}", takes, padded(mode, begin, end), ((1, 6, 8, 3),), np.float32)
    for mode, begin, end, takes in (
        ("CONSTANT", [0, 1, 2, 0], [0, 3, 0, 0], (1, 10, 10, 3)),
        ("CONSTANT", [0, -1, 2, 0], [0, 0, -3, 0], (1, 5, 7, 3)),
        ("REFLECT", [0, 1, 2, 0], [0, 3, 1, 0], (1, 10, 11, 3)),
        ("SYMMETRIC", [0, 1, 2, 0], [0, 3, 8, 0], (1, 10, 18, 3)),
    )
]
CASES = (
    Case("camera", (1, 3, 10, 22), camera, (_TALL,)),
    Case("sized", (1, 3, 10, 20), sized, (_TALL,)),
    *_RESIZES,
    *_COLOURS,
    *_PADS,
    Case("positions", (1, 3, 4, 5), positions, ((1, 4, 5, 3),), np.float32),
    Case("by name", (1, 3, 4, 5), by_name, ((1, 4, 5, 3),), np.float32),
    Case("turned", (2, 3, 4, 5), turned, ((2, 4, 5, 3),), np.float32),
    Case("without batch", (1, 3, 4, 5), without_batch, ((4, 5, 3),), np.float32),
    Case("behind", (1, 3, 4, 5), behind, ((1, 3, 4, 5),), np.float32),
    Case("behind by position", (1, 3, 4, 5), behind_by_position, ((1, 3, 4, 5),), np.float32),
)
