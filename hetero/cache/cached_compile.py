"""Compiling through the cache: the whole plan if it is there, else the subgraphs that are.

A plan's entry holds the cut, or several that share the requests, and names its subgraphs' entries,
so that a hit asks no device about the model. The weights are in the subgraphs' entries only, from
which every process of a node maps them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Final

from devices.errors import BlobError, UnsupportedOperationError
from devices.model.model import Model
from devices.plugin.program import Payload
from hetero.affinity.affinity import Affinity
from hetero.cache.blob import (
    PLAN_KIND,
    STAGE_KIND,
    Compilation,
    Cut,
    ModelBlob,
    header_of,
    hetero_version,
)
from hetero.cache.folder import PLAN_SUFFIX, STAGE_SUFFIX, Cache
from hetero.cache.key import plan_key, stage_key
from hetero.partition.partition import Subgraph
from scheduler.executor import Deployment
from scheduler.formats.blob_file import BlobFile
from scheduler.formats.blob_writer import BlobWriter
from scheduler.formats.stage_source import StageSource
from scheduler.formats.stored_payload import PAYLOADS, StoredPayload, read_payload, write_payload
from scheduler.vocabulary.plan import pack_spec, unpack_spec

_log = logging.getLogger(__name__)

#: Deploys cuts with a source for each stage, numbered through them.
Deploy = Callable[[Sequence[Cut], Sequence[StageSource]], Deployment]
#: Cuts the model, deploys it with what a function gives each stage, and returns both.
Make = Callable[[Callable[[Sequence[Cut]], list[StageSource]]], tuple[Sequence[Cut], Deployment]]
#: The entry of a plan's header that names its stages' entries.
_STAGE_KEYS: Final = "stage_keys"


@dataclass(frozen=True, slots=True)
class Cached:
    """What compiling through the cache gives, and whether all of it was there."""

    deployment: Deployment
    hit: bool


@dataclass(frozen=True, slots=True)
class CachedCompiler:
    """One compilation of one model through a cache."""

    cache: Cache
    model: Model
    compilation: Compilation
    #: Nodes that have their device already.
    pins: Affinity
    deploy: Deploy

    def run(self, make: Make) -> Cached:
        """Load the model from the cache; or call `make`, and keep the result.

        Of all who ask for the same at once, one compiles and the others wait for its entry.
        """
        key = plan_key(
            self.model,
            self.compilation,
            self.pins,
            encrypted=self.cache.encrypted,
        )
        if (found := self._load(key)) is not None:
            return found
        with self.cache.lock(key):
            if not self.cache.has(key + PLAN_SUFFIX):
                return self._compile(key, make)
        # Another made it meanwhile; who waited for it may load it at the same time.
        return self._load(key) or self._compile(key, make)

    def _compile(self, key: str, make: Make) -> Cached:
        keys: list[str] = []

        def sources(cuts: Sequence[Cut]) -> list[StageSource]:
            keys[:] = [self._stage_key(s) for s in _subgraphs(cuts)]
            return self._sources(cuts, keys)

        cuts, deployment = make(sources)
        with _closed_on_error(deployment):
            self._keep(key, cuts, keys, deployment)
        return Cached(deployment, hit=False)

    def _load(self, key: str) -> Cached | None:
        name = key + PLAN_SUFFIX
        blob = self.cache.find(name)
        if blob is None:
            return None
        try:
            cuts, keys = self._read_plan(blob, key)
        except BlobError as error:
            self.cache.drop(name, str(error))
            return None
        deployment = self.deploy(cuts, self._sources(cuts, keys))
        with _closed_on_error(deployment):
            stages = _stages(deployment, keys)
            missing = stages.keys() - set(deployment.imported)
            for number in sorted(missing):
                self._keep_stage(*stages[number], number, deployment)
        return Cached(deployment, hit=not missing)

    def _read_plan(self, blob: BlobFile, key: str) -> tuple[tuple[Cut, ...], list[str]]:
        entry = ModelBlob(blob, PLAN_KIND)
        contents = entry.contents
        if contents.get("key") != key:
            raise BlobError(f"it is the entry of key {str(contents.get('key'))[:64]!r}.")
        keys = contents.get(_STAGE_KEYS)
        if not isinstance(keys, list) or len(keys) != sum(len(plan.stages) for plan in entry.plans):
            raise BlobError("its subgraphs' keys are damaged.")
        if entry.content_hash != self.model.content_hash:
            raise BlobError("it is another model's.")
        if absent := set(entry.used) - set(self.compilation.devices):
            raise BlobError(f"it is for devices {sorted(absent)}.")
        try:
            specs = {s.name: s for s in map(unpack_spec, blob.contents(contents.get("specs")))}
        except (TypeError, ValueError) as error:
            raise BlobError(f"its types are damaged: {error}.") from error
        cuts = entry.cuts(self.model.replace(specs=specs))
        entry.check_positions(self.model)
        return tuple(self._with_reasons(cut) for cut in cuts), [str(k) for k in keys]

    def _with_reasons(self, cut: Cut) -> Cut:
        """Return a cut with the pins' reasons as they are here: they are not part of the key."""
        reasons = {**cut.affinity.reasons, **self.pins.reasons}
        return replace(cut, affinity=Affinity(cut.affinity.devices, reasons))

    def _sources(self, cuts: Sequence[Cut], keys: Sequence[str]) -> list[StageSource]:
        sources = []
        for subgraph, key in zip(_subgraphs(cuts), keys, strict=True):
            config = self.compilation.configs.get(subgraph.device, {})
            payload, stored = self._find_stage(key)
            sources.append(StageSource(subgraph.model, payload, dict(config), stored))
        return sources

    def _find_stage(self, key: str) -> tuple[Payload | None, StoredPayload | None]:
        name = key + STAGE_SUFFIX
        blob = self.cache.find(name)
        if blob is None:
            return None, None
        try:
            contents = blob.contents()
            if not isinstance(contents, dict) or contents.get("key") != key:
                raise BlobError("it is another subgraph's entry.")
            payload = read_payload(blob, 0, contents)
        except BlobError as error:
            self.cache.drop(name, str(error))
            return None, None
        stored = StoredPayload(str(blob.path), blob.digest, 0) if blob.path else None
        return payload, stored

    def _stage_key(self, subgraph: Subgraph) -> str:
        device = subgraph.device
        return stage_key(
            subgraph.model,
            device,
            self.compilation,
            encrypted=self.cache.encrypted,
        )

    def _keep(
        self, key: str, cuts: Sequence[Cut], keys: Sequence[str], deployment: Deployment
    ) -> None:
        """Write the subgraphs' entries that are missing, then the plan's."""
        imported = set(deployment.imported)
        kept = [
            number in imported or self._keep_stage(stage_key, subgraph, number, deployment)
            for number, (stage_key, subgraph) in _stages(deployment, keys).items()
        ]
        if not any(kept):  # devices that export nothing, or a folder that takes nothing
            return

        def write(file: BinaryIO) -> int:
            writer = BlobWriter()
            source = cuts[0].partition.source
            stages = (s for cut in cuts for s in cut.plan.stages)
            wanted = dict.fromkeys(v for s in stages for v in (*s.inputs, *s.outputs))
            wanted |= dict.fromkeys(v for node in source.nodes for v in (*node.reads, *node.writes))
            specs = [source.specs[v] for v in wanted if v in source.specs]
            rows = [pack_spec(spec) for spec in specs]
            head = {
                "kind": PLAN_KIND,
                "key": key,
                **header_of(cuts, self.compilation),
                PAYLOADS: [],
                _STAGE_KEYS: list(keys),
                "specs": writer.document(rows),
            }
            return writer.write(file, head)

        self.cache.put(key + PLAN_SUFFIX, write)

    def _keep_stage(self, key: str, subgraph: Subgraph, index: int, deployment: Deployment) -> bool:
        """Write a subgraph's entry; return whether its device has a form to keep."""
        model = self.model.name
        try:
            payload = deployment.export(index)
        except UnsupportedOperationError:
            return False
        except Exception as error:  # a plugin's export may raise anything
            what = type(error).__name__
            _log.warning("model=%s stage=%d: not kept: %s: %s", model, index, what, error)
            return False
        record = self.compilation.devices[subgraph.device]

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

        return self.cache.put(key + STAGE_SUFFIX, write)


def _subgraphs(cuts: Sequence[Cut]) -> list[Subgraph]:
    """Return the subgraphs of each cut after those of the one before."""
    return [s for cut in cuts for s in cut.partition.subgraphs]


def _stages(deployment: Deployment, keys: Sequence[str]) -> dict[int, tuple[str, Subgraph]]:
    """Return the key and the subgraph of each stage; `keys` has those of each cut's subgraphs."""
    numbers = [number for route in deployment.routes for number in route.stages]
    subgraphs = _subgraphs([route.origin for route in deployment.routes])
    return dict(zip(numbers, zip(keys, subgraphs, strict=True), strict=True))


@contextmanager
def _closed_on_error(deployment: Deployment) -> Iterator[None]:
    """Close a deployment that is not returned."""
    try:
        yield
    except BaseException:
        deployment.close()
        raise
