"""PrePostProcessor: what a user's tensors are, and what is done to them, with OpenVINO's names."""

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
from hetero.faces.openvino.preprocess.build import Port, build
from hetero.faces.openvino.preprocess.colors import PLANES, ColorFormat
from hetero.faces.openvino.preprocess.emit import Flow
from hetero.faces.openvino.preprocess.layout import Layout
from hetero.faces.openvino.preprocess.pictures import ResizeAlgorithm, convert_color, resize
from hetero.faces.openvino.preprocess.steps import (
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
    """Writes preprocessing and postprocessing into a model, as ONNX nodes.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or Model
        The model; it stays as it is, and `build` returns another.

    Notes
    -----
    Steps run in the order in which they are given. After them the element type and then the layout
    become what the model takes, where they are not yet.
    """

    def __init__(self, model: Source | Model) -> None:
        self._model = read_model(model)
        self._inputs: dict[str, Port] = {}
        self._outputs: dict[str, Port] = {}

    def input(
        self,
        key: int | str | TensorSpec | None = None,
        *,
        tensor_name: str | None = None,
        input_index: int | None = None,
    ) -> InputInfo:
        """Return what is said of an input: by position or name, or of the only one.

        Raises
        ------
        TensorNameError
            There is no such input, or not exactly one.
        """
        port = self._model.input(key, tensor_name=tensor_name, index=input_index)
        return InputInfo(self._inputs.setdefault(port.name, _stated(port)))

    def output(
        self,
        key: int | str | TensorSpec | None = None,
        *,
        tensor_name: str | None = None,
        output_index: int | None = None,
    ) -> OutputInfo:
        """Return what is said of an output: by position or name, or of the only one."""
        port = self._model.output(key, tensor_name=tensor_name, index=output_index)
        return OutputInfo(self._outputs.setdefault(port.name, _stated(port)))

    def build(self) -> Model:
        """Return the model with these steps in it.

        Its ports are what the user's tensors are. The opset is raised where a step needs a newer
        one than the model has.

        Raises
        ------
        ArgumentError
            Steps that contradict each other, the tensor or the model; it says what to write.
        ModelError
            A model whose opset would have to be raised and cannot be.
        """
        built = build(self._model, self._inputs, self._outputs)
        warn_if_unused("model = processor.build()")
        return built


class _Info:
    """One part of what is said of a port."""

    def __init__(self, port: Port) -> None:
        self._port = port


class _Layouted(_Info):
    """A part that has a layout."""

    _side: str

    def set_layout(self, layout: str | Layout) -> Self:
        """Say what each dimension means, as ``NHWC``.

        Parameters
        ----------
        layout : str or Layout
            One letter a dimension, ``?`` for any, ``...`` for several.
        """
        setattr(self._port, f"{self._side}_layout", Layout(layout))
        return self


class InputModelInfo(_Layouted):
    """What the model takes."""

    _side = "model"


class OutputModelInfo(InputModelInfo):
    """What the model gives."""


class OutputTensorInfo(_Layouted):
    """What the user's tensor is."""

    _side = "tensor"

    def set_element_type(self, type: Any) -> Self:
        """Say the element type: ``u8``, ``uint8``, `Type.u8` or ``numpy.uint8``."""
        self._port.element_type = Type(type)
        return self


class InputTensorInfo(OutputTensorInfo):
    """What the user's tensor is: its elements, dimensions and colours."""

    def set_shape(self, shape: Sequence[Dimension]) -> Self:
        """Say the whole shape; a dimension that is open is None, -1 or a symbol."""
        self._port.shape = tuple(None if d == -1 else d for d in shape)
        return self

    def set_spatial_static_shape(self, height: int, width: int) -> Self:
        """Say height and width, where they are not the model's."""
        self._port.spatial = (height, width)
        return self

    def set_spatial_dynamic_shape(self) -> Self:
        """Leave height and width open: each request has its own."""
        self._port.spatial = (None, None)
        return self

    def set_from(self, tensor: Any) -> Self:
        """Take element type and shape from an array or a `Tensor`."""
        kind = tensor.element_type if isinstance(tensor, Tensor) else tensor.dtype
        self._port.element_type = Type(kind)
        return self.set_shape(tensor.shape)

    def set_memory_type(self, memory_type: str) -> NoReturn:
        """Refused: a request takes tensors of any memory, the host's or a `RemoteTensor`."""
        raise UnsupportedOperationError(
            f"input {self._port.spec.name!r}: set_memory_type({memory_type!r}): leave it out; "
            "requests take arrays of the host and remote tensors alike."
        )

    def set_color_format(self, format: ColorFormat | str, sub_names: Sequence[str] = ()) -> Self:
        """Say what the channels are.

        Parameters
        ----------
        format : ColorFormat or str
            The format.
        sub_names : sequence of str
            For a picture in planes: what follows the input's name in the name of each, ``y`` and
            ``uv``, or ``y``, ``u`` and ``v``, by default.
        """
        color = _member(ColorFormat, format)
        count = len(PLANES.get(color, (1,)))
        names = tuple(sub_names) or {1: (), 2: ("y", "uv"), 3: ("y", "u", "v")}[count]
        if len(set(names)) != (count if count > 1 else 0):
            raise ArgumentError(
                f"input {self._port.spec.name!r}: {color.name} is in {count} planes; "
                f"got the names {list(names)}. Give one for each, or none."
            )
        self._port.color, self._port.planes = color, names
        return self


class PostProcessSteps(_Info):
    """What is done to an output, in this order."""

    def convert_element_type(self, type: Any = None) -> Self:
        """Convert the elements; without a type, to that of the model (or of the user's tensor)."""
        wanted = self._implied() if type is None else Type(type)
        return self._add(convert_element_type, element_type=wanted)

    def convert_layout(self, layout: str | Layout | Sequence[int]) -> Self:
        """Put the dimensions into the order of a layout, or of positions as ``[0, 3, 1, 2]``."""
        if isinstance(layout, str):
            return self._add(Order(Layout(layout)))
        return self._add(Order(tuple(int(i) for i in layout)))

    def custom(self, operation: Any) -> NoReturn:
        """Refused: steps are ONNX nodes, and a function of OpenVINO's graph makes none."""
        raise UnsupportedOperationError(
            f"{self._port.spec.name!r}: custom({operation!r}): write the step as ONNX nodes and "
            "join it to the model, as with onnx.compose.merge_models."
        )

    def _implied(self) -> str:
        return self._port.element_type or self._port.spec.element_type

    def _add(self, step: Callable[..., Flow], **options: Any) -> Self:
        self._port.steps.append(partial(step, **options) if options else step)
        return self


class PreProcessSteps(PostProcessSteps):
    """What is done to an input, in this order."""

    def _implied(self) -> str:
        return self._port.spec.element_type

    def mean(self, value: float | Sequence[float]) -> Self:
        """Subtract a number, or one of each channel."""
        return self._add(arithmetic, op_type="Sub", numbers=_numbers(value))

    def scale(self, value: float | Sequence[float]) -> Self:
        """Divide by a number, or by one of each channel."""
        numbers = _numbers(value)
        if 0.0 in numbers:
            raise ArgumentError(
                f"input {self._port.spec.name!r}: scale divides by {value}; none may be 0."
            )
        return self._add(arithmetic, op_type="Div", numbers=numbers)

    def resize(
        self,
        alg: ResizeAlgorithm | str,
        dst_height: int | None = None,
        dst_width: int | None = None,
    ) -> Self:
        """Resize height and width: to these, or to the model's own."""
        algorithm = _member(ResizeAlgorithm, alg)
        return self._add(resize, algorithm=algorithm, height=dst_height, width=dst_width)

    def convert_color(self, dst_format: ColorFormat | str) -> Self:
        """Convert the colours to RGB, BGR or GRAY."""
        return self._add(convert_color, color=_member(ColorFormat, dst_format))

    def crop(self, begin: Sequence[int], end: Sequence[int]) -> Self:
        """Take ``[begin, end)`` of each dimension; negative numbers count from its end."""
        return self._add(crop, begin=tuple(begin), end=tuple(end))

    def pad(
        self,
        pads_begin: Sequence[int],
        pads_end: Sequence[int],
        value: float | Sequence[float] = 0.0,
        mode: PaddingMode | str = PaddingMode.CONSTANT,
    ) -> Self:
        """Add elements before and after each dimension; negative numbers take some away."""
        numbers = _numbers(value)
        if len(numbers) != 1:
            raise ArgumentError(
                f"input {self._port.spec.name!r}: pad takes one number for the border, got "
                f"{len(numbers)}."
            )
        begin, end, chosen = tuple(pads_begin), tuple(pads_end), _member(PaddingMode, mode)
        return self._add(pad, begin=begin, end=end, number=numbers[0], mode=chosen)

    def reverse_channels(self) -> Self:
        """Turn the order of the channels round: RGB becomes BGR."""
        return self._add(reverse_channels)


class OutputInfo(_Info):
    """One output."""

    def tensor(self) -> OutputTensorInfo:
        """Return what the user's tensor is to be."""
        return OutputTensorInfo(self._port)

    def postprocess(self) -> PostProcessSteps:
        """Return the steps."""
        return PostProcessSteps(self._port)

    def model(self) -> OutputModelInfo:
        """Return what the model gives."""
        return OutputModelInfo(self._port)


class InputInfo(_Info):
    """One input."""

    def tensor(self) -> InputTensorInfo:
        """Return what the user's tensor is."""
        return InputTensorInfo(self._port)

    def preprocess(self) -> PreProcessSteps:
        """Return the steps."""
        return PreProcessSteps(self._port)

    def model(self) -> InputModelInfo:
        """Return what the model takes."""
        return InputModelInfo(self._port)


def _stated(port: TensorSpec) -> Port:
    """Return a port with the layout that the model itself states."""
    return Port(port, model_layout=Layout(port.layout) if port.layout else None)


def _numbers(value: float | Sequence[float]) -> tuple[float, ...]:
    try:
        return tuple(map(float, value)) if isinstance(value, Sequence) else (float(value),)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"got {value!r}; wanted a number, or a list of one for each channel."
        ) from error


def _member(kind: type[Member], given: Member | str) -> Member:
    """Return a member that is given as itself or by its name."""
    if isinstance(given, kind):
        return given
    found = {name.removeprefix("RESIZE_"): member for name, member in kind.__members__.items()}
    name = str(given).upper().removeprefix("RESIZE_")
    if name not in found:
        raise ArgumentError(f"{given!r}: wanted one of {', '.join(kind.__members__)}.")
    return found[name]
