"""PrePostProcessor with OpenVINO's API: describes the user's tensors and the steps to add."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, Self, TypeVar

from hetero.devices.errors import ArgumentError, UnsupportedOperationError
from hetero.devices.model.element_type import Type
from hetero.devices.model.model import Model
from hetero.devices.model.reader import Source, read_model
from hetero.devices.model.tensor_spec import Dimension, TensorSpec
from hetero.devices.model.unused_result import warn_if_unused
from hetero.devices.request.tensor import Tensor
from hetero.faces.openvino.preprocess.build_model import Port, build
from hetero.faces.openvino.preprocess.color_format import PLANES, ColorFormat
from hetero.faces.openvino.preprocess.description import describe
from hetero.faces.openvino.preprocess.emitter import Flow
from hetero.faces.openvino.preprocess.image_steps import ResizeAlgorithm, convert_color, resize
from hetero.faces.openvino.preprocess.layout import Layout
from hetero.faces.openvino.preprocess.tensor_steps import (
    Order,
    PaddingMode,
    arithmetic,
    convert_element_type,
    crop,
    pad,
    reverse_channels,
)

Member = TypeVar("Member", ColorFormat, ResizeAlgorithm, PaddingMode)


class PrePostProcessor:
    """Builder that adds preprocessing and postprocessing to a model, as ONNX nodes.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or Model
        The model. `build` changes a model of `hetero.openvino`, and otherwise returns a new one.

    Notes
    -----
    Steps run in the order in which they were added. After the last one, the element type and then
    the layout are converted to those of the model, if they differ.
    """

    def __init__(self, model: Source | Model) -> None:
        #: A model that changes in place.
        self._target: Any = model if hasattr(model, "replace_contents") else None
        self._model = read_model(model)
        self._inputs: dict[str, Port] = {}
        self._outputs: dict[str, Port] = {}

    def __str__(self) -> str:
        return describe(self._model, self._inputs, self._outputs)

    def input(
        self,
        key: int | str | TensorSpec | None = None,
        *,
        tensor_name: str | None = None,
        input_index: int | None = None,
    ) -> InputInfo:
        """Return the description of an input, by position or name, by default of the only one.

        Raises
        ------
        TensorNameError
            If there is no such input, or not exactly one.
        """
        port = self._model.input(key, tensor_name=tensor_name, index=input_index)
        return InputInfo(self._inputs.setdefault(port.name, _new_port(port)))

    def output(
        self,
        key: int | str | TensorSpec | None = None,
        *,
        tensor_name: str | None = None,
        output_index: int | None = None,
    ) -> OutputInfo:
        """Return the description of an output, by position or name, by default of the only one."""
        port = self._model.output(key, tensor_name=tensor_name, index=output_index)
        return OutputInfo(self._outputs.setdefault(port.name, _new_port(port)))

    def build(self) -> Model:
        """Return the model with the steps in it.

        Its ports have the types, shapes and layouts of the user's tensors. The opset is upgraded
        if a step needs a newer one.

        Raises
        ------
        ArgumentError
            If steps contradict each other, the tensor or the model.
        ModelError
            If the opset has to be upgraded and cannot be.
        """
        model = build(self._model, self._inputs, self._outputs)
        if self._target is not None:
            changed_model: Model = self._target.replace_contents(model)
            return changed_model
        warn_if_unused("model = processor.build()")
        return model


class _Info:
    """Base of the descriptions of a port."""

    def __init__(self, port: Port) -> None:
        self._port = port


class _LayoutInfo(_Info):
    """Description that includes a layout."""

    _side: str

    def set_layout(self, layout: str | Layout) -> Self:
        """Set the layout, such as ``NHWC``.

        Parameters
        ----------
        layout : str or Layout
            One letter for each dimension, ``?`` for any, ``...`` for several.
        """
        setattr(self._port, f"{self._side}_layout", Layout(layout))
        return self


class InputModelInfo(_LayoutInfo):
    """Description of an input of the model."""

    _side = "model"


class OutputModelInfo(InputModelInfo):
    """Description of an output of the model."""


class OutputTensorInfo(_LayoutInfo):
    """Description of the user's output tensor."""

    _side = "tensor"

    def set_element_type(self, type: Any) -> Self:
        """Set the element type: ``u8``, ``uint8``, `Type.u8` or ``numpy.uint8``."""
        self._port.element_type = Type(type)
        return self


class InputTensorInfo(OutputTensorInfo):
    """Description of the user's input tensor: element type, shape and color format."""

    def set_shape(self, shape: Sequence[Dimension]) -> Self:
        """Set the shape; an open dimension is None, -1 or a symbol."""
        self._port.shape = tuple(None if d == -1 else d for d in shape)
        return self

    def set_spatial_static_shape(self, height: int, width: int) -> Self:
        """Set height and width if they differ from the model's."""
        self._port.spatial = (height, width)
        return self

    def set_spatial_dynamic_shape(self) -> Self:
        """Make height and width dynamic, so that each request can have its own."""
        self._port.spatial = (None, None)
        return self

    def set_from(self, tensor: Any) -> Self:
        """Set the element type and shape to those of an array or a `Tensor`."""
        kind = tensor.element_type if isinstance(tensor, Tensor) else tensor.dtype
        self._port.element_type = Type(kind)
        return self.set_shape(tensor.shape)

    def set_memory_type(self, memory_type: str) -> NoReturn:
        """Raise UnsupportedOperationError: requests accept tensors of any memory without it."""
        raise UnsupportedOperationError(
            f"input {self._port.spec.name!r}: set_memory_type({memory_type!r}) is not needed; "
            "requests accept host arrays and remote tensors. Remove the call."
        )

    def set_color_format(self, format: ColorFormat | str, sub_names: Sequence[str] = ()) -> Self:
        """Set the color format.

        Parameters
        ----------
        format : ColorFormat or str
            The format.
        sub_names : sequence of str
            For an image in planes: suffix of each plane's input name, by default ``y`` and ``uv``,
            or ``y``, ``u`` and ``v``.
        """
        color = _member(ColorFormat, format)
        count = len(PLANES.get(color, (1,)))
        names = tuple(sub_names) or {1: (), 2: ("y", "uv"), 3: ("y", "u", "v")}[count]
        if len(set(names)) != (count if count > 1 else 0):
            raise ArgumentError(
                f"input {self._port.spec.name!r}: {color.name} has {count} planes; expected one "
                f"name for each or none, got {list(names)}."
            )
        self._port.color, self._port.planes = color, names
        return self


class PostProcessSteps(_Info):
    """Ordered postprocessing steps of an output."""

    def convert_element_type(self, type: Any = None) -> Self:
        """Convert the elements, by default to the type of the user's tensor or of the model."""
        target_type = self._element_type_before_steps() if type is None else Type(type)
        return self._add(convert_element_type, element_type=target_type)

    def convert_layout(self, layout: str | Layout | Sequence[int]) -> Self:
        """Permute the dimensions to a layout, or to an order such as ``[0, 3, 1, 2]``."""
        if isinstance(layout, str):
            return self._add(Order(Layout(layout)))
        return self._add(Order(tuple(int(i) for i in layout)))

    def custom(self, operation: Any) -> NoReturn:
        """Raise UnsupportedOperationError: steps are ONNX nodes, not OpenVINO operations."""
        raise UnsupportedOperationError(
            f"{self._port.spec.name!r}: custom({operation!r}) is not supported; write the step as "
            "ONNX nodes and merge it into the model with onnx.compose.merge_models."
        )

    def _element_type_before_steps(self) -> str:
        return self._port.element_type or self._port.spec.element_type

    def _add(self, step: Callable[..., Flow], **options: Any) -> Self:
        self._port.steps.append(partial(step, **options) if options else step)
        return self


class PreProcessSteps(PostProcessSteps):
    """Ordered preprocessing steps of an input."""

    def _element_type_before_steps(self) -> str:
        return self._port.spec.element_type

    def mean(self, value: float | Sequence[float]) -> Self:
        """Subtract a number, or one for each channel."""
        return self._add(arithmetic, op_type="Sub", numbers=_numbers(value))

    def scale(self, value: float | Sequence[float]) -> Self:
        """Divide by a number, or by one for each channel."""
        numbers = _numbers(value)
        if 0.0 in numbers:
            raise ArgumentError(
                f"input {self._port.spec.name!r}: scale: expected numbers other than 0, got "
                f"{value}."
            )
        return self._add(arithmetic, op_type="Div", numbers=numbers)

    def resize(
        self,
        alg: ResizeAlgorithm | str,
        dst_height: int | None = None,
        dst_width: int | None = None,
    ) -> Self:
        """Resize height and width, by default to those of the model."""
        algorithm = _member(ResizeAlgorithm, alg)
        return self._add(resize, algorithm=algorithm, height=dst_height, width=dst_width)

    def convert_color(self, dst_format: ColorFormat | str) -> Self:
        """Convert the colors to RGB, BGR or GRAY."""
        return self._add(convert_color, color=_member(ColorFormat, dst_format))

    def crop(self, begin: Sequence[int], end: Sequence[int]) -> Self:
        """Crop each dimension to ``[begin, end)``; negative numbers count from its end."""
        return self._add(crop, begin=tuple(begin), end=tuple(end))

    def pad(
        self,
        pads_begin: Sequence[int],
        pads_end: Sequence[int],
        value: float | Sequence[float] = 0.0,
        mode: PaddingMode | str = PaddingMode.CONSTANT,
    ) -> Self:
        """Pad each dimension before and after; negative numbers crop it."""
        numbers = _numbers(value)
        if len(numbers) != 1:
            raise ArgumentError(
                f"input {self._port.spec.name!r}: pad: expected one number for the border, got "
                f"{len(numbers)}."
            )
        begin, end, padding_mode = tuple(pads_begin), tuple(pads_end), _member(PaddingMode, mode)
        return self._add(pad, begin=begin, end=end, number=numbers[0], mode=padding_mode)

    def reverse_channels(self) -> Self:
        """Reverse the order of the channels, for example from RGB to BGR."""
        return self._add(reverse_channels)


class OutputInfo(_Info):
    """Description of an output: the user's tensor, the steps, and the model's output."""

    def tensor(self) -> OutputTensorInfo:
        """Return the description of the user's tensor."""
        return OutputTensorInfo(self._port)

    def postprocess(self) -> PostProcessSteps:
        """Return the postprocessing steps."""
        return PostProcessSteps(self._port)

    def model(self) -> OutputModelInfo:
        """Return the description of the model's output."""
        return OutputModelInfo(self._port)


class InputInfo(_Info):
    """Description of an input: the user's tensor, the steps, and the model's input."""

    def tensor(self) -> InputTensorInfo:
        """Return the description of the user's tensor."""
        return InputTensorInfo(self._port)

    def preprocess(self) -> PreProcessSteps:
        """Return the preprocessing steps."""
        return PreProcessSteps(self._port)

    def model(self) -> InputModelInfo:
        """Return the description of the model's input."""
        return InputModelInfo(self._port)


def _new_port(port: TensorSpec) -> Port:
    """Return a port with the layout from the model's metadata."""
    return Port(port, model_layout=Layout(port.layout) if port.layout else None)


def _numbers(value: float | Sequence[float]) -> tuple[float, ...]:
    try:
        return tuple(map(float, value)) if isinstance(value, Sequence) else (float(value),)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"got {value!r}, expected a number, or a list with one for each channel."
        ) from error


def _member(kind: type[Member], value: Member | str) -> Member:
    """Return an enum member, which may be passed by its name."""
    if isinstance(value, kind):
        return value
    members = {name.removeprefix("RESIZE_"): member for name, member in kind.__members__.items()}
    name = str(value).upper().removeprefix("RESIZE_")
    if name not in members:
        raise ArgumentError(f"{value!r}: expected one of {', '.join(kind.__members__)}.")
    return members[name]
