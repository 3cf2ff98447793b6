"""Names that OpenVINO's requests have for what ours have under another."""

from __future__ import annotations

from abc import ABC, abstractmethod

from devices.model.tensor_spec import TensorSpec
from devices.request.results import ProfilingInfo
from devices.request.tensor import Tensor


class OpenVINONames(ABC):
    """Part of `InferRequest`."""

    @property
    @abstractmethod
    def model_inputs(self) -> tuple[TensorSpec, ...]:
        """The input ports."""

    @property
    @abstractmethod
    def model_outputs(self) -> tuple[TensorSpec, ...]:
        """The output ports."""

    @property
    @abstractmethod
    def profiling_info(self) -> list[ProfilingInfo]:
        """The last run's profile."""

    @abstractmethod
    def get_tensor(self, name: str | TensorSpec) -> Tensor:
        """Return a port's tensor."""

    @property
    def input_tensors(self) -> list[Tensor]:
        """Each input's tensor."""
        return [self.get_tensor(port) for port in self.model_inputs]

    @property
    def output_tensors(self) -> list[Tensor]:
        """Each output's tensor."""
        return [self.get_tensor(port) for port in self.model_outputs]

    def get_profiling_info(self) -> list[ProfilingInfo]:
        """Return `profiling_info`."""
        return self.profiling_info
