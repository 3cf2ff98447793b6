"""The model view: one frozen ONNX graph with stable node names, weights kept beside it as arrays.

A `Model` never changes. Its nodes are in topological order, each with a unique name; its weights
are read-only arrays (memory-mapped where they were in a file), shared by every model cut from it,
and go through protobuf only where ONNX bytes are asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
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
from hetero.devices.model.attributes import attribute_value, captured_names, draws
from hetero.devices.model.element_type import EXTENDED_DTYPES
from hetero.devices.model.integer_ranges import RANGES, Range, boundary_ranges, value_ranges
from hetero.devices.model.ports import HasPorts
from hetero.devices.model.property_getter import getter
from hetero.devices.model.tensor_proto import PROTOBUF_NBYTES
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.type_inference import forget_hints, infer_types, make_inferable

#: Weights up to this many bytes are shown to shape inference: enough for shapes, axes and sizes.
INFERENCE_NBYTES: Final = 4096
#: Where a weight may begin in a file beside a model, in bytes: no runtime wants more.
_ALIGNMENT: Final = 64
#: What a model is made of; types follow.
_ARGUMENTS: Final = (
    "header",
    "name",
    "nodes",
    "inputs",
    "outputs",
    "constants",
    "value_info",
    "optional_inputs",
)


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of the main graph.

    Attributes
    ----------
    name : str
        Unique in the model and stable: the ONNX name, or the first output's where that is
        missing or not unique.
    op_type, domain : str
        The operator; the standard domain is the empty string.
    inputs, outputs : tuple of str
        Value names; an absent optional one is the empty string.
    proto : onnx.NodeProto
        The node as ONNX has it, `name` already the stable one. Not to be written to.
    captures : tuple of str
        Values of the main graph that the node's bodies (`If`, `Loop`, `Scan`) read.
    covers : tuple of str
        Names of the nodes that this one stands for after a transformation; itself by default.
    """

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    proto: onnx.NodeProto
    captures: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """Every value that the node needs, each once, captures included."""
        return tuple(dict.fromkeys(name for name in (*self.inputs, *self.captures) if name))

    @property
    def writes(self) -> tuple[str, ...]:
        """Every value that the node makes."""
        return tuple(name for name in self.outputs if name)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes as Python values; bodies as onnx.GraphProto."""
        return {a.name: attribute_value(a) for a in self.proto.attribute}

    @property
    def metadata(self) -> dict[str, str]:
        """The node's own `metadata_props`."""
        return {entry.key: entry.value for entry in self.proto.metadata_props}

    @property
    def friendly_name(self) -> str:
        """The name, as OpenVINO's nodes have it."""
        return self.name

    get_friendly_name = getter(friendly_name)

    def get_type_name(self) -> str:
        """Return `op_type`."""
        return self.op_type

    @property
    def is_constant(self) -> bool:
        """Whether the node is a literal: ONNX's `Constant`."""
        return self.op_type == "Constant" and not self.domain

    @classmethod
    def from_proto(
        cls, proto: onnx.NodeProto, *, name: str | None = None, covers: tuple[str, ...] = ()
    ) -> Node:
        """Wrap a NodeProto; `name` replaces the proto's own in place."""
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
    """A weight: a name and a read-only array.

    Attributes
    ----------
    name : str
        The value's name.
    array : numpy.ndarray
        Read-only; memory-mapped where the weight lies in a file. Strings are object arrays.
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
        """Return the weight as ONNX's tensor, contents included."""
        return numpy_helper.from_array(np.asarray(self.array), self.name)

    def to_stub(self) -> onnx.TensorProto:
        """Return an ONNX tensor with type and shape whose contents are declared to be elsewhere."""
        stub = onnx.TensorProto(name=self.name, dims=self.array.shape)
        stub.data_type = onnx.helper.np_dtype_to_tensor_dtype(self.array.dtype)
        stub.data_location = onnx.TensorProto.EXTERNAL
        stub.external_data.add(key="location", value=self.name)
        return stub


class Model(HasPorts):
    """A frozen ONNX model.

    Parameters
    ----------
    header : onnx.ModelProto
        Everything but the main graph: opset imports, functions, metadata, IR version.
    name : str
        The main graph's name, or the file's where exporters name all graphs alike.
    nodes : sequence of Node
        In topological order, names unique.
    inputs, outputs : sequence of TensorSpec
        The ports; initializers that ONNX also lists as inputs are constants. Shapes of outputs are
        hints.
    constants : mapping of str to Constant
        The initializers.
    value_info : sequence of onnx.ValueInfoProto
        Types of inner values and outputs that are known besides, with shapes that hold.
    optional_inputs : sequence of TensorSpec
        Inputs that need not be given: the constants of their names are the defaults.
    specs : mapping of str to TensorSpec, optional
        Types known already; inferred on first use otherwise.
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
    ) -> None:
        self.header: Final = header
        self.name: Final = name
        self.nodes: Final = tuple(nodes)
        self.inputs: Final = tuple(inputs)
        self.outputs: Final = tuple(outputs)
        self.constants: Final[Mapping[str, Constant]] = MappingProxyType(dict(constants))
        self.value_info: Final = tuple(value_info)
        self.optional_inputs: Final = tuple(optional_inputs)
        self._given_specs = specs

    def __repr__(self) -> str:
        return f"<Model {self.name!r}: {len(self.nodes)} nodes, {len(self.constants)} constants>"

    def __deepcopy__(self, memo: object) -> Model:
        return self  # it never changes

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = {name: np.asarray(c.array) for name, c in self.constants.items()}
        specs = None if self._given_specs is None else dict(self._given_specs)
        return _restored, ({**self._arguments(), "constants": arrays, "specs": specs},)

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        """Every node of the main graph, in topological order."""
        return tuple(node.name for node in self.nodes)

    @cached_property
    def index_of(self) -> Mapping[str, int]:
        """Node name -> position in `nodes`."""
        return {name: i for i, name in enumerate(self.node_names)}

    @cached_property
    def producers(self) -> Mapping[str, int]:
        """Value name -> position of the node that makes it."""
        return {value: i for i, node in enumerate(self.nodes) for value in node.writes}

    def producer(self, value: str) -> Node | None:
        """Return the node that makes a value; None for an input or a constant."""
        position = self.producers.get(value)
        return None if position is None else self.nodes[position]

    maker = deprecated_alias("maker", "producer")

    def readers(self, node: Node) -> list[Node]:
        """Return the nodes that read what a node makes, once for each value."""
        return [self.nodes[i] for value in node.writes for i in self.consumers.get(value, ())]

    @cached_property
    def consumers(self) -> Mapping[str, tuple[int, ...]]:
        """Value name -> positions of the nodes that read it, captures included."""
        found: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for value in node.reads:
                found.setdefault(value, []).append(i)
        return {value: tuple(readers) for value, readers in found.items()}

    @cached_property
    def request_dependent(self) -> frozenset[str]:
        """Values that differ between requests: those that depend on an input, or are drawn."""
        found = {port.name for port in self.inputs}
        for node in self.nodes:
            if not found.isdisjoint(node.reads) or draws(node.proto):
                found.update(node.writes)
        return frozenset(found)

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
        """Value name -> type and shape, by ONNX's shape inference; values left open are absent.

        Shapes follow from those of the inputs: what outputs declare is a hint, and may differ.
        """
        if self._given_specs is not None:
            return self._given_specs
        proto = self.to_proto(weights="stub", keep_nbytes=INFERENCE_NBYTES)
        forget_hints(proto.graph, self.producers, self.value_info)
        make_inferable(proto)
        graph = infer_types(proto)
        infos = (*graph.input, *graph.value_info, *graph.output)
        found = {spec.name: spec for spec in map(TensorSpec.from_proto, infos) if spec.type}
        # What a file says of a weight beside it is a hint.
        return found | {c.name: c.spec for c in self.constants.values()}

    @cached_property
    def integer_ranges(self) -> Mapping[str, Range]:
        """Value name -> least and greatest value, for values of integer types."""
        return value_ranges(self)

    def spec(self, value: str) -> TensorSpec:
        """Return a value's type, with an empty type where it is not known."""
        return self.specs.get(value) or TensorSpec(value, "")

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over structure, metadata and weights; not over name, paths or descriptions."""
        state = hashlib.sha256()
        header = deepcopy(self.header)
        for field in ("doc_string", "producer_name", "producer_version"):
            header.ClearField(field)
        parts: list[bytes] = [header.SerializeToString(deterministic=True)]
        parts += [_port_bytes(s) for s in (*self.inputs, *self.outputs, *self.optional_inputs)]
        parts += [node.proto.SerializeToString(deterministic=True) for node in self.nodes]
        parts += [name.encode() + self.constants[name].digest for name in sorted(self.constants)]
        for part in parts:
            state.update(len(part).to_bytes(8, "little") + part)
        return state.hexdigest()

    def extract(self, positions: Iterable[int], outputs: Sequence[str]) -> Model:
        """Return the nodes at `positions` as a model of their own.

        Its inputs are what they read and neither make nor find among the constants, in order of
        first use; constants are shared, not copied.

        Parameters
        ----------
        positions : iterable of int
            Positions in `nodes`.
        outputs : sequence of str
            Values that the new model gives out: made by its nodes, or constants or inputs of
            this model that pass through.
        """
        nodes = [self.nodes[i] for i in sorted(set(positions))]
        made = {value for node in nodes for value in node.writes}
        wanted = dict.fromkeys(value for node in nodes for value in node.reads)
        wanted |= dict.fromkeys(outputs)
        specs = self.specs
        ports = {port.name: port for port in (*self.inputs, *self.outputs)}

        def port(value: str) -> TensorSpec:
            return specs.get(value) or ports.get(value) or TensorSpec(value, "")

        inputs = [port(v) for v in wanted if v not in made and v not in self.constants]
        between = {spec.name: spec for spec in (*inputs, *(port(v) for v in outputs))}
        return Model(
            header_with(self, {RANGES: boundary_ranges(self, between)}),
            name=self.name,
            nodes=nodes,
            inputs=inputs,
            outputs=[port(v) for v in outputs],
            constants={v: self.constants[v] for v in wanted if v in self.constants},
            specs=specs,
        )

    def with_inputs(self, names: Collection[str]) -> Model:
        """Return the model with some of its optional inputs as inputs that have no default."""
        return self.replace(
            inputs=[*self.inputs, *(s for s in self.optional_inputs if s.name in names)],
            constants={n: c for n, c in self.constants.items() if n not in names},
            optional_inputs=[s for s in self.optional_inputs if s.name not in names],
        )

    def replace(self, **changes: Any) -> Model:
        """Return a model with some constructor arguments replaced; types are inferred again."""
        return Model(**(self._arguments() | changes))

    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _ARGUMENTS}

    def to_proto(self, *, weights: str = "inline", keep_nbytes: int = 0) -> onnx.ModelProto:
        """Return the model as ONNX.

        Parameters
        ----------
        weights : {"inline", "stub"}
            Contents inside, or declared to be elsewhere (for runtimes that take arrays).
        keep_nbytes : int
            With stubs: weights up to this size stay inside.

        Raises
        ------
        ModelError
            If inline weights exceed what protobuf can hold.
        """
        if weights == "inline" and self.weight_nbytes > PROTOBUF_NBYTES:
            raise ModelError(
                f"model {self.name!r} has {self.weight_nbytes} bytes of weights; protobuf holds "
                f"{PROTOBUF_NBYTES}. Write it with `save`, which keeps weights beside the model."
            )
        proto = deepcopy(self.header)
        graph = proto.graph
        graph.name = self.name
        graph.node.extend(node.proto for node in self.nodes)
        graph.input.extend(spec.to_proto() for spec in self.inputs)
        graph.output.extend(spec.to_proto() for spec in self.outputs)
        named = {spec.name for spec in self.outputs}
        graph.value_info.extend(info for info in self.value_info if info.name not in named)
        for constant in self.constants.values():
            small = constant.array.nbytes <= keep_nbytes or constant.array.dtype == object
            inline = weights == "inline" or small
            graph.initializer.append(constant.to_proto() if inline else constant.to_stub())
        return proto

    def to_bytes(self) -> bytes:
        """Return the model as ONNX bytes, weights inside."""
        data: bytes = self._file(self.to_proto()).SerializeToString()
        return data

    def _file(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """Return the model with its optional inputs listed, which only slow runtimes down."""
        optional = (spec for spec in self.optional_inputs if spec.name in self.constants)
        proto.graph.input.extend(spec.to_proto() for spec in optional)
        return proto

    def save(self, path: str | Path) -> None:
        """Write an ONNX file; weights over protobuf's limit go to ``<name>.data`` beside it."""
        path = Path(path)
        if self.weight_nbytes <= PROTOBUF_NBYTES // 2:
            path.write_bytes(self.to_bytes())
            return
        proto = self._file(self.to_proto(weights="stub", keep_nbytes=INFERENCE_NBYTES))
        beside = path.with_name(path.name + ".data")
        with beside.open("wb") as file:
            for tensor in proto.graph.initializer:
                if tensor.data_location == onnx.TensorProto.EXTERNAL:
                    file.write(bytes(-file.tell() % _ALIGNMENT))
                    place = {"location": beside.name, "offset": file.tell()}
                    nbytes = file.write(_file_bytes(self.constants[tensor.name].array))
                    tensor.ClearField("external_data")
                    for key, value in {**place, "length": nbytes}.items():
                        tensor.external_data.add(key=key, value=str(value))
        path.write_bytes(proto.SerializeToString())


def header_with(model: Model, entries: Mapping[str, str | None]) -> onnx.ModelProto:
    """Return a model's header with entries of its metadata replaced; those of None are left out."""
    if all(model.metadata.get(key) == text for key, text in entries.items()):
        return model.header
    header = deepcopy(model.header)
    set_metadata(header, entries)
    return header


def set_metadata(
    proto: onnx.NodeProto | onnx.ModelProto, entries: Mapping[str, str | None]
) -> None:
    """Write entries into a node's or model's metadata, over those of the same keys."""
    kept = [(e.key, e.value) for e in proto.metadata_props if e.key not in entries]
    del proto.metadata_props[:]
    for key, value in (*kept, *entries.items()):
        if value is not None:
            proto.metadata_props.add(key=key, value=value)


def _file_bytes(array: np.ndarray) -> bytes | memoryview:
    """Return an array's contents as files hold them: narrow elements packed."""
    if array.dtype in EXTENDED_DTYPES:
        return numpy_helper.from_array(array).raw_data
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _restored(arguments: dict[str, Any]) -> Model:
    """Return the model that was pickled."""
    for array in arguments["constants"].values():
        array.setflags(write=False)
    constants = {name: Constant(name, array) for name, array in arguments["constants"].items()}
    return Model(**{**arguments, "constants": constants})


def _port_bytes(spec: TensorSpec) -> bytes:
    layout = (spec.layout,) if spec.layout else ()
    return repr((spec.name, spec.type, spec.shape, *layout)).encode()
