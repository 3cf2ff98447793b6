"""Model compiled for a GPU, and remote tensors in its memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any

import numpy as np

from hetero.devices.gpu.backend import DeviceBackend
from hetero.devices.gpu.graph import GraphCache, RunGraph, signature
from hetero.devices.interpreter.program import InterpretedProgram
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import RunContext, Value
from hetero.devices.plugin.remote_memory import RemoteContext, RemoteTensor


class GPUTensor(RemoteTensor):
    """A tensor in a GPU's memory; programs of the same device read its `array`."""

    def __init__(self, context: GPUContext, array: Any) -> None:
        self.device = context.device
        self.array = array
        self.shape = tuple(array.shape)
        self.dtype = np.dtype(array.dtype)
        self._context = context

    def to_host(self) -> np.ndarray:
        """Return a copy on the host."""
        with self._context.activate():
            host: np.ndarray = self._context.backend.download(self.array)
        return host

    def copy_from(self, array: np.ndarray) -> None:
        """Overwrite the contents with an array; TensorShapeError if its shape differs."""
        self.check_shape(array)
        with self._context.activate():
            self.array[...] = self._context.backend.upload(array.astype(self.dtype, copy=False))
            self._context.backend.finish()


class GPUContext(RemoteContext):
    """The memory of one GPU."""

    def __init__(self, backend: DeviceBackend, device: str, device_id: str) -> None:
        self.device = device
        self.backend = backend
        self._device_id = device_id

    def activate(self) -> Any:
        """Make the device current for this thread in a `with` block."""
        return self.backend.activate(self._device_id)

    def from_host(self, array: np.ndarray) -> GPUTensor:
        """Copy an array to the device."""
        with self.activate():
            tensor = GPUTensor(self, self.backend.upload(array))
            self.backend.finish()
        return tensor


class GPUProgram(InterpretedProgram):
    """A model whose constants are in a GPU's memory.

    `device` is the device's full name and `device_id` its id. Each thread runs in its own stream.
    `has_graphs`: runs with equal input shapes launch a CUDA graph. `limit_nbytes`: largest size of
    the model's arrays on the device; 0: no limit.
    """

    def __init__(
        self,
        model: Model,
        backend: DeviceBackend,
        device: str,
        device_id: str,
        has_graphs: bool,
        limit_nbytes: int,
    ) -> None:
        self._backend = backend
        self._device_id = device_id
        self._memory = GPUContext(backend, device, device_id)
        self._pool = backend.make_pool(device_id, limit_nbytes) if limit_nbytes else None
        with self._activate():
            super().__init__(model, backend)
            backend.finish()
        #: None if runs have no graphs; those that read inputs on the host depend on their values.
        self._graphs: GraphCache | None = None
        if has_graphs and not self._block.host_inputs:
            self._graphs = GraphCache(backend)

    def _activate(self) -> AbstractContextManager[None]:
        """Make the device and the model's memory current for this thread in a `with` block."""
        return self._backend.activate(self._device_id, self._pool)

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Compute the outputs; KernelError if a node's inputs violate its specification."""
        backend = self._backend
        values = [value.array if isinstance(value, GPUTensor) else value for value in inputs]
        key = signature(values) if self._graphs and not context.profile else None
        with self._activate():
            graph = self._graphs.find(key) if self._graphs and key else None
            if graph and graph.lock.acquire(blocking=False):
                try:
                    return self._launch(graph, values, context)
                finally:
                    graph.lock.release()
            start_s = perf_counter()
            values = [
                value if position in self._block.host_inputs else backend.upload(value)
                for position, value in enumerate(values)
            ]
            context.upload_s += perf_counter() - start_s
            with np.errstate(all="ignore"):
                outputs = self._block.run(values, context, profile=context.profile)
                backend.finish()
                if self._graphs and key and self._graphs.is_due(key):
                    self._graphs.record(
                        key, values, outputs, lambda copies: self._block.run(copies, context)
                    )
            return self._results(outputs, context)

    def _launch(self, graph: RunGraph, values: Sequence[Value], context: RunContext) -> list[Value]:
        """Run a graph on new inputs, and return copies of its outputs."""
        backend = self._backend
        context.check_cancelled()
        start_s = perf_counter()
        for array, value in zip(graph.inputs, values, strict=True):
            backend.overwrite(array, value)
        context.upload_s += perf_counter() - start_s
        graph.launch()
        backend.finish()
        outputs = [
            backend.copy(array) if position in context.resident_outputs else array
            for position, array in enumerate(graph.outputs)
        ]
        results = self._results(outputs, context)
        backend.finish()
        return results

    def _results(self, outputs: Sequence[Value], context: RunContext) -> list[Value]:
        """Return outputs on the host, or as tensors on the device if they may stay there."""
        backend = self._backend
        start_s = perf_counter()
        results = [
            GPUTensor(self._memory, value)
            if position in context.resident_outputs and backend.is_on_device(value)
            else backend.download(value)
            for position, value in enumerate(outputs)
        ]
        context.download_s += perf_counter() - start_s
        return results

    def takes_remote(self, tensor: RemoteTensor) -> bool:
        """Return whether a tensor is in this device's memory."""
        return isinstance(tensor, GPUTensor) and tensor.device == self._memory.device

    def close(self) -> None:
        """Free the memory of constants and graphs."""
        self._block.release()
        if self._graphs:
            self._graphs.clear()
        self._backend.release_unused_memory(self._device_id)
