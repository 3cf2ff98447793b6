"""Reading a model: from a file, bytes or a ModelProto, with weights inside or beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from devices.errors import (
    ExternalDataError,
    ModelError,
    ModelNotFoundError,
    ModelTypeError,
    UnsupportedOpsetError,
)
from devices.light_models import PREFIX, light_model_path
from devices.model import PROTOBUF_NBYTES, Constant, Model, Node
from devices.tensor_spec import DTYPES, TensorSpec

#: Domains whose newest version the installed onnx knows.
_KNOWN_OPSETS: Final = {
    domain: max(s.since_version for s in onnx.defs.get_all_schemas() if s.domain == domain)
    for domain in ("ai.onnx.ml",)
} | {"": onnx.defs.onnx_opset_version()}

Source = str | Path | bytes | onnx.ModelProto


def read_model(source: Source | Model) -> Model:
    """Read an ONNX model.

    Parameters
    ----------
    source : str, Path, bytes, onnx.ModelProto or Model
        A file, ``light:NAME`` for a model that ships with onnx, a file's contents, or a model in
        memory. Weights kept beside a file are memory-mapped.

    Raises
    ------
    ModelTypeError
        `source` is none of these.
    ModelNotFoundError
        There is no such file.
    ModelError
        Not ONNX, over 2 GiB without external data, or a graph that is not a graph.
    ExternalDataError
        Weights beside the model are missing, short, or outside the model's folder.
    UnsupportedOpsetError
        An operator set newer than the installed onnx.
    """
    if isinstance(source, Model):
        return source
    if isinstance(source, onnx.ModelProto):
        return _from_proto(source, "the given ModelProto", None)
    if isinstance(source, bytes | bytearray | memoryview):
        return _from_proto(_parse(bytes(source), "the given bytes"), "the given bytes", None)
    if isinstance(source, str) and source.startswith(PREFIX):
        path = light_model_path(source)
    elif isinstance(source, str | Path):
        path = Path(source)
    else:
        raise ModelTypeError(
            f"a model is a path, bytes or an onnx.ModelProto; got {type(source).__name__}"
        )
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ModelNotFoundError(
            f"{path}: {what}; a model is an ONNX file, or light:NAME for one that onnx ships."
        )
    if (nbytes := path.stat().st_size) > PROTOBUF_NBYTES:
        raise ModelError(
            f"{path}: {nbytes} bytes; ONNX files hold at most {PROTOBUF_NBYTES}. Save it with "
            "external data: onnx.save_model(model, path, save_as_external_data=True)."
        )
    return _from_proto(_parse(path.read_bytes(), str(path)), str(path), path.parent)


def _parse(data: bytes, where: str) -> onnx.ModelProto:
    if len(data) > PROTOBUF_NBYTES:
        raise ModelError(
            f"{where}: {len(data)} bytes; ONNX holds at most {PROTOBUF_NBYTES} without "
            "external data."
        )
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(f"{where}: not an ONNX model ({len(data)} bytes: {error}).") from error
    return proto


def _from_proto(proto: onnx.ModelProto, where: str, folder: Path | None) -> Model:
    if not proto.HasField("graph") or not (proto.opset_import or proto.graph.node):
        raise ModelError(f"{where}: not an ONNX model: it has no graph and imports no operators.")
    header = _header(proto, where)
    graph = proto.graph
    constants = {t.name: Constant(t.name, _array(t, folder, where)) for t in graph.initializer}
    for sparse in graph.sparse_initializer:
        constants[sparse.values.name] = Constant(sparse.values.name, _dense(sparse))
    inputs = [TensorSpec.from_proto(i) for i in graph.input if i.name not in constants]
    outputs = [TensorSpec.from_proto(o) for o in graph.output]
    nodes = _sort(_named(graph.node), {i.name for i in inputs} | set(constants), outputs, where)
    return Model(
        header,
        name=graph.name or "graph",
        nodes=nodes,
        inputs=inputs,
        outputs=outputs,
        constants=constants,
        value_info=graph.value_info,
    )


def _header(proto: onnx.ModelProto, where: str) -> onnx.ModelProto:
    if proto.ir_version > onnx.IR_VERSION:
        raise UnsupportedOpsetError(
            f"{where}: IR version {proto.ir_version}; the installed onnx {onnx.__version__} knows "
            f"up to {onnx.IR_VERSION}. Install a newer onnx, or export for an older version."
        )
    header = onnx.ModelProto()
    for field, value in proto.ListFields():
        if field.name in ("graph", "training_info"):
            continue
        if field.is_repeated:
            getattr(header, field.name).extend(value)
        else:
            setattr(header, field.name, value)
    # From version 4 on, initializers need not be inputs as well; extraction relies on it.
    header.ir_version = max(header.ir_version, 4)
    if not header.opset_import:  # IR versions below 3 import nothing: operator set 1
        header.opset_import.add(domain="", version=1)
    for entry in header.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        known = _KNOWN_OPSETS.get(domain)
        if known is not None and entry.version > known:
            raise UnsupportedOpsetError(
                f"{where}: imports {domain or 'ai.onnx'} opset {entry.version}; the installed "
                f"onnx {onnx.__version__} knows up to {known}. Install a newer onnx, or export "
                "for an older opset.",
                domain=domain,
                version=entry.version,
            )
    return header


def _named(protos: Iterable[onnx.NodeProto]) -> list[Node]:
    copies = []
    for proto in protos:
        copy = onnx.NodeProto()
        copy.CopyFrom(proto)
        copies.append(copy)
    counts = Counter(proto.name for proto in copies)
    taken = {name for name, count in counts.items() if name and count == 1}
    nodes = []
    for i, proto in enumerate(copies):
        name = proto.name
        if not name or counts[name] > 1:
            name = next((o for o in proto.output if o), f"{proto.op_type}_{i}")
            while name in taken:
                name += f":{proto.op_type}"
            taken.add(name)
        nodes.append(Node.from_proto(proto, name=name))
    return nodes


def _sort(
    nodes: Sequence[Node], given: set[str], outputs: Sequence[TensorSpec], where: str
) -> list[Node]:
    """Order nodes so that each follows what it reads, keeping the given order where it does."""
    maker: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for value in node.writes:
            if value in maker or value in given:
                other = nodes[maker[value]].name if value in maker else "the graph's inputs"
                raise ModelError(
                    f"{where}: value {value!r} is made twice, by {other!r} and by {node.name!r}; "
                    "ONNX values are made once."
                )
            maker[value] = i
    for node in nodes:
        for value in node.reads:
            if value not in maker and value not in given:
                raise ModelError(
                    f"{where}: node {node.name!r} ({node.op_type}) reads {value!r}, which no "
                    "node, input or initializer makes."
                )
    for output in outputs:
        if output.name not in maker and output.name not in given:
            raise ModelError(f"{where}: output {output.name!r} is made by no node.")
    waiting = [sum(v in maker for v in node.reads) for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        for value in node.reads:
            if value in maker:
                readers[maker[value]].append(i)
    if all(maker.get(v, -1) < i for i, node in enumerate(nodes) for v in node.reads):
        return list(nodes)
    ready = [i for i in range(len(nodes) - 1, -1, -1) if not waiting[i]]
    ordered: list[Node] = []
    while ready:
        i = ready.pop()
        ordered.append(nodes[i])
        for reader in reversed(readers[i]):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    if len(ordered) < len(nodes):
        stuck = [nodes[i].name for i in range(len(nodes)) if waiting[i]]
        raise ModelError(f"{where}: nodes {stuck[:10]} form a cycle; an ONNX graph has none.")
    return ordered


def _array(tensor: onnx.TensorProto, folder: Path | None, where: str) -> np.ndarray:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _external_array(tensor, folder, where)
    dtype = DTYPES.get(tensor.data_type)
    if dtype is None:
        raise ModelError(
            f"{where}: initializer {tensor.name!r} has element type {tensor.data_type}, which "
            "ONNX does not define."
        )
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise ModelError(f"{where}: initializer {tensor.name!r} is damaged: {error}.") from error
    array.setflags(write=False)
    return array


def _external_array(tensor: onnx.TensorProto, folder: Path | None, where: str) -> np.ndarray:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    what = f"{where}: weight {tensor.name!r} lies in external file {location!r}"
    if folder is None:
        raise ExternalDataError(
            f"{what}, but there is no folder to look in. Read the model by its path, or load its "
            "external data first (onnx.load_external_data_for_model)."
        )
    root = folder.resolve()
    path = root if "\0" in location else (root / location).resolve()
    if path == root:
        raise ExternalDataError(f"{what}, which names no file in {root}.")
    if Path(location).is_absolute() or not path.is_relative_to(root):
        raise ExternalDataError(
            f"{what}, outside the model's folder {root}; refused. Keep a model's files together."
        )
    if not path.is_file():
        raise ExternalDataError(f"{what}, which does not exist in {root}.")
    dtype = DTYPES[tensor.data_type]
    shape = tuple(tensor.dims)
    count = int(np.prod(shape, dtype=np.int64))
    available = path.stat().st_size
    try:
        offset = int(entries.get("offset", "0") or 0)
        nbytes = int(entries["length"]) if entries.get("length") else count * dtype.itemsize
    except ValueError as error:
        raise ExternalDataError(f"{what}, with an offset or length that is no number.") from error
    if offset < 0 or nbytes < 0 or offset + nbytes > available:
        raise ExternalDataError(
            f"{what}: bytes {offset} to {offset + nbytes} are wanted, the file has {available}."
        )
    if onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * count != nbytes:
        if tensor.data_type in _NARROW:
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            copy.ClearField("external_data")
            copy.data_location = onnx.TensorProto.DEFAULT
            with path.open("rb") as file:
                file.seek(offset)
                copy.raw_data = file.read(nbytes)
            array: np.ndarray = numpy_helper.to_array(copy)
            array.setflags(write=False)
            return array
        raise ExternalDataError(
            f"{what}: {nbytes} bytes there, {count * dtype.itemsize} wanted for shape {shape} "
            f"of {dtype}."
        )
    if not count:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape or (1,)).reshape(shape)


#: Element types that files hold packed, several to a byte.
_NARROW: Final = frozenset(
    number
    for name, number in onnx.TensorProto.DataType.items()
    if name in ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2", "FLOAT6E2M3", "FLOAT6E3M2")
)


def _dense(sparse: onnx.SparseTensorProto) -> np.ndarray:
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    dense.setflags(write=False)
    return dense
