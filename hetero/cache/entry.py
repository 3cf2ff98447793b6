"""Cache entry of one compiled model: the plan and the exports of its subgraphs.

The plan's file contains the placements and the keys of the subgraphs' files, so a cache hit needs
no query to a device. Only the subgraphs' files contain weights; all processes of a node map them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO, Final, TypeVar

from hetero.affinity.affinity import Affinity
from hetero.cache.blob import PLAN_KIND, STAGE_KIND, ModelBlob, build_header
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
from hetero.scheduler.types.plan import pack_spec, unpack_spec
from hetero.version import hetero_version

_log = logging.getLogger(__name__)
T = TypeVar("T")

#: The field of a plan's header with the keys of its subgraphs.
_STAGE_KEYS: Final = "stage_keys"
#: The field of a plan's header with the seconds of its compilation.
_COMPILE_S: Final = "compile_s"


@dataclass(frozen=True, slots=True)
class CachedPlan:
    """A plan to store in the cache, or read from it."""

    placements: tuple[PlacedPartition, ...]
    #: The cache key of each subgraph, in the order of all placements' subgraphs; empty without a
    #: cache.
    keys: tuple[str, ...]
    #: Seconds of the compilation that stored the plan; None if unknown.
    compile_s: float | None = None


class CacheEntry:
    """The entry of a model and a compile request in a cache; always empty without a cache."""

    def __init__(self, cache: Cache | None, model: Model, request: CompileRequest) -> None:
        self._cache = cache
        self._model = model
        self._request = request
        self._key: Final = plan_key(model, request, encrypted=cache.encrypted) if cache else ""

    def lock(self) -> AbstractContextManager[bool | None]:
        """Lock the entry, so that other processes wait for it instead of compiling the model."""
        return self._cache.lock(self._key) if self._cache else nullcontext()

    def find(self) -> CachedPlan | None:
        """Return the plan, if it is in the cache; remove an unusable one with a warning."""
        return self._read(self._key + PLAN_SUFFIX, self._read_plan)

    def create_plan(self, placements: Sequence[PlacedPartition]) -> CachedPlan:
        """Return a new plan to store, with the keys of its subgraphs."""
        keys = map(self._stage_key, _all_subgraphs(placements)) if self._cache else ()
        return CachedPlan(tuple(placements), tuple(keys))

    def sources(self, plan: CachedPlan, sources: Iterable[StageSource]) -> list[StageSource]:
        """Return the sources of a plan's stages, with their exports if the cache has them."""
        if not self._cache:
            return list(sources)
        sources_with_exports = []
        for source, key in zip(sources, plan.keys, strict=True):
            stage = self._read(key + STAGE_SUFFIX, partial(_read_stage, key))
            payload, stored = stage or (None, None)
            sources_with_exports.append(replace(source, payload=payload, stored=stored))
        return sources_with_exports

    def store(self, plan: CachedPlan, deployment: Deployment, *, is_new: bool) -> bool:
        """Write the missing subgraphs' files, and the plan's file if it is new.

        Returns: whether all subgraphs were in the cache.
        """
        if not self._cache:
            return False
        numbers = [number for route in deployment.routes for number in route.stages]
        subgraphs = zip(plan.keys, _all_subgraphs(plan.placements), strict=True)
        stages = dict(zip(numbers, subgraphs, strict=True))
        missing = sorted(stages.keys() - set(deployment.imported))
        is_written = [self._store_stage(*stages[n], n, deployment) for n in missing]
        # A plan without any stage's file is useless: devices may not export, or writing failed.
        if is_new and (any(is_written) or len(missing) < len(stages)):
            self._cache.put(self._key + PLAN_SUFFIX, lambda file: self._write_plan(file, plan))
        return not missing

    def _read(self, name: str, read: Callable[[BlobFile], T]) -> T | None:
        """Read a file of the cache with `read`; return None if it is missing or unusable."""
        blob = self._cache.find(name) if self._cache else None
        try:
            return None if blob is None else read(blob)
        except BlobError as error:
            assert self._cache is not None
            self._cache.drop(name, str(error))
            return None

    def _read_plan(self, blob: BlobFile) -> CachedPlan:
        model_blob = ModelBlob(blob, PLAN_KIND)
        contents = model_blob.contents
        if contents.get("key") != self._key:
            raise BlobError(f"it has the key of another entry: {str(contents.get('key'))[:64]!r}.")
        keys = contents.get(_STAGE_KEYS)
        num_stages = sum(len(plan.stages) for plan in model_blob.plans)
        if not isinstance(keys, list) or len(keys) != num_stages:
            raise BlobError("the keys of its subgraphs are damaged.")
        if model_blob.head.content_hash != self._model.content_hash:
            raise BlobError("it belongs to another model.")
        if missing := set(model_blob.devices) - set(self._request.devices):
            raise BlobError(f"it is for the devices {sorted(missing)}.")
        try:
            specs = {s.name: s for s in map(unpack_spec, blob.contents(contents.get("specs")))}
        except (TypeError, ValueError) as error:
            raise BlobError(f"its types are damaged: {error}.") from error
        placements = model_blob.placements(self._model.replace(specs=specs))
        model_blob.check_positions(self._model)
        compile_s = contents.get(_COMPILE_S)
        return CachedPlan(
            tuple(map(self._with_reasons, placements)),
            tuple(map(str, keys)),
            compile_s if isinstance(compile_s, float) else None,
        )

    def _with_reasons(self, placement: PlacedPartition) -> PlacedPartition:
        """Return a placement with this request's reasons of pins, which are not in the key."""
        reasons = {**placement.affinity.reasons, **self._request.pins.reasons}
        return replace(placement, affinity=Affinity(placement.affinity.devices, reasons))

    def _stage_key(self, subgraph: Subgraph) -> str:
        encrypted = self._cache is not None and self._cache.encrypted
        return stage_key(subgraph.model, subgraph.device, self._request, encrypted=encrypted)

    def _write_plan(self, file: BinaryIO, plan: CachedPlan) -> int:
        writer = BlobWriter()
        source = plan.placements[0].partition.source
        stages = (stage for placement in plan.placements for stage in placement.plan.stages)
        values = dict.fromkeys(v for s in stages for v in (*s.inputs, *s.outputs))
        values |= dict.fromkeys(v for node in source.nodes for v in (*node.reads, *node.writes))
        specs = [pack_spec(source.specs[value]) for value in values if value in source.specs]
        head = {
            "kind": PLAN_KIND,
            "key": self._key,
            **build_header(plan.placements, self._request),
            PAYLOADS: [],
            _STAGE_KEYS: list(plan.keys),
            _COMPILE_S: plan.compile_s,
            "specs": writer.document(specs),
        }
        return writer.write(file, head)

    def _store_stage(
        self, key: str, subgraph: Subgraph, index: int, deployment: Deployment
    ) -> bool:
        """Write the file of a subgraph; return whether it was written."""
        assert self._cache is not None
        model = self._model.name
        try:
            payload = deployment.export(index)
        except UnsupportedOperationError:
            return False
        except Exception as error:  # a plugin's export may raise anything
            kind = type(error).__name__
            _log.warning("model=%s stage=%d: not stored: %s: %s", model, index, kind, error)
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
        raise BlobError("it has the key of another subgraph.")
    stored = StoredPayload(str(blob.path), blob.digest, 0) if blob.path else None
    return read_payload(blob, 0, contents), stored


def _all_subgraphs(placements: Sequence[PlacedPartition]) -> list[Subgraph]:
    """Return the subgraphs of all placements, in order."""
    return [s for placement in placements for s in placement.partition.subgraphs]
