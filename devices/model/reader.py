"""Reading a model: from a file, bytes or a ModelProto, with weights inside or beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import BinaryIO, Final

import onnx
from google.protobuf.message import DecodeError

from hetero.devices.errors import (
    ModelError,
    ModelNotFoundError,
    ModelTypeError,
    UnsupportedOpsetError,
)
from hetero.devices.model.light_models import PREFIX, light_model_path
from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.node_validation import validate_attribute, validate_nodes
from hetero.devices.model.tensor_proto import PROTOBUF_NBYTES, dense_array, tensor_array
from hetero.devices.model.tensor_spec import TensorSpec, check_text
from hetero.devices.model.type_inference import without_shape

#: Domains whose newest version the installed onnx knows.
KNOWN_OPSETS: Final = {
    "": onnx.defs.onnx_opset_version(),
    "ai.onnx.ml": max(
        s.since_version for s in onnx.defs.get_all_schemas() if s.domain == "ai.onnx.ml"
    ),
}

#: What exporters call every graph; its file's name tells more.
_ANY_NAME: Final = ("", "graph", "main_graph", "torch_jit", "torch-jit-export")

Source = str | Path | bytes | BinaryIO | onnx.ModelProto


def read_model(source: Source | Model) -> Model:
    """Read an ONNX model.

    Parameters
    ----------
    source : str, Path, bytes, binary file, onnx.ModelProto or Model
        A file, ``light:NAME`` for a model that ships with onnx, a file's contents, or a model in
        memory. Weights kept beside a file are memory-mapped; what nodes hold there, in their
        attributes and bodies, is read into them.

    Raises
    ------
    ModelTypeError
        `source` is not one of these.
    ModelNotFoundError
        There is no such file.
    ModelError
        Not ONNX, damaged, over 2 GiB without external data, or a graph that is not a graph.
    ExternalDataError
        Weights beside the model are missing, short, or outside the model's folder.
    UnsupportedOpsetError
        An operator set newer than the installed onnx.
    """
    if isinstance(source, Model):
        return source
    if isinstance(source, onnx.ModelProto):
        return _from_proto(source, "the given ModelProto", None)
    if isinstance(source, str) and source.startswith(PREFIX):
        return _from_file(light_model_path(source))
    if isinstance(source, str | Path):
        return _from_file(Path(source))
    data = source.read() if hasattr(source, "read") else source
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ModelTypeError(
            "a model is a path, bytes, a binary file or an onnx.ModelProto; got "
            f"{type(data).__name__}"
        )
    return _from_proto(_parse(bytes(data), "the given bytes"), "the given bytes", None)


def _from_file(path: Path) -> Model:
    try:
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
        data = path.read_bytes()
    except ModelError:
        raise
    except OSError as error:
        raise ModelNotFoundError(f"{path}: cannot be read: {error}.") from error
    return _from_proto(_parse(data, str(path)), str(path), path)


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


def _from_proto(proto: onnx.ModelProto, where: str, file: Path | None) -> Model:
    if not proto.HasField("graph") or not (proto.opset_import or proto.graph.node):
        raise ModelError(f"{where}: not an ONNX model: it has no graph and imports no operators.")
    header = _header(proto, where)
    for function in header.functions:
        validate_nodes(function.node, where, file)
        for attribute in function.attribute_proto:
            validate_attribute(attribute, where, file)
        check_function(function, where)
    graph = proto.graph
    check_text((graph.name,), where)
    for info in graph.value_info:
        TensorSpec.from_proto(info)
    arrays = {t.name: tensor_array(t, where, file) for t in graph.initializer}
    for sparse in graph.sparse_initializer:
        arrays[sparse.values.name] = dense_array(sparse, where, file)
    constants = {name: Constant(name, array) for name, array in arrays.items()}
    inputs = [TensorSpec.from_proto(i) for i in graph.input if i.name not in constants]
    # Before IR version 4 initializers had to be inputs as well, and were not to be given.
    optional = [i for i in graph.input if i.name in constants and proto.ir_version >= 4]
    outputs = [TensorSpec.from_proto(o) for o in graph.output]
    if twice := [n for n, count in Counter(i.name for i in graph.input).items() if count > 1]:
        raise ModelError(f"{where}: inputs {twice} are declared twice; give each its own name.")
    if not outputs and graph.node:
        raise ModelError(f"{where}: the graph has no outputs; declare what the model computes.")
    protos = [deepcopy(node) for node in graph.node]
    validate_nodes(protos, where, file)
    given = {i.name for i in inputs} | set(constants)
    nodes = _sort(_named(protos), given, [port.name for port in outputs], where)
    return Model(
        header,
        name=Path(where).stem if file and graph.name in _ANY_NAME else graph.name or "graph",
        nodes=nodes,
        inputs=inputs,
        outputs=outputs,
        constants=constants,
        value_info=[without_shape(i) for i in graph.value_info if i.name not in constants],
        optional_inputs=[TensorSpec.from_proto(i) for i in optional],
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
    for prop in header.metadata_props:
        check_text((prop.key, prop.value), where)
    _check_opsets(header.opset_import, where)
    return header


def _check_opsets(imports: Iterable[onnx.OperatorSetIdProto], where: str) -> None:
    check_text((entry.domain for entry in imports), where)
    for entry in imports:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if not 0 <= entry.version < 2**31:
            raise ModelError(
                f"{where}: imports {domain or 'ai.onnx'} opset {entry.version}; versions are "
                "small numbers. Export the model again."
            )
        known = KNOWN_OPSETS.get(domain)
        if known is not None and entry.version > known:
            raise UnsupportedOpsetError(
                f"{where}: imports {domain or 'ai.onnx'} opset {entry.version}; the installed "
                f"onnx {onnx.__version__} knows up to {known}. Install a newer onnx, or export "
                "for an older opset.",
                domain=domain,
                version=entry.version,
            )


def check_function(function: onnx.FunctionProto, where: str) -> None:
    """Raise ModelError if a function's nodes are no graph, or not in order."""
    check_text((function.name, function.domain, function.overload), where)
    check_text((*function.input, *function.output, *function.attribute), where)
    _check_opsets(function.opset_import, f"{where}: function {function.name!r}")
    where = f"{where}: function {function.name!r}"
    nodes = [Node.from_proto(node) for node in function.node]
    if _sort(nodes, set(function.input), function.output, where) != nodes:
        raise ModelError(f"{where}: a node reads what a later one makes. Export the model again.")


def _named(protos: Sequence[onnx.NodeProto]) -> list[Node]:
    counts = Counter(proto.name for proto in protos)
    taken = {name for name, count in counts.items() if name and count == 1}
    nodes = []
    for i, proto in enumerate(protos):
        name = proto.name
        if not name or counts[name] > 1:
            name = next((o for o in proto.output if o), f"{proto.op_type}_{i}")
            while name in taken:
                name += f":{proto.op_type}"
            taken.add(name)
        nodes.append(Node.from_proto(proto, name=name))
    return nodes


def _sort(nodes: Sequence[Node], given: set[str], outputs: Iterable[str], where: str) -> list[Node]:
    """Order nodes so that each follows what it reads: as given, if each does."""
    maker: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for value in node.writes:
            if value in maker or value in given:
                other = nodes[maker[value]].name if value in maker else "the inputs"
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
        if output not in maker and output not in given:
            raise ModelError(f"{where}: output {output!r} is made by no node.")
    if all(maker.get(v, -1) < i for i, node in enumerate(nodes) for v in node.reads):
        return list(nodes)
    read = {i: [maker[v] for v in node.reads if v in maker] for i, node in enumerate(nodes)}
    try:
        return [nodes[i] for i in TopologicalSorter(read).static_order()]
    except CycleError as error:
        stuck = [nodes[i].name for i in error.args[1][:10]]
        raise ModelError(f"{where}: nodes {stuck} form a cycle; an ONNX graph has none.") from error
