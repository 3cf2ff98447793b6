"""The tensors of a request as its user sets and takes them, under OpenVINO's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from devices.model.tensor_spec import TensorSpec
from devices.request.tensor import Tensor
from devices.request.tensors import RequestTensors


class HasTensors(ABC):
    """Part of `InferRequest`."""

    _tensors: RequestTensors

    @abstractmethod
    def _idle(self, what: str) -> AbstractContextManager[None]:
        """Keep the request idle; raise RequestBusyError if it is not."""

    def get_tensor(self, name: str | TensorSpec) -> Tensor:
        """Return the tensor of an input or output; it stays the same object over runs."""
        with self._idle("get_tensor"):
            return self._tensors.get(name)

    def set_tensor(self, name: str | TensorSpec, tensor: Any) -> None:
        """Read an input from, or write an output to, the given memory from now on.

        An input is not copied: do not write to it while a run is in flight.

        Raises
        ------
        TensorNameError, TensorTypeError, TensorShapeError
            It does not fit; shared memory is never converted.
        """
        with self._idle("set_tensor"):
            self._tensors.set(name, tensor)

    def set_tensors(self, name: str | TensorSpec, tensors: Sequence[Any]) -> None:
        """Read an input from many tensors of batch size 1, joined along axis 0 at each run."""
        with self._idle("set_tensors"):
            self._tensors.set_batch(self._tensors.input_port(name), tensors)

    def get_input_tensor(self, index: int | None = None) -> Tensor:
        """Return an input's tensor; without a position, the only input's."""
        with self._idle("get_input_tensor"):
            return self._tensors.get_input(self._tensors.input_port(index))

    def get_output_tensor(self, index: int | None = None) -> Tensor:
        """Return an output's tensor; without a position, the only output's."""
        with self._idle("get_output_tensor"):
            return self._tensors.output(self._tensors.output_port(index))

    def set_input_tensor(self, *arguments: Any) -> None:
        """Set an input's memory: ``(tensor)`` of the only one, or ``(index, tensor)``."""
        index, tensor = arguments if len(arguments) == 2 else (None, *arguments)
        with self._idle("set_input_tensor"):
            self._tensors.set_input(self._tensors.input_port(index), tensor)

    def set_output_tensor(self, *arguments: Any) -> None:
        """Set an output's memory: ``(tensor)`` of the only one, or ``(index, tensor)``."""
        index, tensor = arguments if len(arguments) == 2 else (None, *arguments)
        with self._idle("set_output_tensor"):
            self._tensors.set_output(self._tensors.output_port(index), tensor)

    def keep_remote(self, name: int | str | TensorSpec | None = None, keep: bool = True) -> None:
        """Have an output stay in the process of the device that makes it, from the next run on.

        It is then a `RemoteTensor`: an input for other requests of the same Core, to be read with
        `to_host`. Each run makes a new one, which is freed once nobody holds it.
        """
        with self._idle("keep_remote"):
            self._tensors.keep_remote(self._tensors.output_port(name), keep)

    def set_input_tensors(self, *arguments: Any) -> None:
        """Set inputs by a dict or list, or one input's batch: ``(index, tensors)``."""
        if len(arguments) == 2:
            with self._idle("set_input_tensors"):
                self._tensors.set_batch(self._tensors.input_port(arguments[0]), arguments[1])
        else:
            for key, tensor in _pairs(arguments[0]):
                self.set_input_tensor(key, tensor)

    def set_output_tensors(self, tensors: Mapping[Any, Any] | Sequence[Any]) -> None:
        """Set outputs' memory by a dict or list."""
        for key, tensor in _pairs(tensors):
            self.set_output_tensor(key, tensor)


def _pairs(tensors: Mapping[Any, Any] | Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(tensors.items() if isinstance(tensors, Mapping) else enumerate(tensors))
