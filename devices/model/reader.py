"""Reader of ONNX models from files, bytes and ModelProtos, with inline or external weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import onnx
from google.protobuf.message import DecodeError

from hetero.devices.errors import (
    ModelError,
    ModelNotFoundError,
    ModelTypeError,
    UnsupportedOpsetError,
)
from hetero.devices.file_reader import read_regular
from hetero.devices.model.integer_ranges import RANGES
from hetero.devices.model.light_models import PREFIX, light_model_path
from hetero.devices.model.model import Constant, Model, Node, set_metadata
from hetero.devices.model.node_validation import validate_attribute, validate_nodes
from hetero.devices.model.tensor_proto import PROTOBUF_NBYTES, dense_array, tensor_array
from hetero.devices.model.tensor_spec import TensorSpec, check_text
from hetero.devices.model.type_inference import without_shape

#: Domain -> newest opset that the installed onnx supports.
SUPPORTED_OPSETS: Final = {
    "": onnx.defs.onnx_opset_version(),
    "ai.onnx.ml": max(
        s.since_version for s in onnx.defs.get_all_schemas() if s.domain == "ai.onnx.ml"
    ),
}

#: Default graph names of exporters; the file name is more informative.
_DEFAULT_NAMES: Final = ("", "graph", "main_graph", "torch_jit", "torch-jit-export")

#: Bytes 4 to 8 of a file in ONNX Runtime's own format.
_ORT_FORMAT: Final = b"ORTM"


class ModelReference(Protocol):
    """An object that refers to a model, such as the models of `hetero.openvino`."""

    def to_model(self) -> Model:
        """Return the model."""
        ...


Source = str | Path | bytes | BinaryIO | onnx.ModelProto | ModelReference


def read_model(source: Source | Model) -> Model:
    """Read an ONNX model.

    Parameters
    ----------
    source : str, Path, bytes, binary file, onnx.ModelProto, Model or ModelReference
        A path, ``light:NAME`` for a model of the onnx package, the contents of a file, or a model
        in memory. External weights are memory-mapped; external tensors of nodes (in attributes and
        bodies) are read into memory.

    Raises
    ------
    ModelTypeError
        `source` has another type.
    ModelNotFoundError
        The file does not exist.
    ModelError
        The data is not ONNX, is damaged or exceeds 2 GiB, or the graph is invalid.
    ExternalDataError
        An external data file is missing, too short, or outside the model's folder.
    UnsupportedOpsetError
        The opset is newer than the installed onnx.
    """
    if isinstance(source, Model):
        return source
    if isinstance(source, onnx.ModelProto):
        return _from_proto(source, "the ModelProto", None)
    if isinstance(source, str) and source.startswith(PREFIX):
        model = _from_file(light_model_path(source))
        return model.replace(name=source.removeprefix(PREFIX))
    if isinstance(source, str | Path):
        return _from_file(Path(source))
    if hasattr(source, "to_model"):
        return source.to_model()
    data = source.read() if hasattr(source, "read") else source
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ModelTypeError(
            "expected a model as a path, bytes, a binary file or an onnx.ModelProto; got "
            f"{type(data).__name__}"
        )
    return _from_proto(_parse(bytes(data), "the model's bytes"), "the model's bytes", None)


def _from_file(path: Path) -> Model:
    try:
        if not path.is_file():
            problem = "is a folder" if path.is_dir() else "does not exist"
            raise ModelNotFoundError(
                f"{path} {problem}; expected an ONNX file, or light:NAME for a model of the onnx "
                "package."
            )
        if (nbytes := path.stat().st_size) > PROTOBUF_NBYTES:
            raise ModelError(
                f"{path}: expected at most {PROTOBUF_NBYTES} bytes, got {nbytes}. Save the model "
                "with external data: onnx.save_model(model, path, save_as_external_data=True)."
            )
        data = read_regular(path, PROTOBUF_NBYTES)
    except ModelError:
        raise
    except OSError as error:
        raise ModelNotFoundError(f"{path} cannot be read: {error}.") from error
    return _from_proto(_parse(data, str(path)), str(path), path)


def _parse(data: bytes, context: str) -> onnx.ModelProto:
    if len(data) > PROTOBUF_NBYTES:
        raise ModelError(
            f"{context}: expected at most {PROTOBUF_NBYTES} bytes, got {len(data)}. Save the model "
            "with external data, and read it by its path."
        )
    if data[4:8] == _ORT_FORMAT:
        raise ModelError(
            f"{context}: a model in ONNX Runtime's own format; expected an ONNX model. Read the "
            "model that it was converted from."
        )
    if data.lstrip()[:1] == b"<" and b"<net" in data[:4096]:
        raise ModelError(
            f"{context}: a model in OpenVINO's IR format; expected an ONNX model. Read the ONNX "
            "model that it was converted from; OpenVINO cannot write ONNX."
        )
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(
            f"{context}: not an ONNX model ({len(data)} bytes: {error}). Pass a complete ONNX file."
        ) from error
    return proto


def _from_proto(proto: onnx.ModelProto, context: str, file: Path | None) -> Model:
    if not proto.HasField("graph") or not (proto.opset_import or proto.graph.node):
        raise ModelError(
            f"{context}: not an ONNX model: it has no graph, or no opset and no nodes. Pass a "
            "complete ONNX file."
        )
    header = _header(proto, context)
    for function in header.functions:
        validate_nodes(function.node, context, file)
        for attribute in function.attribute_proto:
            validate_attribute(attribute, context, file)
        check_function(function, context)
    graph = proto.graph
    check_text((graph.name,), context)
    for info in graph.value_info:
        TensorSpec.from_proto(info)
    arrays = {t.name: tensor_array(t, context, file) for t in graph.initializer}
    for sparse in graph.sparse_initializer:
        arrays[sparse.values.name] = dense_array(sparse, context, file)
    constants = {name: Constant(name, array) for name, array in arrays.items()}
    inputs = [TensorSpec.from_proto(i) for i in graph.input if i.name not in constants]
    # Before IR version 4 every initializer had to be an input as well.
    optional = [i for i in graph.input if i.name in constants and proto.ir_version >= 4]
    outputs = [TensorSpec.from_proto(o) for o in graph.output]
    if duplicates := [n for n, count in Counter(i.name for i in graph.input).items() if count > 1]:
        raise ModelError(f"{context}: expected unique input names, got {duplicates} several times.")
    if not outputs and graph.node:
        raise ModelError(f"{context}: the graph has no outputs; declare the values to compute.")
    protos = [deepcopy(node) for node in graph.node]
    validate_nodes(protos, context, file)
    sources = {i.name for i in inputs} | set(constants)
    nodes = _sort(_with_unique_names(protos), sources, [port.name for port in outputs], context)
    return Model(
        header,
        name=Path(context).stem if file and graph.name in _DEFAULT_NAMES else graph.name or "graph",
        nodes=nodes,
        inputs=inputs,
        outputs=outputs,
        constants=constants,
        value_info=[without_shape(i) for i in graph.value_info if i.name not in constants],
        optional_inputs=[TensorSpec.from_proto(i) for i in optional],
    )


def _header(proto: onnx.ModelProto, context: str) -> onnx.ModelProto:
    if proto.ir_version > onnx.IR_VERSION:
        raise UnsupportedOpsetError(
            f"{context}: expected at most IR version {onnx.IR_VERSION}, which the installed onnx "
            f"{onnx.__version__} supports; got {proto.ir_version}. Install a newer onnx, or export "
            "for an older version."
        )
    header = onnx.ModelProto()
    for field, value in proto.ListFields():
        if field.name in ("graph", "training_info"):
            continue
        if isinstance(value, int | str):
            setattr(header, field.name, value)
        else:
            getattr(header, field.name).MergeFrom(value)
    # From version 4 on, initializers need not be inputs as well; `Model.extract` relies on it.
    header.ir_version = max(header.ir_version, 4)
    if not header.opset_import:  # IR versions below 3 import no opset and mean opset 1
        header.opset_import.add(domain="", version=1)
    # Ranges are proofs for stages that hetero extracts itself; in a file they are claims.
    set_metadata(header, {RANGES: None})
    for prop in header.metadata_props:
        check_text((prop.key, prop.value), context)
    _check_opsets(header.opset_import, context)
    return header


def _check_opsets(imports: Iterable[onnx.OperatorSetIdProto], context: str) -> None:
    check_text((entry.domain for entry in imports), context)
    for entry in imports:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if not 0 <= entry.version < 2**31:
            raise ModelError(
                f"{context}: invalid opset {entry.version} of {domain or 'ai.onnx'}. Export the "
                "model again."
            )
        newest = SUPPORTED_OPSETS.get(domain)
        if newest is not None and entry.version > newest:
            raise UnsupportedOpsetError(
                f"{context}: expected at most {domain or 'ai.onnx'} opset {newest}, which the "
                f"installed onnx {onnx.__version__} supports; got {entry.version}. Install a newer "
                "onnx, or export for an older opset.",
                domain=domain,
                version=entry.version,
            )


def check_function(function: onnx.FunctionProto, context: str) -> None:
    """Raise ModelError if a function's nodes are not a graph in topological order."""
    check_text((function.name, function.domain, function.overload), context)
    check_text((*function.input, *function.output, *function.attribute), context)
    _check_opsets(function.opset_import, f"{context}: function {function.name!r}")
    context = f"{context}: function {function.name!r}"
    nodes = [Node.from_proto(node) for node in function.node]
    if _sort(nodes, set(function.input), function.output, context) != nodes:
        raise ModelError(
            f"{context}: expected nodes in topological order; a node reads the output of a later "
            "one. Export the model again."
        )


def _with_unique_names(protos: Sequence[onnx.NodeProto]) -> list[Node]:
    """Wrap nodes; an unnamed or ambiguous node gets the name of its first output."""
    counts = Counter(proto.name for proto in protos)
    names = {name for name, count in counts.items() if name and count == 1}
    nodes = []
    for i, proto in enumerate(protos):
        name = proto.name
        if not name or counts[name] > 1:
            name = next((o for o in proto.output if o), f"{proto.op_type}_{i}")
            while name in names:
                name += f":{proto.op_type}"
            names.add(name)
        nodes.append(Node.from_proto(proto, name=name))
    return nodes


def _sort(
    nodes: Sequence[Node], sources: set[str], outputs: Iterable[str], context: str
) -> list[Node]:
    """Return nodes in topological order, in their original order if that is topological.

    `sources` are the names of inputs and initializers.
    """
    producer: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for value in node.writes:
            if value in producer or value in sources:
                other = nodes[producer[value]].name if value in producer else "the inputs"
                raise ModelError(
                    f"{context}: expected unique value names, but {other!r} and {node.name!r} both "
                    f"write {value!r}."
                )
            producer[value] = i
    for node in nodes:
        for value in node.reads:
            if value not in producer and value not in sources:
                raise ModelError(
                    f"{context}: node {node.name!r} ({node.op_type}) reads {value!r}, which is not "
                    "an output of a node, an input or an initializer."
                )
    for output in outputs:
        if output not in producer and output not in sources:
            raise ModelError(f"{context}: no node computes output {output!r}.")
    if all(producer.get(v, -1) < i for i, node in enumerate(nodes) for v in node.reads):
        return list(nodes)
    predecessors = {
        i: [producer[v] for v in node.reads if v in producer] for i, node in enumerate(nodes)
    }
    try:
        return [nodes[i] for i in TopologicalSorter(predecessors).static_order()]
    except CycleError as error:
        cycle = [nodes[i].name for i in error.args[1][:10]]
        raise ModelError(
            f"{context}: expected an acyclic graph; nodes {cycle} form a cycle."
        ) from error


def published_folder(model: str | Path) -> Path:
    """Return the folder with a model's configuration and tokenizer.

    It is the folder of the model file, or the one above if that folder is called ``onnx``, as for
    models published for Transformers.js.
    """
    folder = Path(model).absolute().parent
    is_below = folder.name == "onnx" and not (folder / "config.json").is_file()
    return folder.parent if is_below else folder
