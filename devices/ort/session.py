"""What ONNX Runtime sessions are made of: models with weights as arrays, and missing types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import onnx
import onnxruntime

from hetero.devices.model.model import Model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.worker_process import Ended
from hetero.devices.ort.provider import Provider, libraries, quiet_options
from hetero.devices.ort.query import ASKED, FEEDABLE
from hetero.devices.ort.versions import lowered

#: Weights up to this many bytes stay in the model: optimisations look at them.
INLINE_NBYTES: Final = 1024


def session_model(model: Model, wanted: Sequence[str]) -> tuple[bytes, list[str]]:
    """Return ONNX bytes, and the names of the weights that are given beside them as arrays.

    `wanted` are the values to give out, each once, whether they are the model's outputs or not.
    """
    proto = model.to_proto(weights="stub", keep_nbytes=INLINE_NBYTES)
    # ONNX Runtime drops what no node reads, and then finds no place for its array.
    read = [tensor for tensor in proto.graph.initializer if tensor.name in model.consumers]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(read)
    declared = {o.name: o for o in proto.graph.output}
    del proto.graph.output[:]
    proto.graph.output.extend(declared.get(v) or onnx.ValueInfoProto(name=v) for v in wanted)
    stubs = []
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            constant = model.constants[tensor.name]
            if constant.spec.element_type in FEEDABLE:
                stubs.append(tensor.name)
            else:  # it takes no arrays of these
                tensor.CopyFrom(constant.to_proto())
    return lowered(proto).SerializeToString(), stubs


def open_session(
    data: bytes,
    weights: Mapping[str, np.ndarray],
    options: onnxruntime.SessionOptions,
    provider: Provider,
) -> tuple[onnxruntime.InferenceSession, list[np.ndarray]]:
    """Return a session, and the arrays whose memory it reads as long as it lives.

    `data` is what `session_model` gave and `weights` what it named; `options` gets the weights.
    """
    arrays = [np.require(array, None, ["C", "A"]) for array in weights.values()]
    if arrays:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays]
        options.add_external_initializers(list(weights), values)
    return provider.open_session(data, options), arrays


def with_types(model: Model, extensions: Sequence[str] = ()) -> Model:
    """Return the model with the types of values behind ONNX Runtime's own operators.

    ONNX's inference stops at operators of other domains; where it does, ONNX Runtime is asked.
    The model is returned as it is if every type is known, or ONNX Runtime cannot read it.
    """
    wanted = {*model.consumers, *(port.name for port in model.outputs)}
    unknown = [v for v in model.producers if v in wanted and not model.spec(v).type]
    if not unknown:
        return model
    data, stubs = session_model(model, unknown)
    weights = [(n, a.dtype.name, a.shape) for n in stubs for a in [model.constants[n].array]]
    nbytes = sum(model.constants[name].array.nbytes for name in stubs)
    found = ASKED.ask(_types, data, weights, libraries(extensions), nbytes=nbytes)
    if isinstance(found, Ended):
        return model
    specs = {n: TensorSpec(n, t, None if s is None else tuple(s)) for n, t, s in found}
    return model.replace(specs=dict(model.specs) | specs)


def _types(
    data: bytes, weights: Sequence[tuple[str, str, Sequence[int]]], libraries: Sequence[str]
) -> list[tuple[str, str, list[int | str | None] | None]]:
    """Return name, type and shape of what a model gives out; called in a process of its own."""
    # Nobody reads the contents of what is given beside it.
    arrays = {name: np.zeros(shape, dtype) for name, dtype, shape in weights}
    provider = Provider(libraries=tuple(libraries))
    try:
        session, _ = open_session(data, arrays, quiet_options(), provider)
    except Exception:  # the query finds each node's own reason
        return []
    return [
        (port.name, port.type, list(port.shape) if port.type.startswith("tensor(") else None)
        for port in session.get_outputs()
    ]
