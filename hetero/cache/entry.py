"""One compiled model in the cache: found, or kept when it was made.

A plan's entry holds the cut, or several that share the requests, and names its subgraphs' entries,
so that a hit asks no device about the model. The weights are in the subgraphs' entries only, from
which every process of a node maps them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO, Final, TypeVar

from hetero.affinity.affinity import Affinity
from hetero.cache.blob import PLAN_KIND, STAGE_KIND, ModelBlob, header_of
from hetero.cache.folder import PLAN_SUFFIX, STAGE_SUFFIX, Cache
from hetero.cache.key import plan_key, stage_key
from hetero.devices.errors import BlobError, UnsupportedOperationError
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Payload
from hetero.partition.partition import PlacedPartition, Subgraph
from hetero.properties.compile_request import CompileRequest
from hetero.scheduler.executor import Deployment
from hetero.scheduler.formats.blob_file import BlobFile
from hetero.scheduler.formats.blob_writer import BlobWriter
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.formats.stored_payload import (
    PAYLOADS,
    StoredPayload,
    read_payload,
    write_payload,
)
from hetero.scheduler.vocabulary.plan import pack_spec, unpack_spec
from hetero.version import hetero_version

_log = logging.getLogger(__name__)
T = TypeVar("T")

#: The entry of a plan's header that names its stages' entries.
_STAGE_KEYS: Final = "stage_keys"


@dataclass(frozen=True, slots=True)
class Kept:
    """A plan that the cache has, and the keys of its subgraphs, numbered through the cuts."""

    cuts: tuple[PlacedPartition, ...]
    keys: tuple[str, ...]


class KeptModel:
    """The place of one request for one model in a cache."""

    def __init__(self, cache: Cache, model: Model, request: CompileRequest) -> None:
        self._cache = cache
        self._model = model
        self._request = request
        self._key: Final = plan_key(model, request, encrypted=cache.encrypted)

    def lock(self) -> AbstractContextManager[bool]:
        """Of all who ask for the same at once, one compiles and the others wait for its entry."""
        return self._cache.lock(self._key)

    def find(self) -> Kept | None:
        """Return the plan, if it is there; what cannot be used is dropped with a warning."""
        return self._read(self._key + PLAN_SUFFIX, self._read_plan)

    def cut(self, cuts: Sequence[PlacedPartition]) -> Kept:
        """Return cuts that were made now, with the keys of their subgraphs."""
        return Kept(tuple(cuts), tuple(map(self._stage_key, _subgraphs(cuts))))

    def sources(self, kept: Kept, sources: Iterable[StageSource]) -> list[StageSource]:
        """Return each stage's source with its device's export, where the cache has it."""
        found = []
        for source, key in zip(sources, kept.keys, strict=True):
            stage = self._read(key + STAGE_SUFFIX, partial(_read_stage, key))
            payload, stored = stage or (None, None)
            found.append(replace(source, payload=payload, stored=stored))
        return found

    def keep(self, kept: Kept, deployment: Deployment, *, found: bool = False) -> bool:
        """Write the subgraphs' entries that are missing, then the plan's, unless that was found.

        Returns: whether no subgraph's entry was missing.
        """
        numbers = [number for route in deployment.routes for number in route.stages]
        subgraphs = zip(kept.keys, _subgraphs(kept.cuts), strict=True)
        stages = dict(zip(numbers, subgraphs, strict=True))
        missing = sorted(stages.keys() - set(deployment.imported))
        written = [self._keep_stage(*stages[n], n, deployment) for n in missing]
        # Devices may export nothing, and a folder take nothing.
        if not found and (any(written) or len(missing) < len(stages)):
            self._cache.put(self._key + PLAN_SUFFIX, lambda file: self._write_plan(file, kept))
        return not missing

    def _read(self, name: str, read: Callable[[BlobFile], T]) -> T | None:
        """Return an entry as `read` has it; None where there is none that can be used."""
        blob = self._cache.find(name)
        try:
            return None if blob is None else read(blob)
        except BlobError as error:
            self._cache.drop(name, str(error))
            return None

    def _read_plan(self, blob: BlobFile) -> Kept:
        entry = ModelBlob(blob, PLAN_KIND)
        contents = entry.contents
        if contents.get("key") != self._key:
            raise BlobError(f"it is the entry of key {str(contents.get('key'))[:64]!r}.")
        keys = contents.get(_STAGE_KEYS)
        if not isinstance(keys, list) or len(keys) != sum(len(plan.stages) for plan in entry.plans):
            raise BlobError("its subgraphs' keys are damaged.")
        if entry.head.content_hash != self._model.content_hash:
            raise BlobError("it is another model's.")
        if absent := set(entry.used) - set(self._request.devices):
            raise BlobError(f"it is for devices {sorted(absent)}.")
        try:
            specs = {s.name: s for s in map(unpack_spec, blob.contents(contents.get("specs")))}
        except (TypeError, ValueError) as error:
            raise BlobError(f"its types are damaged: {error}.") from error
        cuts = entry.cuts(self._model.replace(specs=specs))
        entry.check_positions(self._model)
        return Kept(tuple(map(self._with_reasons, cuts)), tuple(map(str, keys)))

    def _with_reasons(self, cut: PlacedPartition) -> PlacedPartition:
        """Return a cut with the pins' reasons as they are here: they are not part of the key."""
        reasons = {**cut.affinity.reasons, **self._request.pins.reasons}
        return replace(cut, affinity=Affinity(cut.affinity.devices, reasons))

    def _stage_key(self, subgraph: Subgraph) -> str:
        return stage_key(
            subgraph.model, subgraph.device, self._request, encrypted=self._cache.encrypted
        )

    def _write_plan(self, file: BinaryIO, kept: Kept) -> int:
        writer = BlobWriter()
        source = kept.cuts[0].partition.source
        stages = (s for cut in kept.cuts for s in cut.plan.stages)
        wanted = dict.fromkeys(v for s in stages for v in (*s.inputs, *s.outputs))
        wanted |= dict.fromkeys(v for node in source.nodes for v in (*node.reads, *node.writes))
        specs = [source.specs[v] for v in wanted if v in source.specs]
        rows = [pack_spec(spec) for spec in specs]
        head = {
            "kind": PLAN_KIND,
            "key": self._key,
            **header_of(kept.cuts, self._request),
            PAYLOADS: [],
            _STAGE_KEYS: list(kept.keys),
            "specs": writer.document(rows),
        }
        return writer.write(file, head)

    def _keep_stage(self, key: str, subgraph: Subgraph, index: int, deployment: Deployment) -> bool:
        """Write a subgraph's entry; return whether its device has a form to keep."""
        model = self._model.name
        try:
            payload = deployment.export(index)
        except UnsupportedOperationError:
            return False
        except Exception as error:  # a plugin's export may raise anything
            what = type(error).__name__
            _log.warning("model=%s stage=%d: not kept: %s: %s", model, index, what, error)
            return False
        record = self._request.descriptor(subgraph.device)

        def write(file: BinaryIO) -> int:
            writer = BlobWriter()
            head: dict[str, Any] = {
                "kind": STAGE_KIND,
                "key": key,
                "hetero": hetero_version(),
                "name": model,
                "devices": {subgraph.device: [record.plugin, record.version, record.fingerprint]},
                "num_nodes": len(subgraph.node_names),
                PAYLOADS: [write_payload(writer, payload)],
            }
            return writer.write(file, head)

        return self._cache.put(key + STAGE_SUFFIX, write)


def _read_stage(key: str, blob: BlobFile) -> tuple[Payload, StoredPayload | None]:
    contents = blob.contents()
    if not isinstance(contents, dict) or contents.get("key") != key:
        raise BlobError("it is another subgraph's entry.")
    stored = StoredPayload(str(blob.path), blob.digest, 0) if blob.path else None
    return read_payload(blob, 0, contents), stored


def _subgraphs(cuts: Sequence[PlacedPartition]) -> list[Subgraph]:
    """Return the subgraphs of each cut after those of the one before."""
    return [s for cut in cuts for s in cut.partition.subgraphs]
