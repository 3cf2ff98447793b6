"""Blobs of compiled models: what a `CompiledModel` is written as, and read back from.

The header's document has ``kind`` "model", the versions, the model's name and content hash, each
device's plugin, version and fingerprint, the options, the plan, the affinity with its reasons and
the cut; then for each stage its device's own export, or None; then the model itself, so that any
stage can be compiled again. A weight that the model and an export share is there once.

Where several plans share the requests, ``layout`` is 2 and ``variants`` has a row for each with its
``share``, plan, affinity and cut; exports are those of the first plan's stages, then the second's.
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
from hetero.scheduler.formats.tensor_entries import raw
from hetero.scheduler.formats.weightless import is_weightless, restore, write_without
from hetero.scheduler.vocabulary.placement import Route
from hetero.scheduler.vocabulary.plan import Plan, pack_spec, unpack_spec
from hetero.scheduler.vocabulary.rows import DeviceDescriptor
from hetero.version import hetero_version

#: What a blob may be: a compiled model, or one of the cache's two kinds of entries.
MODEL_KIND: Final = "model"
PLAN_KIND: Final = "plan"
STAGE_KIND: Final = "stage"
#: What an export may hold beside the model's weights in a blob without them.
_SMALL_NBYTES: Final = 2**16
#: Layouts of the header: of one plan, and of several that share the requests.
ONE_PLAN, SEVERAL_PLANS = 1, 2
_Index = Annotated[int, msgspec.Meta(ge=0)]


class DeviceRecord(msgspec.Struct, frozen=True, array_like=True):
    """What a payload depends on: the plugin, its version, the device's fingerprint."""

    plugin: str
    version: str
    fingerprint: str

    @classmethod
    def of(cls, descriptor: DeviceDescriptor) -> DeviceRecord:
        """Return a device's record."""
        return cls(descriptor.plugin, descriptor.version, descriptor.fingerprint)


class _Placed(msgspec.Struct):
    """What a header has of one way of cutting and placing the model."""

    plan: bytes
    #: Of each stage's nodes in the model.
    positions: list[tuple[_Index, ...]]
    #: Nodes; devices, and the place of each node's among them; reasons likewise.
    affinity: tuple[list[str], list[str], list[_Index], list[str], list[_Index]]
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0


_PlacedRows = Annotated[list[_Placed], msgspec.Meta(min_length=1)]


class Header(msgspec.Struct):
    """What a header has of the model and of what it was compiled for; see `header_of`."""

    content_hash: str
    devices: dict[str, DeviceRecord]
    options: dict[str, Any]
    device_options: dict[str, dict[str, Any]]
    #: Nodes that the user placed.
    pins: dict[str, str]
    ports: list[Any]
    optional_inputs: list[Any]
    metadata: dict[str, str]


def write_model(
    file: BinaryIO,
    cuts: Sequence[PlacedPartition],
    request: CompileRequest,
    payloads: Sequence[Payload | None],
    *,
    weightless: bool = False,
) -> int:
    """Write a compiled model, cut in one way or several; return how many bytes it takes.

    `payloads`: each stage's export, the first cut's stages first; None for a device that has none.
    `weightless`: whether to leave the model's weights out, and exports that hold others, which are
        compiled again on import.
    """
    writer = BlobWriter()
    parts = split_model(cuts[0].partition.source)
    if weightless:
        payloads = [p if p is None or _is_small(p, parts.weights) else None for p in payloads]
    head = {
        "kind": MODEL_KIND,
        **header_of(cuts, request),
        PAYLOADS: [None if p is None else write_payload(writer, p) for p in payloads],
        "source": writer.document(parts._asdict()),
    }
    if weightless:
        return write_without(parts.weights.values(), writer, file, head)
    return writer.write(file, head)


def _is_small(payload: Payload, weights: Mapping[str, np.ndarray]) -> bool:
    """Whether an export holds little beside the model's weights."""
    known = {_identity(array) for array in weights.values()}
    others = (a for a in payload.tensors.values() if _identity(a) not in known)
    return sum(array.nbytes for array in others) <= _SMALL_NBYTES


def _identity(array: np.ndarray) -> tuple[int, bytes]:
    return array.nbytes, b"" if array.dtype == object else xxhash.xxh3_128_digest(raw(array))


def header_of(cuts: Sequence[PlacedPartition], request: CompileRequest) -> dict[str, Any]:
    """Return what the headers of models and of the cache's plans have in common."""
    rows = [_row(cut) for cut in cuts]
    placed = rows[0]
    if len(cuts) > 1:
        shares = [{"share": cut.share, **row} for cut, row in zip(cuts, rows, strict=True)]
        placed = {"layout": SEVERAL_PLANS, "variants": shares}
    return {
        "hetero": hetero_version(),
        "name": cuts[0].plan.name,
        "content_hash": cuts[0].partition.source.content_hash,
        "devices": {d.name: [d.plugin, d.version, d.fingerprint] for d in request.descriptors},
        "options": _plain(request.hetero_config),
        "device_options": {n: _plain(options) for n, options in request.configs.items()},
        "pins": dict(request.pins.devices),
        # Of the values that stages take and give: enough to load their exports.
        "ports": [pack_spec(spec) for spec in _ports(cuts)],
        "optional_inputs": [pack_spec(s) for s in cuts[0].partition.source.optional_inputs],
        # What a compiled model asks of its source beside the ports.
        "metadata": dict(cuts[0].partition.source.metadata),
        **placed,
    }


def _row(cut: PlacedPartition) -> dict[str, Any]:
    """Return one way of cutting and placing a model."""
    names = list(cut.affinity.devices)
    reasons = [cut.affinity.reasons.get(name, "") for name in names]
    reason_of = {reason: i for i, reason in enumerate(dict.fromkeys(reasons))}
    device_of = {device: i for i, device in enumerate(dict.fromkeys(cut.affinity.values()))}
    return {
        "plan": Inline(cut.plan.to_bytes()),
        "positions": [s.positions for s in cut.partition.subgraphs],
        "affinity": [
            names,
            list(device_of),
            [device_of[cut.affinity[name]] for name in names],
            list(reason_of),
            [reason_of[reason] for reason in reasons],
        ],
    }


def export_payloads(
    routes: Iterable[Route], export: Callable[[int], Payload]
) -> list[Payload | None]:
    """Return the exports of each route's stages; None where a device has none."""
    found: dict[int, Payload | None] = {}
    stages = [stage for route in routes for stage in route.stages]
    for stage in dict.fromkeys(stages):
        try:
            found[stage] = export(stage)
        except UnsupportedOperationError:
            found[stage] = None
    return [found[stage] for stage in stages]


def open_blob(
    source: str | Path | bytes | bytearray | memoryview | BinaryIO,
    weights: Callable[[], Model] | None = None,
) -> BlobFile:
    """Open a blob that the user names; `weights` returns a model that has those it lacks."""
    if not isinstance(source, str | Path | bytes | bytearray | memoryview):
        if not hasattr(source, "read"):
            raise ArgumentTypeError(
                "give the path, the bytes or a binary file of what `export_model` wrote; got "
                f"{type(source).__name__}."
            )
        file, source = source, source.read()
        if not source and file.seekable():  # just written: it is at its end
            file.seek(0)
            source = file.read()
    try:
        if not is_weightless(source):
            return BlobFile(source)
        if weights is None:
            where = f"blob {source}" if isinstance(source, str | Path) else "blob"
            raise BlobError(
                f"{where}: it was exported without weights; give the model that was compiled, "
                "as import_model(blob, weights='model.onnx') (--weights model.onnx)."
            )
        arrays = (constant.array for constant in weights().constants.values())
        return BlobFile(restore(source, arrays))
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"no file {str(source)!r}; give the path or the bytes of what `export_model` wrote.",
            path=str(source),
        ) from error
    except OSError as error:
        raise BlobError(
            f"blob {source!s}: cannot be read: {error.strerror or error}.", path=str(source)
        ) from error


class ModelBlob:
    """A compiled model's blob, or a plan of the cache, read and checked."""

    def __init__(self, blob: BlobFile, kind: str = MODEL_KIND) -> None:
        self.blob = blob
        self._where = f"blob {blob.path or ''}".rstrip()
        contents = blob.contents()
        found = contents.get("kind") if isinstance(contents, dict) else None
        if found != kind:
            raise BlobError(f"{self._where}: kind: {found!r}, wanted {kind!r}.")
        self.contents: dict[str, Any] = contents
        layout = contents.get("layout", ONE_PLAN)
        if layout not in (ONE_PLAN, SEVERAL_PLANS):
            raise BlobError(
                f"{self._where}: layout {layout!r}; this program reads {ONE_PLAN} and "
                f"{SEVERAL_PLANS}. Compile the model again, or read it with a newer hetero."
            )
        rows = [contents] if layout == ONE_PLAN else contents.get("variants")
        try:
            self.head = head = msgspec.convert(contents, Header)
            self._placed = msgspec.convert(rows, _PlacedRows)
            self.plans = [Plan.from_bytes(row.plan) for row in self._placed]
            #: Which device each node was compiled for, and why, by each plan.
            self.affinities = [_affinity(*row.affinity) for row in self._placed]
            self._ports = {spec.name: spec for spec in map(unpack_spec, head.ports)}
            #: The model's inputs that have a default.
            self.optional_inputs = tuple(map(unpack_spec, head.optional_inputs))
        except (HeteroError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise BlobError(f"{self._where}: header: damaged: {str(error)[:200]}.") from error
        if absent := [d for d in self.used if d not in head.devices]:
            raise BlobError(f"{self._where}: devices: nothing on {absent}, which the plan uses.")

    @property
    def name(self) -> str:
        """The model's name."""
        return self.plans[0].name

    @property
    def used(self) -> tuple[str, ...]:
        """Devices that the plans use, each once."""
        return tuple(dict.fromkeys(d for plan in self.plans for d in plan.devices))

    def source(self) -> Model:
        """Return the model that was compiled, read when more than its outside is asked for."""
        plan = self.plans[0]
        metadata = self.head.metadata
        return LazyModel(
            plan.name, plan.inputs, plan.outputs, self._whole, self.optional_inputs, metadata
        )

    def _whole(self) -> Model:
        """Return the model that was compiled; its weights are views of the blob."""
        try:
            parts = self.blob.contents(self.contents["source"])
            skeleton = onnx.ModelProto()
            skeleton.ParseFromString(parts["skeleton"])
            check_self_contained(skeleton, (), f"{self._where}: source")
            model = join_model(ModelParts(**parts))
        except (TypeError, AttributeError, LookupError, DecodeError, ModelError) as error:
            raise BlobError(f"{self._where}: source: damaged: {error}.") from error
        if any(not isinstance(c.array, np.ndarray) for c in model.constants.values()):
            raise BlobError(f"{self._where}: source: a weight that is not a tensor.")
        self.check_positions(model)
        return model

    def check_positions(self, model: Model) -> None:
        """Check that the cut's nodes are nodes of `model`."""
        placed = (p for row in self._placed for stage in row.positions for p in stage)
        if (most := max(placed, default=-1)) >= len(model.nodes):
            raise BlobError(f"{self._where}: positions: node {most} of {len(model.nodes)}.")

    def stage_models(self, cut: PlacedPartition) -> list[Model]:
        """Return each stage's model, read when more than its ports is asked for."""

        def deferred(subgraph: Subgraph) -> Model:
            inputs = [self._ports[value] for value in subgraph.inputs]
            outputs = [self._ports[value] for value in subgraph.outputs]
            return LazyModel(self.name, inputs, outputs, lambda: subgraph.model)

        try:
            return [deferred(subgraph) for subgraph in cut.partition.subgraphs]
        except KeyError as error:
            raise BlobError(f"{self._where}: ports: nothing on value {error}.") from error

    def cuts(self, source: Model) -> tuple[PlacedPartition, ...]:
        """Return how `source`, which has to be the model that was compiled, was cut and placed."""
        rows = zip(self.plans, self._placed, self.affinities, strict=True)
        try:
            return tuple(
                PlacedPartition(_partition(source, plan, row.positions), affinity, row.share)
                for plan, row, affinity in rows
            )
        except (TypeError, ValueError, LookupError) as error:
            raise BlobError(f"{self._where}: positions: they do not fit: {error}.") from error


def _ports(cuts: Sequence[PlacedPartition]) -> list[TensorSpec]:
    """Return the types of the values that stages take and give, each once."""
    found = {
        spec.name: spec
        for cut in cuts
        for subgraph in cut.partition.subgraphs
        for spec in (*subgraph.model.inputs, *subgraph.model.outputs)
    }
    return list(found.values())


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
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
    """Return the cut that a plan and the positions of each stage's nodes describe."""
    subgraphs = tuple(
        Subgraph(s.index, s.device, s.inputs, s.outputs, s.node_names, source, rows)
        for s, rows in zip(plan.stages, positions, strict=True)
    )
    return Partition(source, subgraphs, plan.draws)


def describe(blob: BlobFile) -> dict[str, Any]:
    """Return what is in a blob of any kind as plain values, read from its header alone."""
    head = blob.outline()
    if not isinstance(head, dict):
        raise BlobError(f"blob {blob.path or ''}: its header is not a hetero header.")
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
                    "device": s.device,
                    "nodes": len(s.node_names),
                    "inputs": s.inputs,
                    "outputs": s.outputs,
                    "export_nbytes": _export_nbytes(blob, exports, index),
                }
                for index, s in enumerate(s for plan in plans for s in plan.stages)
            ],
        }
    except (TypeError, LookupError, AttributeError) as error:
        raise BlobError(f"blob {blob.path or ''}: header: damaged: {error}.") from error


def _export_nbytes(blob: BlobFile, exports: Sequence[Any], index: int) -> int | None:
    """Return how many bytes a stage's export takes; None for a stage that has none here."""
    if index >= len(exports) or exports[index] is None:
        return None
    return sum(part.nbytes for part in blob.stowed(exports[index]))


def _describe_port(spec: TensorSpec) -> dict[str, Any]:
    shape = None if spec.shape is None else list(spec.shape)
    return {"name": spec.name, "type": spec.type, "shape": shape}
