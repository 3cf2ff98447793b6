"""Array backend for devices with their own memory: copies, and the placement of values."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from hetero.devices.gpu.convolution import register_convolution
from hetero.devices.interpreter.backend import ArrayBackend
from hetero.devices.kernels import ALL, Kernel, KernelRegistry, op
from hetero.devices.kernels.index import unique
from hetero.devices.kernels.scatter import scatter_elements_11, scatter_nd_11
from hetero.devices.model.model import Node
from hetero.devices.plugin.program import Value

Captured = TypeVar("Captured")

#: Operators that read only the shapes of their inputs.
_SHAPE_READERS: Final = frozenset({"Shape", "Size"})
#: Operators that compute shapes from shapes.
_SHAPE_ARITHMETIC: Final = frozenset(
    [
        "Abs",
        "Add",
        "Cast",
        "Ceil",
        "Concat",
        "Div",
        "Equal",
        "Floor",
        "Gather",
        "Greater",
        "Identity",
        "Less",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "Slice",
        "Split",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Unsqueeze",
        "Where",
    ]
)
#: Constants with more elements are data rather than sizes or axes.
_LARGEST_SHAPE_CONSTANT: Final = 64
#: Kernels that replace the shared ones.
GPU_KERNELS: Final = KernelRegistry()
# CuPy's `multiply` has no `at`, so the reduction "mul" is not supported.
for _op, _kernel in (("ScatterElements", scatter_elements_11), ("ScatterND", scatter_nd_11)):
    op(
        _op,
        since=11,
        additions={"reduction": 16},
        choices={"reduction": ("none", "add", "max", "min")},
        registry=GPU_KERNELS,
    )(_kernel)
# CuPy's `unique` of slices sorts them in Python, with a launch for each comparison.
op("Unique", since=11, host=(ALL,), registry=GPU_KERNELS)(unique)
register_convolution(GPU_KERNELS)


class DeviceBackend(ArrayBackend):
    """Array backend of a library that computes in device memory.

    A subclass copies arrays and lists the devices. Its operations may return before the device has
    finished, except copies to the host and `finish`.
    """

    def __init__(self, name: str, xp: Any) -> None:
        super().__init__(name, xp, GPU_KERNELS)

    # For subclasses.

    @abstractmethod
    def to_device(self, array: np.ndarray) -> Any:
        """Return a copy of a host array on the current device."""

    @abstractmethod
    def to_host(self, array: Any) -> np.ndarray:
        """Wait for a device array, and return a copy of it on the host."""

    @abstractmethod
    def device_ids(self) -> tuple[str, ...]:
        """Return the ids of this machine's devices."""

    @abstractmethod
    def describe(self, device_id: str) -> str:
        """Return a device's human-readable name."""

    @abstractmethod
    def fingerprint(self, device_id: str) -> str:
        """Return the device's architecture, and the versions of the library and its driver."""

    @abstractmethod
    def total_nbytes(self, device_id: str) -> int:
        """Return the size of a device's memory."""

    @abstractmethod
    def used_nbytes(self, device_id: str) -> int:
        """Return the size of this process's arrays in a device's memory."""

    @abstractmethod
    def make_pool(self, device_id: str, limit_nbytes: int) -> Any:
        """Return a memory pool for the arrays of one program, of at most this size."""

    @abstractmethod
    def release_unused_memory(self, device_id: str) -> None:
        """Return freed memory to the device, for other processes that use it."""

    @abstractmethod
    def overwrite(self, array: Any, values: Any) -> None:
        """Copy a host or device array into a device array of its type and shape."""

    @abstractmethod
    def capture(self, run: Callable[[], Captured]) -> tuple[Captured, Callable[[], None]]:
        """Record the work that `run` starts on the device, without doing it.

        Returns the result of `run`, and a function that does the work again with the same arrays.
        Any error: `run` copied between host and device, waited for the device, or failed.
        """

    @abstractmethod
    def activate(self, device_id: str, pool: Any = None) -> AbstractContextManager[None]:
        """Make a device current for this thread, with a stream of its own, in a `with` block.

        New arrays take memory from `pool`, by default from the pool that all programs share.
        """

    def upload(self, array: Value) -> Value:
        """Copy all host arrays of a value to the device; None stays None."""
        if isinstance(array, np.ndarray):
            return self.to_device(array)
        return [self.upload(item) for item in array] if isinstance(array, list) else array

    def download(self, value: Value) -> Value:
        """Copy all device arrays of a value to the host."""
        if value is None or isinstance(value, np.ndarray):
            return value
        if isinstance(value, list):
            return [self.download(item) for item in value]
        return self.to_host(value) if self.is_on_device(value) else value

    def copy(self, array: Any) -> Any:
        """Return a copy of a device array, in its own memory."""
        return self.xp.array(array, order="C")

    def is_on_device(self, value: Value) -> bool:
        """Return whether a value is a device array."""
        return hasattr(value, "dtype") and not isinstance(value, np.ndarray | np.generic)

    def function(
        self, kernel: Kernel, keywords: Mapping[str, Any], on_host: bool
    ) -> Callable[..., Any]:
        """Return a kernel as a function that copies its inputs to where it reads them.

        Results of a host kernel stay on the host, where the next kernel may read them.
        """
        if kernel.op_type in _SHAPE_READERS and not kernel.domain:
            return partial(kernel.function, np, **keywords)
        if on_host or kernel.host == (ALL,):
            host_function = partial(kernel.function, np, **keywords)

            def run_on_host(*inputs: Value) -> Any:
                return host_function(*map(self.download, inputs))

            return run_on_host
        constants = {n: self.upload(v) for n, v in keywords.items()}
        compute = partial(kernel.function, self.xp, **constants)

        def run(*inputs: Value, **bodies: Any) -> Any:
            arguments = [
                self.download(value) if kernel.reads_on_host(position) else self.upload(value)
                for position, value in enumerate(inputs)
            ]
            return compute(*arguments, **bodies)

        return run

    def host_values(self, nodes: Sequence[Node], constants: Mapping[str, np.ndarray]) -> set[str]:
        """Return the names of shapes, and of values computed only from shapes and constants.

        Nodes read them on the host, as shapes, axes or counts.
        """
        values: set[str] = set()
        for node in nodes:
            if node.domain:
                continue
            arrays = [constants[name] for name in node.reads if name in constants]
            variables = [name for name in node.reads if name not in constants]
            if node.op_type in _SHAPE_READERS or (
                node.op_type in _SHAPE_ARITHMETIC
                and variables
                and values.issuperset(variables)
                and all(array.size <= _LARGEST_SHAPE_CONSTANT for array in arrays)
            ):
                values.update(node.writes)
        return values
