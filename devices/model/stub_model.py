"""A model whose weights lie beside its ONNX form, as arrays: what devices export, read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy

import numpy as np
import onnx

from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.tensor_proto import tensor_array
from hetero.devices.model.tensor_spec import TensorSpec


def attach_weights(
    skeleton: onnx.ModelProto,
    arrays: Mapping[str, np.ndarray],
    covers: Mapping[str, Sequence[str]] | None = None,
) -> Model:
    """Return the model of which `Model.to_proto` wrote the skeleton, with stubs for `arrays`.

    `covers`: the names that its nodes stand for, of those that stand for others.
    """
    graph, names = skeleton.graph, covers or {}
    inside = [t for t in graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL]
    constants = {**arrays, **{tensor.name: tensor_array(tensor) for tensor in inside}}
    header = deepcopy(skeleton)
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
