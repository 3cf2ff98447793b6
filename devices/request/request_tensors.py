"""The input and output tensors of an infer request."""

from __future__ import annotations

import copy as copying
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from hetero.devices.errors import (
    ArgumentTypeError,
    TensorError,
    TensorNameError,
    TensorShapeError,
    TensorTypeError,
)
from hetero.devices.model.element_type import element_type_name
from hetero.devices.model.ports import find_port
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.remote_memory import RemoteTensor, ResidentTensor, is_remote
from hetero.devices.request.tensor import Tensor, empty_tensor
from hetero.devices.request.tensor_conversion import check_tensor, convert

#: Size from which targets choose the memory of a copy; smaller inputs are sent within messages.
_LARGE_NBYTES: Final = 64 * 1024


class RequestTensors:
    """Input and output tensors of a request, by port.

    `optional_inputs` are accessible by name only, and are part of the values of a run only if set.
    `copy_large` copies large inputs.
    """

    def __init__(
        self,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        optional_inputs: tuple[TensorSpec, ...] = (),
        copy_large: Callable[[np.ndarray], np.ndarray] = np.ndarray.copy,
    ) -> None:
        self._copy_large = copy_large
        self._inputs = inputs
        self._optional = {port.name: port for port in optional_inputs}
        self._outputs = outputs
        #: Input name -> the tensor that the user set or accessed, or the items of a batch. Runs use
        #: these tensors unless they get other values for the inputs.
        self._user_inputs: dict[str, Tensor | list[Any]] = {}
        #: Input name -> the last value that a run got as an argument, without a tensor yet.
        self._last_inputs: dict[str, Value] = {}
        #: Port, name, dtype and shape of each input in the last run, if the run got all inputs as
        #: arrays, and none of them is optional.
        self._last_layouts: tuple[tuple[TensorSpec, str, np.dtype, tuple[int, ...]], ...] = ()
        #: Output name -> its tensor after the first access.
        self._output_tensors: dict[str, Tensor] = {}
        #: Output name -> value of the last run without a tensor yet, and whether the tensor must
        #: be a copy. Most outputs are never accessed as tensors.
        self._last_outputs: dict[str, tuple[Value, bool]] = {}
        #: Output name -> shape of the last array that fits its port.
        self._output_shapes: dict[str, tuple[int, ...]] = {}
        #: Outputs that runs write into memory of the user.
        self._user_outputs: set[str] = set()
        #: Outputs that stay on their device.
        self._remote_outputs: set[str] = set()
        #: Whether some outputs may stay on their device; faster than `resident_outputs`.
        self.may_have_resident_outputs = False

    def new_tensors(self) -> RequestTensors:
        """Return new tensors for the same ports."""
        return RequestTensors(self._inputs, self._outputs, tuple(self._optional.values()))

    def input_port(self, key: Any) -> TensorSpec:
        """Return the input at a position, name or port; None selects the only input."""
        return find_port(self._inputs, key, "input")

    def output_port(self, key: Any) -> TensorSpec:
        """Return the output at a position, name or port; None selects the only output."""
        return find_port(self._outputs, key, "output")

    def get(self, key: str | TensorSpec) -> Tensor:
        """Return the tensor of an input or output by name or port."""
        port, is_input = self._port(key)
        return self.get_input(port) if is_input else self.output(port)

    def set(self, key: str | TensorSpec, tensor: Any) -> None:
        """Set the memory of an input or output by name or port."""
        port, is_input = self._port(key)
        (self.set_input if is_input else self.set_output)(port, tensor)

    def get_input(self, port: TensorSpec) -> Tensor:
        """Return an input's tensor, which the caller may fill for the next run."""
        tensor = self._user_inputs.get(port.name)
        if tensor is None:
            tensor = empty_tensor(port)
            if port.name in self._last_inputs:
                # The caller may fill the tensor, so it never refers to read-only memory.
                content = self._last_inputs.pop(port.name)
                is_writable = not isinstance(content, np.ndarray) or content.flags.writeable
                tensor = Tensor(content, shared_memory=is_writable)
            self._user_inputs[port.name] = tensor
        if isinstance(tensor, list):
            raise TensorError(
                f"input {port.name!r} is set to a batch of {len(tensor)} tensors and has no single "
                "tensor; set one with set_tensor.",
                port=port.name,
            )
        return tensor

    def set_input(self, port: TensorSpec, value: Any) -> None:
        """Set the memory of an input."""
        tensor = value if isinstance(value, Tensor) else Tensor(value, shared_memory=True)
        tensor.replace(check_tensor(tensor.content(), port, "input"))
        self._user_inputs[port.name] = tensor
        self._last_inputs.pop(port.name, None)

    def set_batch(self, port: TensorSpec, tensors: Sequence[Any]) -> None:
        """Set an input to a batch of tensors along axis N of the layout, by default axis 0."""
        items = [t.content() if isinstance(t, Tensor) else t for t in tensors]
        if len(items) == 1:
            self.set_input(port, tensors[0])
            return
        _check_batch(port, items)
        self._user_inputs[port.name] = items
        self._last_inputs.pop(port.name, None)

    def output(self, port: TensorSpec) -> Tensor:
        """Return an output's tensor, which shares memory with results only on request."""
        if port.name not in self._output_tensors:
            tensor = self._output_tensors[port.name] = empty_tensor(port)
            if port.name in self._last_outputs:
                value, needs_copy = self._last_outputs.pop(port.name)
                tensor.replace(copying.deepcopy(value) if needs_copy else value)
        return self._output_tensors[port.name]

    def set_output(self, port: TensorSpec, value: Any) -> None:
        """Set the memory of an output; numbers are converted to the memory's type at each run."""
        tensor = value if isinstance(value, Tensor) else Tensor(value, shared_memory=True)
        content = check_tensor(tensor.content(), _spec_of_memory(port, tensor.content()), "output")
        if isinstance(content, np.ndarray) and not content.flags.writeable:
            raise TensorTypeError(
                f"output {port.name!r}: expected a writable array, got a read-only one.",
                port=port.name,
            )
        tensor.replace(content)
        self._output_tensors[port.name] = tensor
        self._last_outputs.pop(port.name, None)
        self._user_outputs.add(port.name)
        self.may_have_resident_outputs = True

    def keep_remote(self, port: TensorSpec, keep: bool) -> None:
        """Set whether an output stays on its device in later runs."""
        if port.dtype is None:
            raise TensorTypeError(
                f"output {port.name!r}: expected a tensor to keep on a device, got {port}.",
                port=port.name,
            )
        (self._remote_outputs.add if keep else self._remote_outputs.discard)(port.name)
        self.may_have_resident_outputs = bool(self._remote_outputs or self._user_outputs)

    @property
    def resident_outputs(self) -> tuple[str, ...]:
        """Names of the outputs that stay on their device."""
        if not self.may_have_resident_outputs:
            return ()
        names = set(self._remote_outputs)
        for name in self._user_outputs:
            memory = self._output_tensors[name].content()
            if isinstance(memory, RemoteTensor) and memory.by_reference:
                names.add(name)
        return tuple(sorted(names))

    def collect(self, inputs: Any, *, copy: bool) -> dict[str, Value]:
        """Return the checked values of all inputs for a run.

        `inputs` override the tensors that were set before. Raises TensorNameError for missing and
        unknown inputs, and TensorTypeError or TensorShapeError for values that do not fit.
        """
        layouts = self._last_layouts
        if layouts and not self._user_inputs:
            # Inputs with the dtypes of the last run need no other checks than of a new shape.
            feeds = inputs
            if type(inputs) is np.ndarray and len(layouts) == 1:
                feeds = {layouts[0][1]: inputs}
            if type(feeds) is dict and len(feeds) == len(layouts):
                values = {}
                for port, name, dtype, shape in layouts:
                    value = feeds.get(name)
                    if (
                        type(value) is not np.ndarray
                        or value.dtype is not dtype
                        or not value.flags.c_contiguous
                        or (value.shape != shape and not port.accepts(value.shape))
                    ):
                        break
                    if copy:
                        is_large = value.nbytes >= _LARGE_NBYTES
                        value = self._copy_large(value) if is_large else value.copy()
                    values[name] = value
                else:
                    self._last_inputs = values.copy()  # a copy, because the caller adds values
                    return values
        return self._collect_checked(inputs, copy=copy)

    def _collect_checked(self, inputs: Any, *, copy: bool) -> dict[str, Value]:
        feeds = self._by_name(inputs)
        values = {}
        missing = []
        ports = self._inputs
        if self._optional:
            names = dict.fromkeys((*feeds, *self._user_inputs, *self._last_inputs))
            ports += tuple(self._optional[name] for name in names if name in self._optional)
        for port in ports:
            name = port.name
            if name in feeds:
                values[name] = convert(feeds[name], port, copy=copy)
            elif name in self._user_inputs:
                tensor = self._user_inputs[name]
                if isinstance(tensor, list):
                    content = np.concatenate([*map(np.asarray, tensor)], _batch_axis(port))
                else:
                    content = tensor.content()
                values[name] = convert(content, port, copy=False)
            elif inputs is None and name in self._last_inputs:
                values[name] = self._last_inputs[name]
            elif name not in self._optional:
                missing.append(port)
        if missing:
            raise TensorNameError(
                f"inputs are missing: {', '.join(f'{p.name!r} ({p})' for p in missing)}; got "
                f"{', '.join(map(repr, values)) or 'none'}. Pass every input at once, or set "
                "constant inputs with set_tensor.",
                missing=[p.name for p in missing],
            )
        for name in feeds:
            self._last_inputs[name] = values[name]
            self._user_inputs.pop(name, None)
        self._last_layouts = ()
        if (
            not self._optional
            and feeds.keys() == values.keys()
            and all(map(_is_plain_array, values.values()))
        ):
            self._last_layouts = tuple(
                (port, port.name, array.dtype, array.shape)
                for port, array in zip(ports, values.values(), strict=True)
            )
        return values

    def store(self, outputs: Mapping[str, Value], *, copy: bool) -> dict[str, Value]:
        """Store the outputs of a run, and return values that the caller may keep."""
        values = {}
        for port in self._outputs:
            value = outputs[port.name]
            if type(value) is ResidentTensor:
                value = value.tensor
            is_array = isinstance(value, np.ndarray)
            if not is_array or value.shape != self._output_shapes.get(port.name):
                if port.is_tensor and not port.accepts(np.shape(value)):
                    warnings.warn(  # without the size, so that Python shows the warning once
                        f"output {port.name!r} has another shape than the model declares, {port}. "
                        "A declared shape is a hint; correct it in the model.",
                        stacklevel=2,
                    )
                elif is_array:
                    self._output_shapes[port.name] = value.shape
            if port.name in self._user_outputs:
                memory = _write(port, self._output_tensors[port.name].content(), value)
                values[port.name] = memory.copy() if copy and memory is not value else memory
                continue
            if is_array and not value.flags.writeable:
                value = value.copy()
            needs_copy = copy and not is_remote(type(value))
            if port.name in self._output_tensors:
                tensor = self._output_tensors[port.name]
                if _fits(tensor.content(), value):  # the caller may refer to this memory
                    np.copyto(tensor.content(), value)
                    value = value if needs_copy else tensor.content()
                else:
                    tensor.replace(value)
                    value = copying.deepcopy(value) if needs_copy else value
            else:
                self._last_outputs[port.name] = value, needs_copy
            values[port.name] = value
        return values

    def _port(self, key: Any) -> tuple[TensorSpec, bool]:
        if isinstance(key, int):
            raise TensorNameError(
                f"get_tensor, set_tensor: expected a name or port, got position {key}; use "
                "get_input_tensor or get_output_tensor.",
                name=key,
            )
        name = key.name if isinstance(key, TensorSpec) else key
        # A value that passes through the model is an input and an output of the same name; a port
        # object is unambiguous.
        if isinstance(key, TensorSpec) and key in self._outputs and key not in self._inputs:
            return key, False
        if name in self._optional or name in (port.name for port in self._inputs):
            return self._input(name), True
        return find_port((*self._outputs, *self._inputs), name, "input or output"), False

    def _input(self, key: Any) -> TensorSpec:
        """Return an input by position, name or port; an optional input only by name or port."""
        name = key.name if isinstance(key, TensorSpec) else key
        if isinstance(name, str) and name in self._optional:
            return self._optional[name]
        return find_port(self._inputs, key, "input")

    def _by_name(self, inputs: Any) -> dict[str, Any]:
        if inputs is None:
            return {}
        if isinstance(inputs, Mapping):
            return {self._input(key).name: v for key, v in inputs.items()}
        only_port = self._inputs[0] if len(self._inputs) == 1 else None
        if isinstance(inputs, list | tuple) and not (
            only_port and not _lists_inputs(inputs, only_port)
        ):
            if len(inputs) > len(self._inputs):
                raise TensorNameError(
                    f"expected at most {len(self._inputs)} input{'s' * (len(self._inputs) != 1)} "
                    f"({', '.join(repr(p.name) for p in self._inputs)}), got {len(inputs)}.",
                    missing=[],
                )
            return {port.name: v for port, v in zip(self._inputs, inputs, strict=False)}
        if isinstance(inputs, str | bytes) and (
            only_port is None or only_port.element_type != "string"
        ):
            raise ArgumentTypeError(
                f"expected inputs as a dict or list of arrays, got {inputs!r}; the model's inputs "
                f"are {', '.join(f'{p.name!r} ({p})' for p in self._inputs) or 'none'}."
            )
        if only_port is None and not hasattr(inputs, "__array__") and not np.isscalar(inputs):
            raise ArgumentTypeError(
                f"expected inputs as a dict or list of arrays, got {type(inputs).__name__}."
            )
        return {find_port(self._inputs, None, "input").name: inputs}


def _fits(memory: Value, value: Value) -> bool:
    """Return whether a value can be written into the memory of a tensor."""
    if not isinstance(memory, np.ndarray) or not isinstance(value, np.ndarray):
        return False
    is_same = memory.dtype == value.dtype and memory.shape == value.shape
    return is_same and memory.flags.writeable


def _is_plain_array(value: Value) -> bool:
    return type(value) is np.ndarray and not value.dtype.hasobject


def _lists_inputs(inputs: Sequence[Any], port: TensorSpec) -> bool:
    """Return whether a list for a model with one input lists inputs; otherwise it is the input."""
    if len(inputs) != 1:
        return port.shape is not None and any(
            isinstance(x, np.ndarray | Tensor) and len(x.shape) == len(port.shape) for x in inputs
        )
    if isinstance(inputs[0], np.ndarray | Tensor) or not port.is_tensor:
        return True
    return port.shape is not None and np.ndim(inputs[0]) == len(port.shape)


def _batch_axis(port: TensorSpec) -> int:
    """Return the batch axis: N in the layout, or axis 0 without a layout."""
    return port.layout.find("N") if port.layout else 0


def _check_batch(port: TensorSpec, items: Sequence[Any]) -> None:
    axis = _batch_axis(port)
    if not port.is_tensor or not port.shape or axis < 0:
        layout = f", layout {port.layout}" if port.layout else ""
        raise TensorShapeError(
            f"input {port.name!r} ({port}{layout}): expected a port with a batch axis; use "
            "set_tensor for the complete tensor.",
            port=port.name,
        )
    batch_size = port.shape[axis]
    if not items or (isinstance(batch_size, int) and batch_size != len(items)):
        raise TensorShapeError(
            f"input {port.name!r} ({port}): expected a batch of {batch_size or 'some'} tensors, "
            f"got {len(items)}.",
            port=port.name,
        )
    first = np.asarray(items[0]).shape
    for i, item in enumerate(items):
        array = np.asarray(item)
        if array.shape != first or array.shape[axis : axis + 1] != (1,):
            raise TensorShapeError(
                f"input {port.name!r}: expected batch items of equal shapes, {list(first)}, and "
                f"size 1 on axis {axis}; batch item {i} has shape {list(array.shape)}.",
                port=port.name,
            )
        shape = (*port.shape[:axis], 1, *port.shape[axis + 1 :])
        item_port = TensorSpec(port.name, port.type, shape)
        check_tensor(array, item_port, f"batch item {i} of input")


def _write(port: TensorSpec, memory: Value, value: Value) -> Value:
    """Write an output into the user's memory, and return a value that the host can read."""
    if not isinstance(memory, np.ndarray | RemoteTensor):
        return value
    if memory.shape != np.shape(value):
        raise TensorShapeError(
            f"output {port.name!r} has shape {list(np.shape(value))}, but its tensor was set to "
            f"shape {list(memory.shape)}; set a tensor of the output's shape, or none.",
            port=port.name,
        )
    if isinstance(memory, RemoteTensor):
        memory.copy_from(value)
        return value
    # Numbers outside the range of the memory's type wrap around, as in C.
    with np.errstate(invalid="ignore"):
        np.copyto(memory, value, casting="unsafe")
    return memory


def _spec_of_memory(port: TensorSpec, memory: Any) -> TensorSpec:
    """Return an output's port with the type of the user's memory, if its numbers convert to it."""
    if not isinstance(memory, np.ndarray) or port.dtype is None or port.dtype.hasobject:
        return port
    try:
        name = element_type_name(memory.dtype)
    except TypeError:
        return port
    return port if name == "string" else replace(port, type=f"tensor({name})")
