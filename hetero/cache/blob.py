"""Blobs of compiled models: writing, reading and description.

The header contains ``kind`` "model", the versions, the model's name and content hash, the plugin,
version and fingerprint of each device, the options, the plan, the affinity with its reasons, and
the nodes of each subgraph. The exports of the stages (or None) and the model itself follow, so that
any stage can be compiled again. Weights that the model and an export share are stored once.

If several plans share the requests, ``layout`` is 2 and ``variants`` contains a row for each, with
its ``share``, plan, affinity and nodes. The exports of the first plan's stages come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import msgspec
import numpy as np
import onnx
import xxhash
from google.protobuf.message import DecodeError

from hetero.affinity.affinity import Affinity
from hetero.devices.errors import (
    ArgumentTypeError,
    BlobError,
    HeteroError,
    ModelError,
    ModelNotFoundError,
    UnsupportedOperationError,
)
from hetero.devices.model.lazy_model import LazyModel
from hetero.devices.model.model import Model
from hetero.devices.model.node_validation import check_self_contained
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.program import Payload
from hetero.partition.partition import Partition, PlacedPartition, Subgraph
from hetero.properties.compile_request import CompileRequest
from hetero.properties.table import NOT_EXPORTED
from hetero.scheduler.formats.blob_file import BlobFile
from hetero.scheduler.formats.blob_format import FORMAT_VERSION, Inline
from hetero.scheduler.formats.blob_writer import BlobWriter
from hetero.scheduler.formats.model_parts import ModelParts, join_model, split_model
from hetero.scheduler.formats.stored_payload import PAYLOADS, write_payload
from hetero.scheduler.formats.tensor_entries import raw_bytes
from hetero.scheduler.formats.weightless import is_weightless, outline, restore, write_without
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.placement import Route
from hetero.scheduler.types.plan import Plan, pack_spec, unpack_spec
from hetero.version import hetero_version

#: Kinds of blobs: a compiled model, and the two kinds of cache files.
MODEL_KIND: Final = "model"
PLAN_KIND: Final = "plan"
STAGE_KIND: Final = "stage"
#: Maximum bytes of other tensors in an export, for a blob without weights.
_MAX_OWN_NBYTES: Final = 2**16
#: Layouts of the header: for a single plan, and for several that share the requests.
SINGLE_PLAN_LAYOUT, MULTI_PLAN_LAYOUT = 1, 2
_Index = Annotated[int, msgspec.Meta(ge=0)]


class DeviceRecord(msgspec.Struct, frozen=True, array_like=True):
    """Identity of the device of an export: plugin, version and fingerprint."""

    plugin: str
    version: str
    fingerprint: str

    @classmethod
    def of(cls, descriptor: DeviceDescriptor) -> DeviceRecord:
        """Return the record of a device."""
        return cls(descriptor.plugin, descriptor.version, descriptor.fingerprint)


class _PlacementRow(msgspec.Struct):
    """The part of a header about one placement: plan, nodes, affinity and share."""

    plan: bytes
    #: Stage -> positions of its nodes in the model.
    positions: list[tuple[_Index, ...]]
    #: Nodes; devices, and the index of each node's device; reasons, and the index of each node's.
    affinity: tuple[list[str], list[str], list[_Index], list[str], list[_Index]]
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0


_PlacementRows = Annotated[list[_PlacementRow], msgspec.Meta(min_length=1)]


class Header(msgspec.Struct):
    """The part of a header about the model, its devices and options; see `build_header`."""

    content_hash: str
    devices: dict[str, DeviceRecord]
    options: dict[str, Any]
    device_options: dict[str, dict[str, Any]]
    #: Devices that the user assigned to nodes.
    pins: dict[str, str]
    ports: list[Any]
    optional_inputs: list[Any]
    metadata: dict[str, str]


def write_model(
    file: BinaryIO,
    placements: Sequence[PlacedPartition],
    request: CompileRequest,
    payloads: Sequence[Payload | None],
    *,
    weightless: bool = False,
) -> int:
    """Write a compiled model; return the number of bytes.

    `payloads`: the export of each stage, those of the first placement first; None without export.
    `weightless`: whether to omit the model's weights, and exports with other large tensors, whose
        stages are compiled again on import.
    """
    writer = BlobWriter()
    parts = split_model(placements[0].partition.source)
    if weightless:
        payloads = [p if p is None or _is_small(p, parts.weights) else None for p in payloads]
    head = {
        "kind": MODEL_KIND,
        **build_header(placements, request),
        PAYLOADS: [None if p is None else write_payload(writer, p) for p in payloads],
        "source": writer.document(parts._asdict()),
    }
    if weightless:
        return write_without(parts.weights.values(), writer, file, head)
    return writer.write(file, head)


def _is_small(payload: Payload, weights: Mapping[str, np.ndarray]) -> bool:
    """Return whether an export contains only small tensors in addition to the model's weights."""
    shared = {_array_identity(array) for array in weights.values()}
    others = (a for a in payload.tensors.values() if _array_identity(a) not in shared)
    return sum(array.nbytes for array in others) <= _MAX_OWN_NBYTES


def _array_identity(array: np.ndarray) -> tuple[int, bytes]:
    return array.nbytes, b"" if array.dtype == object else xxhash.xxh3_128_digest(raw_bytes(array))


def build_header(placements: Sequence[PlacedPartition], request: CompileRequest) -> dict[str, Any]:
    """Return the common header fields of compiled models and of plans in the cache."""
    rows = [_placement_row(placement) for placement in placements]
    plan_fields = rows[0]
    if len(placements) > 1:
        shares = [
            {"share": placement.share, **row}
            for placement, row in zip(placements, rows, strict=True)
        ]
        plan_fields = {"layout": MULTI_PLAN_LAYOUT, "variants": shares}
    return {
        "hetero": hetero_version(),
        "name": placements[0].plan.name,
        "content_hash": placements[0].partition.source.content_hash,
        "devices": {d.name: [d.plugin, d.version, d.fingerprint] for d in request.descriptors},
        "options": _exported_options(request.hetero_config),
        "device_options": {n: _exported_options(options) for n, options in request.configs.items()},
        "pins": dict(request.pins.devices),
        # The types of the stages' inputs and outputs, which are needed to load the exports.
        "ports": [pack_spec(spec) for spec in _ports(placements)],
        "optional_inputs": [pack_spec(s) for s in placements[0].partition.source.optional_inputs],
        # Further properties of the source that a compiled model needs.
        "metadata": dict(placements[0].partition.source.metadata),
        **plan_fields,
    }


def _placement_row(placement: PlacedPartition) -> dict[str, Any]:
    """Return the header fields of a placement."""
    names = list(placement.affinity.devices)
    reasons = [placement.affinity.reasons.get(name, "") for name in names]
    reason_of = {reason: i for i, reason in enumerate(dict.fromkeys(reasons))}
    device_of = {device: i for i, device in enumerate(dict.fromkeys(placement.affinity.values()))}
    return {
        "plan": Inline(placement.plan.to_bytes()),
        "positions": [s.positions for s in placement.partition.subgraphs],
        "affinity": [
            names,
            list(device_of),
            [device_of[placement.affinity[name]] for name in names],
            list(reason_of),
            [reason_of[reason] for reason in reasons],
        ],
    }


def export_payloads(
    routes: Iterable[Route], export: Callable[[int], Payload]
) -> list[Payload | None]:
    """Return the exports of each route's stages; None for a device without exports."""
    payloads: dict[int, Payload | None] = {}
    stages = [stage for route in routes for stage in route.stages]
    for stage in dict.fromkeys(stages):
        try:
            payloads[stage] = export(stage)
        except UnsupportedOperationError:
            payloads[stage] = None
    return [payloads[stage] for stage in stages]


def open_blob(
    source: str | Path | bytes | bytearray | memoryview | BinaryIO,
    weights: Callable[[], Model] | None = None,
) -> BlobFile:
    """Open a blob.

    `weights`: returns the original model, for a blob without weights.
    Raises BlobError: not a blob, damaged, or without weights.
    Raises ModelNotFoundError: no such file.
    """
    if not isinstance(source, str | Path | bytes | bytearray | memoryview):
        if not hasattr(source, "read"):
            raise ArgumentTypeError(
                "expected the path, the bytes or a binary file of an exported model; got "
                f"{type(source).__name__}."
            )
        file, source = source, source.read()
        if not source and file.seekable():  # just written: the position is at the end
            file.seek(0)
            source = file.read()
    try:
        if not is_weightless(source):
            return BlobFile(source)
        if weights is None:
            name = f"blob {source}" if isinstance(source, str | Path) else "blob"
            raise BlobError(
                f"{name}: it was exported without weights; pass the original model, such as "
                "import_model(blob, weights='model.onnx') (--weights model.onnx)."
            )
        arrays = (constant.array for constant in weights().constants.values())
        return BlobFile(restore(source, arrays))
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"no file {str(source)!r}; expected the path or the bytes of an exported model.",
            path=str(source),
        ) from error
    except OSError as error:
        raise BlobError(
            f"blob {source!s}: cannot be read: {error.strerror or error}.", path=str(source)
        ) from error


def open_header(source: str | Path | bytes | bytearray | memoryview | BinaryIO) -> BlobFile:
    """Open a blob to read its header; a blob without weights has no contents of tensors.

    Raises the errors of `open_blob`.
    """
    if isinstance(source, str | Path) and Path(source).is_file() and is_weightless(source):
        return BlobFile(outline(source))
    return open_blob(source)


class ModelBlob:
    """The blob of a compiled model, or of a plan in the cache, with a validated header."""

    def __init__(self, blob: BlobFile, kind: str = MODEL_KIND) -> None:
        self.blob = blob
        self._label = f"blob {blob.path or ''}".rstrip()
        contents = blob.contents()
        actual_kind = contents.get("kind") if isinstance(contents, dict) else None
        if actual_kind != kind:
            raise BlobError(f"{self._label}: expected kind {kind!r}, got {actual_kind!r}.")
        self.contents: dict[str, Any] = contents
        layout = contents.get("layout", SINGLE_PLAN_LAYOUT)
        if layout not in (SINGLE_PLAN_LAYOUT, MULTI_PLAN_LAYOUT):
            raise BlobError(
                f"{self._label}: layout {layout!r}; this program reads {SINGLE_PLAN_LAYOUT} and "
                f"{MULTI_PLAN_LAYOUT}. Compile the model again, or read it with a newer hetero."
            )
        rows = [contents] if layout == SINGLE_PLAN_LAYOUT else contents.get("variants")
        try:
            self.head = head = msgspec.convert(contents, Header)
            self._placement_rows = msgspec.convert(rows, _PlacementRows)
            self.plans = [Plan.from_bytes(row.plan) for row in self._placement_rows]
            #: The affinity of each plan.
            self.affinities = [_affinity(*row.affinity) for row in self._placement_rows]
            self._ports = {spec.name: spec for spec in map(unpack_spec, head.ports)}
            #: The model's inputs with a default value.
            self.optional_inputs = tuple(map(unpack_spec, head.optional_inputs))
        except (HeteroError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise BlobError(f"{self._label}: header: damaged: {str(error)[:200]}.") from error
        if missing := [d for d in self.devices if d not in head.devices]:
            raise BlobError(f"{self._label}: no record of the devices {missing}.")

    @property
    def name(self) -> str:
        """The model's name."""
        return self.plans[0].name

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of all plans."""
        return tuple(dict.fromkeys(d for plan in self.plans for d in plan.devices))

    def source(self) -> Model:
        """Return the original model; everything except its ports is read on first use."""
        plan = self.plans[0]
        metadata = self.head.metadata
        return LazyModel(
            plan.name, plan.inputs, plan.outputs, self._read_source, self.optional_inputs, metadata
        )

    def _read_source(self) -> Model:
        """Return the original model; its weights are views of the blob."""
        try:
            parts = self.blob.contents(self.contents["source"])
            skeleton = onnx.ModelProto()
            skeleton.ParseFromString(parts["skeleton"])
            check_self_contained(skeleton, (), f"{self._label}: source")
            model = join_model(ModelParts(**parts))
        except (TypeError, AttributeError, LookupError, DecodeError, ModelError) as error:
            raise BlobError(f"{self._label}: source: damaged: {error}.") from error
        if any(not isinstance(c.array, np.ndarray) for c in model.constants.values()):
            raise BlobError(f"{self._label}: source: a weight that is not a tensor.")
        self.check_positions(model)
        return model

    def check_positions(self, model: Model) -> None:
        """Raise BlobError if a subgraph contains nodes that `model` does not have."""
        positions = (p for row in self._placement_rows for stage in row.positions for p in stage)
        if (highest := max(positions, default=-1)) >= len(model.nodes):
            raise BlobError(f"{self._label}: positions: node {highest} of {len(model.nodes)}.")

    def stage_models(self, placement: PlacedPartition) -> list[Model]:
        """Return each stage's model; everything except its ports is read on first use."""

        def lazy_model(subgraph: Subgraph) -> Model:
            inputs = [self._ports[value] for value in subgraph.inputs]
            outputs = [self._ports[value] for value in subgraph.outputs]
            return LazyModel(self.name, inputs, outputs, lambda: subgraph.model)

        try:
            return [lazy_model(subgraph) for subgraph in placement.partition.subgraphs]
        except KeyError as error:
            raise BlobError(f"{self._label}: no type of value {error}.") from error

    def placements(self, source: Model) -> tuple[PlacedPartition, ...]:
        """Return the placements of the original model `source`."""
        rows = zip(self.plans, self._placement_rows, self.affinities, strict=True)
        try:
            return tuple(
                PlacedPartition(_partition(source, plan, row.positions), affinity, row.share)
                for plan, row, affinity in rows
            )
        except (TypeError, ValueError, LookupError) as error:
            raise BlobError(f"{self._label}: positions: invalid: {error}.") from error


def _ports(placements: Sequence[PlacedPartition]) -> list[TensorSpec]:
    """Return the types of the stages' inputs and outputs, without duplicates."""
    specs = {
        spec.name: spec
        for placement in placements
        for subgraph in placement.partition.subgraphs
        for spec in (*subgraph.model.inputs, *subgraph.model.outputs)
    }
    return list(specs.values())


def _exported_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in NOT_EXPORTED}


def _affinity(
    names: Sequence[str],
    devices: Sequence[str],
    device_of: Sequence[int],
    reasons: Sequence[str],
    reason_of: Sequence[int],
) -> Affinity:
    return Affinity(
        {n: devices[d] for n, d in zip(names, device_of, strict=True)},
        {n: reasons[r] for n, r in zip(names, reason_of, strict=True) if reasons[r]},
    )


def _partition(source: Model, plan: Plan, positions: Sequence[tuple[int, ...]]) -> Partition:
    """Return the partition of a plan, from the positions of each stage's nodes."""
    subgraphs = tuple(
        Subgraph(s.index, s.device, s.inputs, s.outputs, s.node_names, source, rows, work=s.work)
        for s, rows in zip(plan.stages, positions, strict=True)
    )
    return Partition(source, subgraphs, plan.draws)


def describe_blob(blob: BlobFile) -> dict[str, Any]:
    """Return a description of a blob of any kind as a JSON document, read from its header."""
    head = blob.outline()
    if not isinstance(head, dict):
        raise BlobError(f"blob {blob.path or ''}: not a hetero header.")
    try:
        rows = head.get("variants", [head] if "plan" in head else [])
        plans = [Plan.from_bytes(row["plan"]) for row in rows]
        plan = plans[0] if plans else None
        exports = head.get(PAYLOADS) or []
        return {
            "kind": str(head["kind"]),
            "name": str(head["name"]),
            "format_version": FORMAT_VERSION,
            "hetero": str(head["hetero"]),
            "digest": blob.digest,
            "nbytes": blob.nbytes,
            "segments": len(blob.segments),
            "content_hash": head.get("content_hash"),
            "devices": {
                name: {"plugin": r[0], "version": r[1], "fingerprint": r[2]}
                for name, r in head["devices"].items()
            },
            "options": head.get("options", {}),
            "device_options": head.get("device_options", {}),
            "inputs": [] if plan is None else [_describe_port(spec) for spec in plan.inputs],
            "outputs": [] if plan is None else [_describe_port(spec) for spec in plan.outputs],
            "shares": [row.get("share", 1.0) for row in rows],
            "stages": [
                {
                    "index": index,
                    "device": stage.device,
                    "nodes": len(stage.node_names),
                    "inputs": stage.inputs,
                    "outputs": stage.outputs,
                    "export_nbytes": _export_nbytes(blob, exports, index),
                }
                for index, stage in enumerate(stage for plan in plans for stage in plan.stages)
            ],
        }
    except (TypeError, LookupError, AttributeError) as error:
        raise BlobError(f"blob {blob.path or ''}: header: damaged: {error}.") from error


def _export_nbytes(blob: BlobFile, exports: Sequence[Any], index: int) -> int | None:
    """Return the bytes of a stage's export, or None without one."""
    if index >= len(exports) or exports[index] is None:
        return None
    return sum(part.nbytes for part in blob.references(exports[index]))


def _describe_port(spec: TensorSpec) -> dict[str, Any]:
    shape = None if spec.shape is None else list(spec.shape)
    return {"name": spec.name, "type": spec.type, "shape": shape}
