"""Preparation of ONNX Runtime sessions: weights as shared arrays, and inferred types."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx

from hetero.devices.model.mapped_pages import release_pages
from hetero.devices.model.model import Model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.worker_process import WorkerFailure
from hetero.devices.ort.provider import Provider, custom_operator_libraries, quiet_options
from hetero.devices.ort.query import FEEDABLE, WORKER
from hetero.devices.ort.runtime import onnxruntime
from hetero.devices.ort.versions import lower_versions

#: Weights up to this many bytes stay in the model, where optimisations read them.
INLINE_NBYTES: Final = 1024
#: Name of the file of mapped weights, and the option for its folder.
_WEIGHTS_FILE: Final = "weights"
_FOLDER_OPTION: Final = "session.model_external_initializers_file_folder_path"


def session_model(model: Model, output_names: Sequence[str]) -> tuple[bytes, list[str]]:
    """Return a model as ONNX bytes, and the names of the weights that it does not contain.

    The session receives those weights as arrays. `output_names` are the values that it returns,
    without duplicates; they need not be outputs of the model.
    """
    proto = model.to_proto(weights="stub", keep_nbytes=INLINE_NBYTES)
    # ONNX Runtime removes weights without readers, and then rejects the arrays of their names.
    weights = [tensor for tensor in proto.graph.initializer if tensor.name in model.consumers]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(weights)
    declarations = {o.name: o for o in proto.graph.output}
    del proto.graph.output[:]
    proto.graph.output.extend(
        declarations.get(name) or onnx.ValueInfoProto(name=name) for name in output_names
    )
    stubs = []
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            constant = model.constants[tensor.name]
            if constant.spec.element_type in FEEDABLE:
                stubs.append(tensor.name)
            else:  # ONNX Runtime accepts no arrays of this type
                tensor.CopyFrom(constant.to_proto())
    return lower_versions(proto).SerializeToString(), stubs


def open_session(
    data: bytes,
    weights: Mapping[str, np.ndarray],
    options: onnxruntime.SessionOptions,
    provider: Provider,
) -> tuple[onnxruntime.InferenceSession, list[np.ndarray]]:
    """Open a session whose weights are shared arrays.

    `data` and the names in `weights` come from `session_model`; the weights are added to `options`.
    Also returns the arrays, which must outlive the session.
    """
    arrays = _add_weights(weights, options)
    return provider.open_session(data, options), arrays


def compile_context(
    data: bytes,
    weights: Mapping[str, np.ndarray],
    options: onnxruntime.SessionOptions,
    provider: Provider,
) -> bytes:
    """Return a model with the provider's compiled subgraphs; empty if the provider has none.

    Takes the arguments of `open_session`.
    """
    arrays = _add_weights(weights, options)
    context = provider.compile_context(data, options)
    del arrays  # the compiler read them
    return context


def _add_weights(
    weights: Mapping[str, np.ndarray], options: onnxruntime.SessionOptions
) -> list[np.ndarray]:
    """Add weights to session options; return the arrays, which must outlive their use."""
    arrays = [np.require(array, None, ["C", "A"]) for array in weights.values()]
    if arrays:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays]
        options.add_external_initializers(list(weights), values)
    return arrays


def open_mapped_session(
    data: bytes,
    weights: Mapping[str, np.ndarray],
    options: onnxruntime.SessionOptions,
    provider: Provider,
) -> onnxruntime.InferenceSession:
    """Open a session that maps its weights from a file, so that they are in memory once.

    The file is deleted when the session is open; the mapping stays. Takes the arguments of
    `open_session`.
    """
    proto = onnx.ModelProto.FromString(data)
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    with tempfile.TemporaryDirectory(prefix="hetero-ort-") as folder:
        with (Path(folder) / _WEIGHTS_FILE).open("wb") as file:
            for name, array in weights.items():
                file.write(bytes(-file.tell() % mmap.PAGESIZE))
                place = {"location": _WEIGHTS_FILE, "offset": file.tell(), "length": array.nbytes}
                del tensors[name].external_data[:]
                for key, value in place.items():
                    tensors[name].external_data.add(key=key, value=str(value))
                if array.size:
                    file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
                release_pages(array)
        options.add_session_config_entry(_FOLDER_OPTION, folder)
        return provider.open_session(proto.SerializeToString(), options)


def infer_missing_types(model: Model, extensions: Sequence[str] = ()) -> Model:
    """Return a model with types that ONNX Runtime infers and ONNX does not.

    ONNX's type inference stops at operators of other domains. Returns the same model if every type
    is known, or if ONNX Runtime cannot load the model.
    """
    used = {*model.consumers, *(port.name for port in model.outputs)}
    untyped_values = [v for v in model.producers if v in used and not model.spec(v).type]
    if not untyped_values:
        return model
    data, stubs = session_model(model, untyped_values)
    weights = [(n, a.dtype.name, a.shape) for n in stubs for a in [model.constants[n].array]]
    nbytes = sum(model.constants[name].array.nbytes for name in stubs)
    libraries = custom_operator_libraries(extensions)
    types = WORKER.call(_output_types, data, weights, libraries, nbytes=nbytes)
    if isinstance(types, WorkerFailure):
        return model
    specs = {n: TensorSpec(n, t, None if s is None else tuple(s)) for n, t, s in types}
    return model.replace(specs=dict(model.specs) | specs)


def _output_types(
    data: bytes, weights: Sequence[tuple[str, str, Sequence[int]]], libraries: Sequence[str]
) -> list[tuple[str, str, list[int | str | None] | None]]:
    """Return the name, type and shape of a model's outputs; runs in the worker process."""
    # Types and shapes do not depend on the contents of the weights.
    arrays = {name: np.zeros(shape, dtype) for name, dtype, shape in weights}
    provider = Provider(libraries=tuple(libraries))
    try:
        session, _ = open_session(data, arrays, quiet_options(), provider)
    except Exception:  # the query reports the reason for each node
        return []
    return [
        (port.name, port.type, list(port.shape) if port.type.startswith("tensor(") else None)
        for port in session.get_outputs()
    ]
