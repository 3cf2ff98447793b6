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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import onnx
import xxhash
from google.protobuf.message import DecodeError

from devices.errors import (
    ArgumentTypeError,
    BlobError,
    HeteroError,
    ModelError,
    ModelNotFoundError,
    UnsupportedOperationError,
)
from devices.model.deferred import DeferredModel
from devices.model.model import Model
from devices.model.node_contents import check_inside
from devices.model.tensor_spec import TensorSpec
from devices.plugin.program import Payload
from hetero.affinity.affinity import Affinity
from hetero.partition.cut import Cut
from hetero.partition.partition import Partition, Subgraph
from hetero.properties.request import CompileRequest
from hetero.properties.table import NOT_KEPT
from hetero.version import hetero_version
from scheduler.formats.blob_file import BlobFile
from scheduler.formats.blob_format import Inline
from scheduler.formats.blob_writer import BlobWriter
from scheduler.formats.model_parts import ModelParts, join_model, split_model
from scheduler.formats.stored_payload import PAYLOADS, write_payload
from scheduler.formats.tensor_entries import raw
from scheduler.formats.weightless import is_weightless, restore
from scheduler.vocabulary.placement import Route
from scheduler.vocabulary.plan import Plan, pack_spec, unpack_spec
from scheduler.vocabulary.rows import DeviceDescriptor

#: What a blob may be: a compiled model, or one of the cache's two kinds of entries.
MODEL_KIND: Final = "model"
PLAN_KIND: Final = "plan"
STAGE_KIND: Final = "stage"
#: What an export may hold beside the model's weights in a blob without them.
_SMALL_NBYTES: Final = 2**16
#: Layouts of the header: of one plan, and of several that share the requests.
ONE_PLAN, SEVERAL_PLANS = 1, 2


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """What a payload depends on: the plugin, its version, the device's fingerprint."""

    plugin: str
    version: str
    fingerprint: str

    @classmethod
    def of(cls, descriptor: DeviceDescriptor) -> DeviceRecord:
        """Return a device's record."""
        return cls(descriptor.plugin, descriptor.version, descriptor.fingerprint)


def write_model(
    file: BinaryIO,
    cuts: Sequence[Cut],
    request: CompileRequest,
    payloads: Sequence[Payload | None],
    *,
    weightless: bool = False,
) -> int:
    """Write a compiled model; return how many bytes it takes.

    `cuts`: the model, cut and placed in one way or several.
    `request`: what it was compiled for.
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
        return writer.write_without(file, head, parts.weights.values())
    return writer.write(file, head)


def _is_small(payload: Payload, weights: Mapping[str, np.ndarray]) -> bool:
    """Whether an export holds little beside the model's weights."""
    known = {_identity(array) for array in weights.values()}
    others = (a for a in payload.tensors.values() if _identity(a) not in known)
    return sum(array.nbytes for array in others) <= _SMALL_NBYTES


def _identity(array: np.ndarray) -> tuple[int, bytes]:
    return array.nbytes, b"" if array.dtype == object else xxhash.xxh3_128_digest(raw(array))


def header_of(cuts: Sequence[Cut], request: CompileRequest) -> dict[str, Any]:
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
        "devices": {d.name: [d.plugin, d.version, d.fingerprint] for d in request.described},
        "options": _plain(request.own),
        "device_options": {n: _plain(options) for n, options in request.configs.items()},
        "pins": dict(request.pins.devices),
        # Of the values that stages take and give: enough to load their exports.
        "ports": [pack_spec(spec) for spec in _ports(cuts)],
        "optional_inputs": [pack_spec(s) for s in cuts[0].partition.source.optional_inputs],
        # What a compiled model asks of its source beside the ports.
        "metadata": dict(cuts[0].partition.source.metadata),
        **placed,
    }


def _row(cut: Cut) -> dict[str, Any]:
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
    """Open a blob that the user names.

    `weights`: returns the model whose weights it may have been written without.
    Raises ArgumentTypeError: `source` cannot be read.
    Raises ModelNotFoundError: there is no such file.
    Raises BlobError: it cannot be read, or is not a blob.
    """
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


def _read_texts(entries: Any) -> dict[str, str]:
    return {str(key): str(text) for key, text in entries.items()}


class ModelBlob:
    """A compiled model's blob, or a plan of the cache, read and checked.

    `kind`: what it has to be.
    Raises BlobError: it is something else, or damaged.
    """

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
        #: The entries of each plan; those of a single one are the header's own.
        self._rows: list[dict[str, Any]] = (
            [contents] if layout == ONE_PLAN else self._read("variants", _read_variants)
        )
        self.plans: list[Plan] = [self._read("plan", Plan.from_bytes, row) for row in self._rows]
        self.devices: dict[str, DeviceRecord] = self._read(
            "devices", lambda rows: {str(n): DeviceRecord(*map(str, r)) for n, r in rows.items()}
        )
        self.options: dict[str, Any] = self._read("options", dict)
        self.device_options: dict[str, dict[str, Any]] = self._read(
            "device_options", lambda options: {str(n): dict(o) for n, o in options.items()}
        )
        #: Nodes that the user placed.
        self.pins: dict[str, str] = self._read("pins", dict)
        if absent := [d for d in self.used if d not in self.devices]:
            raise BlobError(f"{self._where}: devices: nothing on {absent}, which the plan uses.")

    @property
    def name(self) -> str:
        """The model's name."""
        return self.plans[0].name

    @property
    def used(self) -> tuple[str, ...]:
        """Devices that the plans use, each once."""
        return tuple(dict.fromkeys(d for plan in self.plans for d in plan.devices))

    @property
    def content_hash(self) -> str:
        """The model's content hash."""
        return str(self.contents.get("content_hash"))

    def source(self) -> Model:
        """Return the model that was compiled, read when more than its outside is asked for."""
        plan, metadata = self.plans[0], self._read("metadata", _read_texts)
        return DeferredModel(
            plan.name, plan.inputs, plan.outputs, self._whole, self.optional_inputs, metadata
        )

    @property
    def optional_inputs(self) -> tuple[TensorSpec, ...]:
        """The model's inputs that have a default."""
        return tuple(self._read("optional_inputs", lambda rows: [*map(unpack_spec, rows)]))

    def _whole(self) -> Model:
        """Return the model that was compiled; its weights are views of the blob."""
        parts = self._read("source", self.blob.contents)
        try:
            skeleton = onnx.ModelProto()
            skeleton.ParseFromString(parts["skeleton"])
            check_inside(skeleton, (), f"{self._where}: source")
            model = join_model(ModelParts(**parts))
        except (TypeError, AttributeError, LookupError, DecodeError, ModelError) as error:
            raise BlobError(f"{self._where}: source: damaged: {error}.") from error
        if any(not isinstance(c.array, np.ndarray) for c in model.constants.values()):
            raise BlobError(f"{self._where}: source: a weight that is not a tensor.")
        self.check_positions(model)
        return model

    def check_positions(self, model: Model) -> None:
        """Check that the cut's nodes are nodes of `model`.

        Raises BlobError: the cut has more.
        """
        most = max(
            self._read(
                "positions", lambda rows: max((max(r, default=-1) for r in rows), default=-1), row
            )
            for row in self._rows
        )
        if most >= len(model.nodes):
            raise BlobError(f"{self._where}: positions: node {most} of {len(model.nodes)}.")

    def stage_models(self, cut: Cut) -> list[Model]:
        """Return each stage's model, read when more than its ports is asked for."""
        ports = {s.name: s for s in self._read("ports", lambda rows: [*map(unpack_spec, rows)])}

        def deferred(subgraph: Subgraph) -> Model:
            inputs, outputs = ([ports[v] for v in vs] for vs in (subgraph.inputs, subgraph.outputs))
            return DeferredModel(self.name, inputs, outputs, lambda: subgraph.model)

        try:
            return [deferred(subgraph) for subgraph in cut.partition.subgraphs]
        except KeyError as error:
            raise BlobError(f"{self._where}: ports: nothing on value {error}.") from error

    def affinity(self) -> Affinity:
        """Return which device each node was compiled for, and why; of several plans, the first."""
        found: Affinity = self._read("affinity", _read_affinity, self._rows[0])
        return found

    def cuts(self, source: Model) -> tuple[Cut, ...]:
        """Return how `source`, which has to be the model that was compiled, was cut and placed."""
        found = []
        for plan, row in zip(self.plans, self._rows, strict=True):
            positions = self._read("positions", lambda rows: [tuple(r) for r in rows], row)
            affinity = self._read("affinity", _read_affinity, row)
            share = 1.0 if len(self._rows) == 1 else self._read("share", _read_share, row)
            try:
                found.append(Cut(_partition(source, plan, positions), affinity, share))
            except (TypeError, ValueError, LookupError) as error:
                raise BlobError(f"{self._where}: positions: they do not fit: {error}.") from error
        return tuple(found)

    def _read(
        self, entry: str, read: Callable[[Any], Any], row: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            return read((self.contents if row is None else row)[entry])
        except BlobError:
            raise
        except (HeteroError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise BlobError(
                f"{self._where}: {entry}: {type(error).__name__}: {str(error)[:200]}."
            ) from error


def _ports(cuts: Sequence[Cut]) -> list[TensorSpec]:
    """Return the types of the values that stages take and give, each once."""
    found = {
        spec.name: spec
        for cut in cuts
        for subgraph in cut.partition.subgraphs
        for spec in (*subgraph.model.inputs, *subgraph.model.outputs)
    }
    return list(found.values())


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in NOT_KEPT}


def _read_variants(rows: Any) -> list[dict[str, Any]]:
    if not isinstance(rows, list) or len(rows) < 2 or not all(isinstance(r, dict) for r in rows):
        raise ValueError("fewer than two plans, or one that is not a map")
    return rows


def _read_share(share: Any) -> float:
    if not isinstance(share, float) or not 0 < share <= 1:
        raise ValueError(f"a share of {share!r}")
    return share


def _read_affinity(entry: Any) -> Affinity:
    names, devices, device_of, reasons, reason_of = entry
    return Affinity(
        {n: str(devices[d]) for n, d in zip(names, device_of, strict=True)},
        {n: str(reasons[r]) for n, r in zip(names, reason_of, strict=True) if reasons[r]},
    )


def _partition(source: Model, plan: Plan, positions: Sequence[tuple[int, ...]]) -> Partition:
    """Return the cut that a plan and the positions of each stage's nodes describe."""
    for rows in positions:
        if any(type(p) is not int or p < 0 for p in rows):
            raise ValueError("a position that is not a number")
    subgraphs = tuple(
        Subgraph(s.index, s.device, s.inputs, s.outputs, s.node_names, source, rows)
        for s, rows in zip(plan.stages, positions, strict=True)
    )
    return Partition(source, subgraphs, plan.draws)
