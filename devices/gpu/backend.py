"""Arrays in a device's own memory: what goes there, what stays on the host, and how kernels run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import numpy as np

from hetero.devices.interpreter.backend import ArrayBackend
from hetero.devices.kernels import ALL, Kernel, KernelRegistry, op
from hetero.devices.kernels.scatter import scatter_elements_11, scatter_nd_11
from hetero.devices.model.model import Node
from hetero.devices.plugin.program import Value

#: Operators that look at no element of their inputs.
_OF_SHAPES: Final = frozenset({"Shape", "Size"})
#: Operators that shapes are computed with.
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
#: Constants of more elements are data, not sizes or axes.
_MOST_SIZES: Final = 64
#: What it computes otherwise than the shared kernels do.
GPU_KERNELS: Final = KernelRegistry()
# CuPy's `multiply` has no `at`, so products of updates at one place are another device's.
for _op, _kernel in (("ScatterElements", scatter_elements_11), ("ScatterND", scatter_nd_11)):
    op(
        _op,
        since=11,
        added={"reduction": 16},
        choices={"reduction": ("none", "add", "max", "min")},
        registry=GPU_KERNELS,
    )(_kernel)


class DeviceBackend(ArrayBackend):
    """Arrays of a library that computes on devices with memory of their own.

    A subclass says how arrays are copied, and what devices there are. All but the copies to the
    host, and what `finish` waits for, may return before the device is done.
    """

    def __init__(self, name: str, xp: Any) -> None:
        super().__init__(name, xp, GPU_KERNELS)

    # What a library says.

    @abstractmethod
    def to_device(self, array: np.ndarray) -> Any:
        """Return a copy of a host array on the current device."""

    @abstractmethod
    def to_host(self, array: Any) -> np.ndarray:
        """Return a copy of a device's array on the host, once it is computed."""

    @abstractmethod
    def device_ids(self) -> tuple[str, ...]:
        """Return the ids of the devices here."""

    @abstractmethod
    def describe(self, device_id: str) -> str:
        """Return a device's name for people."""

    @abstractmethod
    def fingerprint(self, device_id: str) -> str:
        """Return the device's architecture, and the versions of library and driver."""

    @abstractmethod
    def total_nbytes(self, device_id: str) -> int:
        """Return how much memory a device has."""

    @abstractmethod
    def used_nbytes(self, device_id: str) -> int:
        """Return how much of a device's memory this process's arrays take."""

    @abstractmethod
    def bound_memory(self, device_id: str, nbytes: int) -> None:
        """Let this process's arrays take no more than `nbytes` of a device's memory; 0: all."""

    @abstractmethod
    def working_on(self, device_id: str) -> AbstractContextManager[None]:
        """While inside, compute on this device, in an order of this thread's own."""

    # What follows from it.

    def upload(self, array: Value) -> Value:
        """Return a value with every array on the device; None stays None."""
        if isinstance(array, np.ndarray):
            return self.to_device(array)
        return [self.upload(item) for item in array] if isinstance(array, list) else array

    def download(self, value: Value) -> Value:
        """Return a value with every array on the host."""
        if value is None or isinstance(value, np.ndarray):
            return value
        if isinstance(value, list):
            return [self.download(item) for item in value]
        return self.to_host(value) if self.is_on_device(value) else value

    def is_on_device(self, value: Value) -> bool:
        """Whether a value is one array in a device's memory."""
        return hasattr(value, "dtype") and not isinstance(value, np.ndarray | np.generic)

    def function(
        self, kernel: Kernel, keywords: Mapping[str, Any], on_host: bool
    ) -> Callable[..., Any]:
        """Return the kernel as a function of inputs on either side, put where it wants them.

        What runs on the host leaves its results there: who reads them may be there too.
        """
        if kernel.op_type in _OF_SHAPES and not kernel.domain:
            return partial(kernel.function, np, **keywords)
        if on_host or kernel.host == (ALL,):
            on_host_side = partial(kernel.function, np, **keywords)

            def run_on_host(*inputs: Value) -> Any:
                return on_host_side(*map(self.download, inputs))

            return run_on_host
        constants = {n: self.upload(v) for n, v in keywords.items()}
        compute = partial(kernel.function, self.xp, **constants)

        def run(*inputs: Value, **bodies: Any) -> Any:
            placed = [
                self.download(value) if kernel.reads_on_host(position) else self.upload(value)
                for position, value in enumerate(inputs)
            ]
            return compute(*placed, **bodies)

        return run

    def host_values(self, nodes: Sequence[Node], constants: Mapping[str, np.ndarray]) -> set[str]:
        """Return shapes, and what is computed from shapes and constants alone.

        They end as some node's shape, axes or counts, which is read on the host.
        """
        hosted: set[str] = set()
        for node in nodes:
            if node.domain:
                continue
            fixed = [constants[name] for name in node.reads if name in constants]
            moving = [name for name in node.reads if name not in constants]
            if node.op_type in _OF_SHAPES or (
                node.op_type in _SHAPE_ARITHMETIC
                and moving
                and hosted.issuperset(moving)
                and all(array.size <= _MOST_SIZES for array in fixed)
            ):
                hosted.update(node.writes)
        return hosted
