"""ONNX backend interface: runs ONNX's own test suite on any device string.

`device` is a device string of `Core.compile_model`; models run in this process.
See https://onnx.ai/onnx/api/backend.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from hetero.compile.compiled_model import CompiledModel
from hetero.devices.errors import HeteroError, TensorNameError
from hetero.shared_core import shared_core

__all__ = [
    "HeteroBackend",
    "HeteroBackendRep",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]


class HeteroBackendRep(BackendRep):
    """A model that is compiled for a device string."""

    def __init__(self, compiled: CompiledModel) -> None:
        self.compiled = compiled

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model on a list of inputs, a dict by name, or one array; return the outputs."""
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if isinstance(inputs, Sequence):
            ports = self.compiled.inputs
            if len(inputs) > len(ports):
                raise TensorNameError(f"inputs: expected at most {len(ports)}, got {len(inputs)}.")
            inputs = {p.name: v for p, v in zip(ports, inputs, strict=False)}
        return self.compiled(inputs).to_tuple()

    def close(self) -> None:
        """Release the model's memory on the devices."""
        self.compiled.close()


class HeteroBackend(Backend):
    """ONNX backend that compiles and runs models with hetero."""

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any
    ) -> HeteroBackendRep:
        """Compile `model` for `device`; `kwargs` are arguments of `Core.compile_model`."""
        return HeteroBackendRep(shared_core("inprocess").compile_model(model, device, **kwargs))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compile a model, run it once and release it."""
        prepared = cls.prepare(model, device, **kwargs)
        try:
            return prepared.run(inputs)
        finally:
            prepared.close()

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node with the operator set `opset_version`, by default the newest."""
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        names = [name for name in node.input if name]
        inputs_by_name = (
            dict(zip(names, inputs, strict=True)) if not isinstance(inputs, dict) else inputs
        )
        arrays = {name: np.asarray(value) for name, value in inputs_by_name.items()}
        graph = onnx.helper.make_graph(
            [node],
            node.op_type,
            [
                onnx.helper.make_tensor_value_info(
                    name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
                for name, array in arrays.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        model = onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid(node.domain, opset)]
        )
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether every device of the device string is available."""
        try:
            return bool(shared_core("inprocess").resolve_devices(device))
        except HeteroError:
            return False


prepare = HeteroBackend.prepare
run_model = HeteroBackend.run_model
run_node = HeteroBackend.run_node
supports_device = HeteroBackend.supports_device
