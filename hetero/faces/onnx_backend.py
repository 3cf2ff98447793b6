"""The ONNX backend interface, so that ONNX's own test suite runs against any device string.

`device` is any device string that `Core.compile_model` takes; models run in this process.
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
    """A prepared model."""

    def __init__(self, compiled: CompiledModel) -> None:
        self.compiled = compiled

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs for `inputs`: a list by position, a dict by name, or one array."""
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if isinstance(inputs, Sequence):
            ports = self.compiled.inputs
            if len(inputs) > len(ports):
                raise TensorNameError(f"{len(inputs)} inputs given, the model takes {len(ports)}.")
            inputs = {p.name: v for p, v in zip(ports, inputs, strict=False)}
        return self.compiled(inputs).to_tuple()

    def close(self) -> None:
        """Give back what the devices hold for the model."""
        self.compiled.close()


class HeteroBackend(Backend):
    """hetero as an ONNX backend."""

    @classmethod
    def prepare(
        cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any
    ) -> HeteroBackendRep:
        """Compile `model` for `device`; keywords go to `Core.compile_model`."""
        return HeteroBackendRep(shared_core("inprocess").compile_model(model, device, **kwargs))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compile, run once, release."""
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
        """Run one node; `opset_version` chooses the operator set (default: the newest)."""
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        names = [name for name in node.input if name]
        given = dict(zip(names, inputs, strict=True)) if not isinstance(inputs, dict) else inputs
        arrays = {name: np.asarray(value) for name, value in given.items()}
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
        """Whether every device that the string names is here."""
        try:
            return bool(shared_core("inprocess").resolve_devices(device))
        except HeteroError:
            return False


prepare = HeteroBackend.prepare
run_model = HeteroBackend.run_model
run_node = HeteroBackend.run_node
supports_device = HeteroBackend.supports_device
