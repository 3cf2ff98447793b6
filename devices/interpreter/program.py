"""An interpreted program: the main graph as a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from hetero.devices.errors import BlobError
from hetero.devices.interpreter.backend import ArrayBackend
from hetero.devices.interpreter.block import Block, build_block, read_only
from hetero.devices.interpreter.implementations import Scope
from hetero.devices.model.extension import with_allowed_extensions
from hetero.devices.model.model import Model
from hetero.devices.model.node_validation import check_self_contained
from hetero.devices.model.stub_model import attach_weights
from hetero.devices.plugin.program import ExecutedNode, Payload, Program, RunContext, Value

#: Version of the exported format.
_FORMAT: Final = 1


class InterpretedProgram(Program):
    """A transformed model, run node by node."""

    def __init__(self, model: Model, backend: ArrayBackend) -> None:
        self._model = model
        self._block: Block = build_block(
            model.nodes,
            inputs=[port.name for port in model.inputs],
            outputs=[port.name for port in model.outputs],
            constants={name: constant.array for name, constant in model.constants.items()},
            scope=Scope.of_model(model, backend),
        )

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Compute the outputs; KernelError if a node's inputs break its specification."""
        with np.errstate(all="ignore"):  # infinity and NaN are results, not warnings
            return self._block.run(inputs, context, profile=context.profile)

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return the runtime model, in execution order."""
        return tuple(
            ExecutedNode(t.node.name, t.node.op_type, i, t.implementation.label, t.node.covers)
            for i, t in enumerate(self._block.tasks)
        )

    def export(self) -> Payload:
        """Return the transformed graph without weights, and the weights as tensors."""
        skeleton = self._model.to_proto(weights="stub")
        return Payload(
            {
                "format": _FORMAT,
                "graph": skeleton.SerializeToString(deterministic=True),
                "covers": {n.name: list(n.covers) for n in self._model.nodes},
            },
            {
                name: constant.array
                for name, constant in self._model.constants.items()
                if constant.array.dtype != object
            },
        )

    @classmethod
    def load(cls, payload: Payload, extensions: Sequence[str] = (), **options: Any) -> Self:
        """Make a program from an exported one, without transforming it again.

        `options` are arguments of the constructor. BlobError: the payload is damaged, or of another
        format.
        """
        header = payload.header
        if header.get("format") != _FORMAT:
            raise BlobError(
                f"expected a payload of format {_FORMAT}, got {header.get('format')!r}. "
                "Compile the model again."
            )
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(header["graph"])
            check_self_contained(proto, payload.tensors, "the payload")
            arrays = {name: read_only(array) for name, array in payload.tensors.items()}
            model = attach_weights(proto, arrays, header["covers"])
            return cls(with_allowed_extensions(model, extensions), **options)
        except (DecodeError, KeyError, TypeError, ValueError) as error:
            raise BlobError(f"damaged payload: {error}. Compile the model again.") from error
