"""The tensors of one request: what was set, what is missing, and where answers go."""

from __future__ import annotations

import copy as copying
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hetero.devices.errors import (
    ArgumentTypeError,
    TensorError,
    TensorNameError,
    TensorShapeError,
    TensorTypeError,
)
from hetero.devices.model.ports import find_port
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.remote_memory import RemoteTensor, ResidentTensor
from hetero.devices.request.tensor import Tensor, empty_tensor
from hetero.devices.request.tensor_conversion import check_tensor, convert


class RequestTensors:
    """Inputs and outputs of a request, by port.

    `optional_inputs` have a default: known by name, and among the values only where given.
    """

    def __init__(
        self,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        optional_inputs: tuple[TensorSpec, ...] = (),
    ) -> None:
        self._inputs = inputs
        self._optional = {port.name: port for port in optional_inputs}
        self._outputs = outputs
        #: Input name -> the tensor that the user set or took by hand, or the items of its batch; a
        #: call with other inputs keeps those.
        self._by_hand: dict[str, Tensor | list[Any]] = {}
        #: Input name -> the value of the last call that passed one, until its tensor is asked for.
        self._passed: dict[str, Value] = {}
        #: Input name -> element type and shape of the last call's arrays, if that passed them all.
        self._fitting: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        #: Output name -> its tensor, once it was set or asked for.
        self._results: dict[str, Tensor] = {}
        #: What the last run gave for the other outputs, and whether the user is to have no more
        #: than a copy of it: made when the tensor is asked for, which is rare.
        self._last: dict[str, tuple[Value, bool]] = {}
        #: Outputs that are written into memory of the user's.
        self._owned_by_user: set[str] = set()
        #: Outputs that stay on their device.
        self._remote: set[str] = set()

    def fresh(self) -> RequestTensors:
        """Return the same ports without anything set."""
        return RequestTensors(self._inputs, self._outputs, tuple(self._optional.values()))

    def input_port(self, key: Any) -> TensorSpec:
        """Return the input that a position, name or port means; None means the only one."""
        return find_port(self._inputs, key, "input")

    def output_port(self, key: Any) -> TensorSpec:
        """Return the output that a position, name or port means; None means the only one."""
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
        """Return an input's tensor; whoever has it may fill it, so it counts as given."""
        held = self._by_hand.get(port.name)
        if held is None:
            held = empty_tensor(port)
            if port.name in self._passed:
                held = Tensor(self._passed.pop(port.name), shared_memory=True)
            self._by_hand[port.name] = held
        if isinstance(held, list):
            raise TensorError(
                f"input {port.name!r} was set as a batch of {len(held)} tensors, so it has no "
                "tensor of its own; set_tensor gives it one.",
                port=port.name,
            )
        return held

    def set_input(self, port: TensorSpec, tensor: Any) -> None:
        """Read an input from `tensor`'s memory."""
        held = tensor if isinstance(tensor, Tensor) else Tensor(tensor, shared_memory=True)
        held.replace(check_tensor(held.held(), port, "input"))
        self._by_hand[port.name] = held
        self._passed.pop(port.name, None)

    def set_batch(self, port: TensorSpec, tensors: Sequence[Any]) -> None:
        """Read an input from items that make a batch along the layout's N, or else axis 0."""
        items = [t.held() if isinstance(t, Tensor) else t for t in tensors]
        if len(items) == 1:
            self.set_input(port, tensors[0])
            return
        _check_batch(port, items)
        self._by_hand[port.name] = items
        self._passed.pop(port.name, None)

    def output(self, port: TensorSpec) -> Tensor:
        """Return an output's tensor, whose memory nobody else has unless outputs are shared."""
        if port.name not in self._results:
            held = self._results[port.name] = empty_tensor(port)
            if port.name in self._last:
                value, is_anothers = self._last.pop(port.name)
                held.replace(copying.deepcopy(value) if is_anothers else value)
        return self._results[port.name]

    def set_output(self, port: TensorSpec, tensor: Any) -> None:
        """Write an output into `tensor`'s memory from now on."""
        held = tensor if isinstance(tensor, Tensor) else Tensor(tensor, shared_memory=True)
        value = check_tensor(held.held(), port, "output")
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            raise TensorTypeError(
                f"output {port.name!r} was given read-only memory; give a writable array.",
                port=port.name,
            )
        held.replace(value)
        self._results[port.name] = held
        self._last.pop(port.name, None)
        self._owned_by_user.add(port.name)

    def keep_remote(self, port: TensorSpec, keep: bool) -> None:
        """Have an output stay on its device from now on, or no longer."""
        if port.dtype is None:
            raise TensorTypeError(
                f"output {port.name!r} is {port}; only tensors are kept on a device.",
                port=port.name,
            )
        (self._remote.add if keep else self._remote.discard)(port.name)

    @property
    def keeps_outputs(self) -> bool:
        """Whether outputs may stay on their device."""
        return bool(self._remote or self._owned_by_user)

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the outputs that stay on their device."""
        if not self._remote and not self._owned_by_user:
            return ()
        names = set(self._remote)
        for name in self._owned_by_user:
            memory = self._results[name].held()
            if isinstance(memory, RemoteTensor) and memory.by_reference:
                names.add(name)
        return tuple(sorted(names))

    def collect(self, inputs: Any, *, copy: bool) -> dict[str, Value]:
        """Return one checked value an input, from what is given now and was set before.

        TensorNameError lists every input that is missing, or those given that the model does not
        have; TensorTypeError, TensorShapeError: a value does not fit its port.
        """
        if self._fitting and not self._by_hand and not self._optional:
            values = self._collect_fitting(inputs, copy=copy)
            if values is not None:
                return values
        given = self._by_name(inputs)
        values = {}
        missing = []
        ports = self._inputs
        if self._optional:
            set_ = dict.fromkeys((*given, *self._by_hand, *self._passed))
            ports += tuple(self._optional[name] for name in set_ if name in self._optional)
        for port in ports:
            name = port.name
            if name in given:
                values[name] = convert(given[name], port, copy=copy)
            elif name in self._by_hand:
                held = self._by_hand[name]
                if isinstance(held, list):
                    whole = np.concatenate([*map(np.asarray, held)], _batch_axis(port))
                else:
                    whole = held.held()
                values[name] = convert(whole, port, copy=False)
            elif inputs is None and name in self._passed:
                values[name] = self._passed[name]
            elif name not in self._optional:
                missing.append(port)
        if missing:
            raise TensorNameError(
                f"inputs are missing: {', '.join(f'{p.name!r} ({p})' for p in missing)}; got "
                f"{', '.join(map(repr, values)) or 'none'}. Give every input at once, or "
                "set_tensor those that stay.",
                missing=[p.name for p in missing],
            )
        for name in given:
            self._passed[name] = values[name]
            self._by_hand.pop(name, None)
        self._fitting = {}
        if given.keys() == values.keys() and all(map(_is_plain, values.values())):
            self._fitting = {name: (value.dtype, value.shape) for name, value in values.items()}
        return values

    def _collect_fitting(self, inputs: Any, *, copy: bool) -> dict[str, Value] | None:
        """Return the inputs' values if all are like those of the last call; None: check them."""
        if type(inputs) is np.ndarray and len(self._inputs) == 1:
            inputs = {self._inputs[0].name: inputs}
        if type(inputs) is not dict or len(inputs) != len(self._fitting):
            return None
        values = {}
        for name, (dtype, shape) in self._fitting.items():
            value = inputs.get(name)
            if (
                type(value) is not np.ndarray
                or value.dtype is not dtype
                or value.shape != shape
                or not value.flags.c_contiguous
            ):
                return None
            values[name] = value.copy() if copy else value
        self._passed = values.copy()  # the caller adds to them
        return values

    def take(self, outputs: Mapping[str, Value], *, copy: bool) -> dict[str, Value]:
        """Take a run's outputs over and return them as the caller may keep them."""
        taken = {}
        for port in self._outputs:
            value = outputs[port.name]
            if type(value) is ResidentTensor:
                value = value.tensor
            is_array = isinstance(value, np.ndarray)
            if port.is_tensor and not port.accepts(value.shape if is_array else np.shape(value)):
                warnings.warn(  # the same for every size, so that it is shown once
                    f"output {port.name!r} came in another shape than the model declares for it, "
                    f"{port}. A declared shape is a hint; correct it in the model.",
                    stacklevel=2,
                )
            if port.name in self._owned_by_user:
                memory = _write(port, self._results[port.name].held(), value)
                taken[port.name] = memory.copy() if copy and memory is not value else memory
                continue
            if isinstance(value, np.ndarray) and (
                not value.flags.writeable or self._is_input_memory(value)
            ):
                value = value.copy()
            is_copied = copy and not isinstance(value, RemoteTensor)
            if port.name in self._results:
                self._results[port.name].replace(value)
                value = copying.deepcopy(value) if is_copied else value
            else:
                self._last[port.name] = value, is_copied
            taken[port.name] = value
        return taken

    def _is_input_memory(self, value: np.ndarray) -> bool:
        held_values = [*self._passed.values()]
        held_values += [t.held() for t in self._by_hand.values() if not isinstance(t, list)]
        for held in held_values:
            if not isinstance(held, np.ndarray):
                continue
            is_own = held is not value and held.flags.owndata and value.flags.owndata
            # numpy lets other threads in while it looks.
            if not is_own and np.may_share_memory(held, value):
                return True
        return False

    def _port(self, key: Any) -> tuple[TensorSpec, bool]:
        if isinstance(key, int):
            raise TensorNameError(
                f"get_tensor and set_tensor take names and ports, got position {key}; use "
                "get_input_tensor or get_output_tensor.",
                name=key,
            )
        name = key.name if isinstance(key, TensorSpec) else key
        # A value that passes through is both; a port object says which one it is.
        if isinstance(key, TensorSpec) and key in self._outputs and key not in self._inputs:
            return key, False
        if name in self._optional or name in (port.name for port in self._inputs):
            return self._input(name), True
        return find_port((*self._outputs, *self._inputs), name, "input or output"), False

    def _input(self, key: Any) -> TensorSpec:
        """Return the input that a key means; one with a default is known by its name alone."""
        name = key.name if isinstance(key, TensorSpec) else key
        if isinstance(name, str) and name in self._optional:
            return self._optional[name]
        return find_port(self._inputs, key, "input")

    def _by_name(self, inputs: Any) -> dict[str, Any]:
        if inputs is None:
            return {}
        if isinstance(inputs, Mapping):
            return {self._input(key).name: v for key, v in inputs.items()}
        only = self._inputs[0] if len(self._inputs) == 1 else None
        if isinstance(inputs, list | tuple) and not (only and not _lists_inputs(inputs, only)):
            if len(inputs) > len(self._inputs):
                raise TensorNameError(
                    f"{len(inputs)} inputs were given; the model has {len(self._inputs)}: "
                    f"{', '.join(repr(p.name) for p in self._inputs)}.",
                    missing=[],
                )
            return {port.name: v for port, v in zip(self._inputs, inputs, strict=False)}
        if isinstance(inputs, str | bytes) and (only is None or only.element_type != "string"):
            raise ArgumentTypeError(
                f"inputs {inputs!r}: wanted arrays by name, as a dict or list; the model has "
                f"{', '.join(f'{p.name!r} ({p})' for p in self._inputs) or 'no inputs'}."
            )
        return {find_port(self._inputs, None, "input").name: inputs}


def _is_plain(value: Value) -> bool:
    return type(value) is np.ndarray and not value.dtype.hasobject


def _lists_inputs(inputs: Sequence[Any], port: TensorSpec) -> bool:
    """Whether a list for a one-input model lists inputs, rather than being the input's contents."""
    if len(inputs) != 1:
        return port.shape is not None and any(
            isinstance(x, np.ndarray | Tensor) and len(x.shape) == len(port.shape) for x in inputs
        )
    if isinstance(inputs[0], np.ndarray | Tensor) or not port.is_tensor:
        return True
    return port.shape is not None and np.ndim(inputs[0]) == len(port.shape)


def _batch_axis(port: TensorSpec) -> int:
    """Return the axis of the batch: N of the layout, the first where nothing is known of it."""
    return port.layout.find("N") if port.layout else 0


def _check_batch(port: TensorSpec, items: Sequence[Any]) -> None:
    axis = _batch_axis(port)
    if not port.is_tensor or not port.shape or axis < 0:
        layout = f", layout {port.layout}" if port.layout else ""
        raise TensorShapeError(
            f"input {port.name!r} ({port}{layout}) has no batch axis; set_tensor takes it whole.",
            port=port.name,
        )
    want = port.shape[axis]
    if not items or (isinstance(want, int) and want != len(items)):
        raise TensorShapeError(
            f"input {port.name!r} ({port}) takes {want or 'some'} tensors as a batch, got "
            f"{len(items)}.",
            port=port.name,
        )
    first = np.asarray(items[0]).shape
    for i, item in enumerate(items):
        array = np.asarray(item)
        if array.shape != first or array.shape[axis : axis + 1] != (1,):
            raise TensorShapeError(
                f"input {port.name!r}: batch item {i} has shape {list(array.shape)}; each has the "
                f"first one's, {list(first)}, and 1 on axis {axis}.",
                port=port.name,
            )
        shape = (*port.shape[:axis], 1, *port.shape[axis + 1 :])
        item_port = TensorSpec(port.name, port.type, shape)
        check_tensor(array, item_port, f"batch item {i} of input")


def _write(port: TensorSpec, memory: Value, value: Value) -> Value:
    """Put an output into the user's memory; return where the host can read it."""
    if not isinstance(memory, np.ndarray | RemoteTensor):
        return value
    if memory.shape != np.shape(value):
        raise TensorShapeError(
            f"output {port.name!r} came with shape {list(np.shape(value))}, but its memory was set "
            f"to shape {list(memory.shape)}; set one that fits, or none.",
            port=port.name,
        )
    if isinstance(memory, RemoteTensor):
        memory.copy_from(value)
        return value
    np.copyto(memory, value)
    return memory
