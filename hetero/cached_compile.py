"""Compiling through the cache: the whole plan if it is there, else the subgraphs that are.

A plan's entry holds the cut and names its subgraphs' entries; a hit asks no device anything. The
weights are in the subgraphs' entries only, from which every process of a node maps them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from devices.errors import BlobError, UnsupportedOperationError
from devices.model import Model
from devices.program import Payload
from hetero.affinity import Affinity
from hetero.blob import (
    PLAN_KIND,
    STAGE_KIND,
    Compilation,
    Cut,
    ModelBlob,
    header_of,
    hetero_version,
)
from hetero.cache import PLAN_SUFFIX, STAGE_SUFFIX, Cache
from hetero.cache_key import plan_key, stage_key
from scheduler.blob_file import BlobFile
from scheduler.blob_writer import BlobWriter
from scheduler.executor import Deployment, StageSource
from scheduler.model_parts import pack_spec, unpack_spec
from scheduler.stored_payload import PAYLOADS, StoredPayload, read_payload, write_payload

_log = logging.getLogger(__name__)

#: Deploys a cut with a source for each stage.
Deploy = Callable[[Cut, Sequence[StageSource]], Deployment]
#: The entry of a plan's header that names its stages' entries.
_STAGE_KEYS: Final = "stage_keys"


@dataclass(frozen=True, slots=True)
class Cached:
    """What compiling through the cache gives: a cut, deployed, and whether all of it was there."""

    cut: Cut
    deployment: Deployment
    hit: bool


@dataclass(frozen=True, slots=True)
class CachedCompiler:
    """One compilation of one model through a cache.

    Attributes
    ----------
    cache : Cache
        The folder.
    model : Model
        The whole model.
    compilation : Compilation
        Devices and options.
    pins : Affinity
        Nodes that have their device already.
    deploy : callable
        Deploys a cut.
    """

    cache: Cache
    model: Model
    compilation: Compilation
    pins: Affinity
    deploy: Deploy

    def run(self, cut: Callable[[], Cut]) -> Cached:
        """Load the model from the cache; or call `cut`, compile, and keep what comes of it.

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
                return self._compile(key, cut)
        # Another made it meanwhile; who waited for it may load it at the same time.
        return self._load(key) or self._compile(key, cut)

    def _compile(self, key: str, cut: Callable[[], Cut]) -> Cached:
        made = cut()
        keys = [self._stage_key(made, stage.index) for stage in made.plan.stages]
        deployment = self._deploy(made, keys)
        with _closed_on_error(deployment):
            self._keep(key, made, keys, deployment)
        return Cached(made, deployment, hit=False)

    def _load(self, key: str) -> Cached | None:
        name = key + PLAN_SUFFIX
        blob = self.cache.find(name)
        if blob is None:
            return None
        try:
            cut, keys = self._read_plan(blob, key)
        except BlobError as error:
            self.cache.drop(name, str(error))
            return None
        deployment = self._deploy(cut, keys)
        with _closed_on_error(deployment):
            for stage in cut.plan.stages:
                if stage.index not in deployment.imported:
                    self._keep_stage(keys[stage.index], cut, stage.index, deployment)
        return Cached(cut, deployment, hit=len(deployment.imported) == len(cut.plan.stages))

    def _read_plan(self, blob: BlobFile, key: str) -> tuple[Cut, list[str]]:
        entry = ModelBlob(blob, PLAN_KIND)
        contents = entry.contents
        if contents.get("key") != key:
            raise BlobError(f"it is the entry of key {str(contents.get('key'))[:64]!r}.")
        keys = contents.get(_STAGE_KEYS)
        if not isinstance(keys, list) or len(keys) != len(entry.plan.stages):
            raise BlobError("its subgraphs' keys are damaged.")
        if entry.content_hash != self.model.content_hash:
            raise BlobError("it is another model's.")
        if absent := set(entry.plan.devices) - set(self.compilation.devices):
            raise BlobError(f"it is for devices {sorted(absent)}.")
        try:
            specs = {s.name: s for s in map(unpack_spec, blob.contents(contents.get("specs")))}
        except (TypeError, ValueError) as error:
            raise BlobError(f"its types are damaged: {error}.") from error
        cut = entry.cut(self.model.replace(specs=specs))
        entry.check_positions(self.model)
        # Where a pin comes from is no part of the key.
        reasons = {**cut.affinity.reasons, **self.pins.reasons}
        affinity = Affinity(cut.affinity.devices, reasons)
        return Cut(cut.partition, affinity, cut.plan), [str(k) for k in keys]

    def _deploy(self, cut: Cut, keys: Sequence[str]) -> Deployment:
        sources = []
        for subgraph, key in zip(cut.partition.subgraphs, keys, strict=True):
            config = self.compilation.configs.get(subgraph.device, {})
            payload, stored = self._find_stage(key)
            sources.append(StageSource(subgraph.model, payload, dict(config), stored))
        return self.deploy(cut, sources)

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

    def _stage_key(self, cut: Cut, index: int) -> str:
        subgraph = cut.partition.subgraphs[index]
        device = subgraph.device
        return stage_key(
            subgraph.model,
            device,
            self.compilation,
            encrypted=self.cache.encrypted,
        )

    def _keep(self, key: str, cut: Cut, keys: Sequence[str], deployment: Deployment) -> None:
        """Write the subgraphs' entries that are missing, then the plan's."""
        kept = [
            index in deployment.imported or self._keep_stage(keys[index], cut, index, deployment)
            for index in range(len(keys))
        ]
        if not any(kept):  # devices that export nothing, or a folder that takes nothing
            return

        def write(file: BinaryIO) -> int:
            writer = BlobWriter()
            source = cut.partition.source
            wanted = dict.fromkeys(v for s in cut.plan.stages for v in (*s.inputs, *s.outputs))
            wanted |= dict.fromkeys(v for node in source.nodes for v in (*node.reads, *node.writes))
            specs = [source.specs[v] for v in wanted if v in source.specs]
            rows = [pack_spec(spec) for spec in specs]
            head = {
                "kind": PLAN_KIND,
                "key": key,
                **header_of(cut, self.compilation),
                PAYLOADS: [],
                _STAGE_KEYS: list(keys),
                "specs": writer.document(rows),
            }
            return writer.write(file, head)

        self.cache.put(key + PLAN_SUFFIX, write)

    def _keep_stage(self, key: str, cut: Cut, index: int, deployment: Deployment) -> bool:
        """Write a subgraph's entry; return whether its device has a form to keep."""
        subgraph = cut.partition.subgraphs[index]
        try:
            payload = deployment.export(index)
        except UnsupportedOperationError:
            return False
        except Exception as error:  # a plugin's export may raise anything
            what = type(error).__name__
            _log.warning("model=%s stage=%d: not kept: %s: %s", cut.plan.name, index, what, error)
            return False
        record = self.compilation.devices[subgraph.device]

        def write(file: BinaryIO) -> int:
            writer = BlobWriter()
            head: dict[str, Any] = {
                "kind": STAGE_KIND,
                "key": key,
                "hetero": hetero_version(),
                "name": cut.plan.name,
                "devices": {subgraph.device: [record.plugin, record.version, record.fingerprint]},
                "num_nodes": len(subgraph.node_names),
                PAYLOADS: [write_payload(writer, payload)],
            }
            return writer.write(file, head)

        return self.cache.put(key + STAGE_SUFFIX, write)


@contextmanager
def _closed_on_error(deployment: Deployment) -> Iterator[None]:
    """Close a deployment that nobody gets to see."""
    try:
        yield
    except BaseException:
        deployment.close()
        raise
