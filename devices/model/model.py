"""An immutable ONNX model: `Model`, `Node` and `Constant`.

Nodes are in topological order and have unique names. Weights are read-only arrays, memory-mapped
if the model's file stores them outside. Submodels share the arrays of the model that they were
extracted from. Weights are converted to protobuf only when a caller requests ONNX bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import onnx
import xxhash
from onnx import numpy_helper

from hetero.devices.deprecation import deprecated_alias
from hetero.devices.errors import ModelError
from hetero.devices.model.attributes import attribute_value, captured_names, is_random
from hetero.devices.model.element_type import EXTENDED_DTYPES
from hetero.devices.model.integer_ranges import RANGES, Range, boundary_ranges, value_ranges
from hetero.devices.model.ports import OpenVinoModelMethods
from hetero.devices.model.property_getter import getter
from hetero.devices.model.tensor_proto import PROTOBUF_NBYTES
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.type_inference import (
    clear_declared_shapes,
    infer_types,
    substitute_uninferable_nodes,
)

#: Shape inference receives the contents of weights up to this many bytes: enough for shapes, axes
#: and sizes.
INFERENCE_NBYTES: Final = 4096
#: Alignment of weights in an external data file, in bytes: no runtime requires more.
_ALIGNMENT: Final = 64
#: Constructor arguments of `Model`, except the inferred types.
_ARGUMENTS: Final = (
    "header",
    "name",
    "nodes",
    "inputs",
    "outputs",
    "constants",
    "value_info",
    "optional_inputs",
    "node_rt_info",
)


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of the main graph.

    Attributes
    ----------
    name : str
        Unique, stable name: the ONNX name, or the name of the first output if the ONNX name is
        missing or ambiguous.
    op_type, domain : str
        The operator; the standard domain is the empty string.
    inputs, outputs : tuple of str
        Value names; an absent optional value is the empty string.
    proto : onnx.NodeProto
        The ONNX node, with the stable name. Treat it as read-only.
    captures : tuple of str
        Values of the main graph that the node's bodies (of `If`, `Loop`, `Scan`) read.
    covers : tuple of str
        Names of the original nodes that this node replaces after a transformation; by default its
        own name.
    reads : tuple of str
        Names of all input and captured values, without duplicates.
    writes : tuple of str
        Names of all present outputs.
    """

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    proto: onnx.NodeProto
    captures: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()
    reads: tuple[str, ...] = field(init=False, repr=False, compare=False)
    writes: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        reads = dict.fromkeys((*self.inputs, *self.captures))
        reads.pop("", None)
        object.__setattr__(self, "reads", tuple(reads))
        object.__setattr__(self, "writes", tuple(filter(None, self.outputs)))

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes as Python values; bodies as onnx.GraphProto."""
        return {a.name: attribute_value(a) for a in self.proto.attribute}

    @property
    def metadata(self) -> dict[str, str]:
        """The node's `metadata_props`."""
        return {entry.key: entry.value for entry in self.proto.metadata_props}

    @property
    def friendly_name(self) -> str:
        """The node's name, under OpenVINO's name for it."""
        return self.name

    get_friendly_name = getter(friendly_name)

    def get_type_name(self) -> str:
        """Return `op_type`."""
        return self.op_type

    @property
    def is_constant(self) -> bool:
        """Whether the node is ONNX's `Constant` operator."""
        return self.op_type == "Constant" and not self.domain

    @classmethod
    def from_proto(
        cls, proto: onnx.NodeProto, *, name: str | None = None, covers: tuple[str, ...] = ()
    ) -> Node:
        """Wrap a NodeProto; `name` replaces the name of the proto in place."""
        if name is not None and proto.name != name:
            proto.name = name
        return cls(
            proto.name,
            proto.op_type,
            "" if proto.domain == "ai.onnx" else proto.domain,
            tuple(proto.input),
            tuple(proto.output),
            proto,
            captured_names(proto),
            covers or (proto.name,),
        )


@dataclass(frozen=True, eq=False)
class Constant:
    """A weight or other constant: a name and a read-only array.

    Attributes
    ----------
    name : str
        The value's name.
    array : numpy.ndarray
        Read-only array; memory-mapped if a file stores the weight. Strings are object arrays.
    """

    name: str
    array: np.ndarray

    @property
    def spec(self) -> TensorSpec:
        """The value's type."""
        return TensorSpec.from_array(self.name, self.array)

    @cached_property
    def digest(self) -> bytes:
        """A 128-bit hash of element type, shape and contents."""
        state = xxhash.xxh3_128(repr(self.spec.shape).encode() + self.spec.type.encode())
        if self.array.dtype == object:
            for item in self.array.ravel():
                text = item if isinstance(item, bytes) else str(item).encode()
                state.update(len(text).to_bytes(8, "little") + text)
        elif self.array.size:
            state.update(np.ascontiguousarray(self.array).reshape(-1).view(np.uint8).data)
        return state.digest()

    def to_proto(self) -> onnx.TensorProto:
        """Return the constant as a TensorProto with its contents."""
        return numpy_helper.from_array(np.asarray(self.array), self.name)

    def to_stub(self) -> onnx.TensorProto:
        """Return a TensorProto with type and shape only; its contents are marked as external."""
        stub = onnx.TensorProto(name=self.name, dims=self.array.shape)
        stub.data_type = onnx.helper.np_dtype_to_tensor_dtype(self.array.dtype)
        stub.data_location = onnx.TensorProto.EXTERNAL
        stub.external_data.add(key="location", value=self.name)
        return stub


class Model(OpenVinoModelMethods):
    """An immutable ONNX model.

    Parameters
    ----------
    header : onnx.ModelProto
        The model without its main graph: opset imports, functions, metadata, IR version.
    name : str
        The main graph's name, or the file name if the graph has an exporter's default name.
    nodes : sequence of Node
        Nodes in topological order, with unique names.
    inputs, outputs : sequence of TensorSpec
        The ports. Initializers that ONNX also lists as inputs are constants instead. Shapes of
        outputs are hints.
    constants : mapping of str to Constant
        The initializers.
    value_info : sequence of onnx.ValueInfoProto
        Reliable types and shapes of inner values and outputs, in addition to the ports.
    optional_inputs : sequence of TensorSpec
        Inputs with a default, which is the constant of the same name.
    specs : mapping of str to TensorSpec, optional
        Types of all values; by default ONNX infers them on first use.
    node_rt_info : mapping of str to mapping, optional
        Node name -> run-time information; see `ModelNode.rt_info`.
    """

    def __init__(
        self,
        header: onnx.ModelProto,
        *,
        name: str,
        nodes: Sequence[Node],
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        constants: Mapping[str, Constant],
        value_info: Sequence[onnx.ValueInfoProto] = (),
        optional_inputs: Sequence[TensorSpec] = (),
        specs: Mapping[str, TensorSpec] | None = None,
        node_rt_info: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        self.header: Final = header
        self.name: Final = name
        self.nodes: Final = tuple(nodes)
        self.inputs: Final = tuple(inputs)
        self.outputs: Final = tuple(outputs)
        self.constants: Final[Mapping[str, Constant]] = MappingProxyType(dict(constants))
        self.value_info: Final = tuple(value_info)
        self.optional_inputs: Final = tuple(optional_inputs)
        #: Node name -> run-time information; the only part of a model that callers may change.
        self.node_rt_info: Final = {node: dict(info) for node, info in node_rt_info.items()}
        self._initial_specs = specs

    def __repr__(self) -> str:
        return f"<Model {self.name!r}: {len(self.nodes)} nodes, {len(self.constants)} constants>"

    def __deepcopy__(self, memo: object) -> Model:
        return self.clone()

    def clone(self) -> Model:
        """Return a copy with its own run-time information of nodes; the rest is shared."""
        return Model(**self._arguments(), specs=self._initial_specs)

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = {name: np.asarray(c.array) for name, c in self.constants.items()}
        specs = None if self._initial_specs is None else dict(self._initial_specs)
        return _unpickle, ({**self._arguments(), "constants": arrays, "specs": specs},)

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        """Names of all nodes, in topological order."""
        return tuple(node.name for node in self.nodes)

    @cached_property
    def index_of(self) -> Mapping[str, int]:
        """Node name -> position in `nodes`."""
        return {name: i for i, name in enumerate(self.node_names)}

    @cached_property
    def producers(self) -> Mapping[str, int]:
        """Value name -> position of the node that computes it."""
        return {value: i for i, node in enumerate(self.nodes) for value in node.writes}

    def producer(self, value: str) -> Node | None:
        """Return the node that computes a value; None for an input or a constant."""
        position = self.producers.get(value)
        return None if position is None else self.nodes[position]

    maker = deprecated_alias("maker", "producer")

    def readers(self, node: Node) -> list[Node]:
        """Return the nodes that read the outputs of a node, once for each output that they read."""
        return [self.nodes[i] for value in node.writes for i in self.consumers.get(value, ())]

    @cached_property
    def consumers(self) -> Mapping[str, tuple[int, ...]]:
        """Value name -> positions of the nodes that read or capture it."""
        positions: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for value in node.reads:
                positions.setdefault(value, []).append(i)
        return {value: tuple(readers) for value, readers in positions.items()}

    @cached_property
    def request_dependent(self) -> frozenset[str]:
        """Names of values that may differ between requests.

        They depend on an input of the model, or on a random number.
        """
        dependent = {port.name for port in self.inputs}
        for node in self.nodes:
            if not dependent.isdisjoint(node.reads) or is_random(node.proto):
                dependent.update(node.writes)
        return frozenset(dependent)

    moving = deprecated_alias("moving", "request_dependent")

    @cached_property
    def opset_imports(self) -> Mapping[str, int]:
        """Domain -> opset version; the standard domain is the empty string."""
        return {
            "" if entry.domain == "ai.onnx" else entry.domain: entry.version
            for entry in self.header.opset_import
        }

    @cached_property
    def metadata(self) -> Mapping[str, str]:
        """The model's `metadata_props`."""
        return {entry.key: entry.value for entry in self.header.metadata_props}

    @cached_property
    def weight_nbytes(self) -> int:
        """Bytes of all constants."""
        return sum(constant.array.nbytes for constant in self.constants.values())

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Value name -> type and shape, from ONNX's shape inference.

        Values of unknown type are absent. Inference starts from the inputs and ignores the declared
        shapes of outputs, which are hints.
        """
        if self._initial_specs is not None:
            return self._initial_specs
        proto = self.to_proto(weights="stub", keep_nbytes=INFERENCE_NBYTES)
        clear_declared_shapes(proto.graph, self.producers, self.value_info)
        substitute_uninferable_nodes(proto)
        graph = infer_types(proto)
        infos = (*graph.input, *graph.value_info, *graph.output)
        specs = {spec.name: spec for spec in map(TensorSpec.from_proto, infos) if spec.type}
        # A file's declaration of an external weight is a hint; the array is authoritative.
        return specs | {c.name: c.spec for c in self.constants.values()}

    @cached_property
    def integer_ranges(self) -> Mapping[str, Range]:
        """Value name -> minimum and maximum, for values of integer types."""
        return value_ranges(self)

    def spec(self, value: str) -> TensorSpec:
        """Return the type of a value; the type is empty if it is unknown."""
        return self.specs.get(value) or TensorSpec(value, "")

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of structure, metadata and weights, without the name, paths and descriptions."""
        state = hashlib.sha256()
        header = deepcopy(self.header)
        for name in ("doc_string", "producer_name", "producer_version"):
            header.ClearField(name)
        parts: list[bytes] = [header.SerializeToString(deterministic=True)]
        parts += [_port_bytes(s) for s in (*self.inputs, *self.outputs, *self.optional_inputs)]
        parts += [node.proto.SerializeToString(deterministic=True) for node in self.nodes]
        parts += [name.encode() + self.constants[name].digest for name in sorted(self.constants)]
        for part in parts:
            state.update(len(part).to_bytes(8, "little") + part)
        return state.hexdigest()

    def extract(self, positions: Iterable[int], outputs: Sequence[str]) -> Model:
        """Return the nodes at `positions` as a separate model.

        Values that these nodes read and do not compute become its inputs, in order of first use.
        Both models share the constants.

        Parameters
        ----------
        positions : iterable of int
            Positions in `nodes`.
        outputs : sequence of str
            Outputs of the new model: values that its nodes compute, or constants or inputs of this
            model that pass through.
        """
        nodes = [self.nodes[i] for i in sorted(set(positions))]
        computes = {value for node in nodes for value in node.writes}
        needs = dict.fromkeys(value for node in nodes for value in node.reads)
        needs |= dict.fromkeys(outputs)
        specs = self.specs
        ports = {port.name: port for port in (*self.inputs, *self.outputs)}

        def port(value: str) -> TensorSpec:
            return specs.get(value) or ports.get(value) or TensorSpec(value, "")

        inputs = [port(v) for v in needs if v not in computes and v not in self.constants]
        boundary = {spec.name: spec for spec in (*inputs, *(port(v) for v in outputs))}
        return Model(
            header_with(self, {RANGES: boundary_ranges(self, boundary)}),
            name=self.name,
            nodes=nodes,
            inputs=inputs,
            outputs=[port(v) for v in outputs],
            constants={v: self.constants[v] for v in needs if v in self.constants},
            specs=specs,
        )

    def with_inputs(self, names: Collection[str]) -> Model:
        """Return the model with the named optional inputs as required inputs."""
        return self.replace(
            inputs=[*self.inputs, *(s for s in self.optional_inputs if s.name in names)],
            constants={n: c for n, c in self.constants.items() if n not in names},
            optional_inputs=[s for s in self.optional_inputs if s.name not in names],
        )

    def replace(self, **changes: Any) -> Model:
        """Return a copy with some constructor arguments replaced; its types are inferred again."""
        return Model(**(self._arguments() | changes))

    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _ARGUMENTS}

    def to_proto(self, *, weights: str = "inline", keep_nbytes: int = 0) -> onnx.ModelProto:
        """Return the model as an onnx.ModelProto.

        Parameters
        ----------
        weights : {"inline", "stub"}
            Whether tensors contain the weights, or only mark them as external (for runtimes that
            accept arrays).
        keep_nbytes : int
            With stubs: the largest weight that is still stored inline.

        Raises
        ------
        ModelError
            The inline weights exceed the size limit of protobuf.
        """
        if weights == "inline" and self.weight_nbytes > PROTOBUF_NBYTES:
            raise ModelError(
                f"model {self.name!r}: expected at most {PROTOBUF_NBYTES} bytes of weights, the "
                f"limit of protobuf; got {self.weight_nbytes}. Write the model with `save`, which "
                "stores the weights in an external file."
            )
        proto = deepcopy(self.header)
        graph = proto.graph
        graph.name = self.name
        graph.node.extend(node.proto for node in self.nodes)
        graph.input.extend(spec.to_proto() for spec in self.inputs)
        graph.output.extend(spec.to_proto() for spec in self.outputs)
        names = {spec.name for spec in self.outputs}
        graph.value_info.extend(info for info in self.value_info if info.name not in names)
        for constant in self.constants.values():
            small = constant.array.nbytes <= keep_nbytes or constant.array.dtype == object
            inline = weights == "inline" or small
            graph.initializer.append(constant.to_proto() if inline else constant.to_stub())
        return proto

    def to_bytes(self) -> bytes:
        """Return the model as ONNX bytes with inline weights."""
        data: bytes = self._with_optional_inputs(self.to_proto()).SerializeToString()
        return data

    def _with_optional_inputs(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """List the optional inputs, for files only: runtimes are slower with them."""
        optional = (spec for spec in self.optional_inputs if spec.name in self.constants)
        proto.graph.input.extend(spec.to_proto() for spec in optional)
        return proto

    def save(self, path: str | Path) -> None:
        """Write an ONNX file; large weights go to ``<name>.data`` in the same folder."""
        path = Path(path)
        if self.weight_nbytes <= PROTOBUF_NBYTES // 2:
            path.write_bytes(self.to_bytes())
            return
        proto = self._with_optional_inputs(
            self.to_proto(weights="stub", keep_nbytes=INFERENCE_NBYTES)
        )
        data_path = path.with_name(path.name + ".data")
        with data_path.open("wb") as file:
            for tensor in proto.graph.initializer:
                if tensor.data_location == onnx.TensorProto.EXTERNAL:
                    file.write(bytes(-file.tell() % _ALIGNMENT))
                    location = {"location": data_path.name, "offset": file.tell()}
                    nbytes = file.write(_file_bytes(self.constants[tensor.name].array))
                    tensor.ClearField("external_data")
                    for key, value in {**location, "length": nbytes}.items():
                        tensor.external_data.add(key=key, value=str(value))
        path.write_bytes(proto.SerializeToString())


def header_with(model: Model, entries: Mapping[str, str | None]) -> onnx.ModelProto:
    """Return a model's header with metadata entries replaced; a value of None removes the entry."""
    if all(model.metadata.get(key) == text for key, text in entries.items()):
        return model.header
    header = deepcopy(model.header)
    set_metadata(header, entries)
    return header


def set_metadata(
    proto: onnx.NodeProto | onnx.ModelProto, entries: Mapping[str, str | None]
) -> None:
    """Set metadata entries of a node or model, in place; a value of None removes the entry."""
    other = [(e.key, e.value) for e in proto.metadata_props if e.key not in entries]
    del proto.metadata_props[:]
    for key, value in (*other, *entries.items()):
        if value is not None:
            proto.metadata_props.add(key=key, value=value)


def _file_bytes(array: np.ndarray) -> bytes | memoryview:
    """Return an array's contents in ONNX's raw format, which packs elements below a byte."""
    if array.dtype in EXTENDED_DTYPES:
        return numpy_helper.from_array(array).raw_data
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _unpickle(arguments: dict[str, Any]) -> Model:
    for array in arguments["constants"].values():
        array.setflags(write=False)
    constants = {name: Constant(name, array) for name, array in arguments["constants"].items()}
    return Model(**{**arguments, "constants": constants})


def _port_bytes(spec: TensorSpec) -> bytes:
    layout = (spec.layout,) if spec.layout else ()
    return repr((spec.name, spec.type, spec.shape, *layout)).encode()
