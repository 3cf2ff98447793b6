"""Models as weight stubs and arrays: the format in which devices export and import models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy

import numpy as np
import onnx

from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.tensor_proto import tensor_array
from hetero.devices.model.tensor_spec import TensorSpec


def attach_weights(
    proto: onnx.ModelProto,
    arrays: Mapping[str, np.ndarray],
    covers: Mapping[str, Sequence[str]] | None = None,
) -> Model:
    """Return the model from a proto with weight stubs and the weights as arrays.

    The proto comes from ``Model.to_proto(weights="stub")``. `covers` maps the names of nodes to the
    original nodes that they replace; nodes without an entry cover themselves.
    """
    graph, names = proto.graph, covers or {}
    inline = [t for t in graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL]
    constants = {**arrays, **{tensor.name: tensor_array(tensor) for tensor in inline}}
    header = deepcopy(proto)
    header.ClearField("graph")
    return Model(
        header,
        name=graph.name,
        nodes=[Node.from_proto(n, covers=tuple(names.get(n.name, ()))) for n in graph.node],
        inputs=[TensorSpec.from_proto(value) for value in graph.input],
        outputs=[TensorSpec.from_proto(value) for value in graph.output],
        constants={name: Constant(name, array) for name, array in constants.items()},
        value_info=graph.value_info,
    )
