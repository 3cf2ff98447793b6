"""Loading stages on device actors: from a file of their node, a payload, or the model itself."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import ray

from hetero.devices.errors import ClusterError, DeviceLostError, HeteroError
from hetero.devices.model.model import Constant, Model
from hetero.devices.plugin.program import Payload
from hetero.scheduler.formats.model_parts import ModelParts, outline, split_model
from hetero.scheduler.formats.stage_source import StageSource, warn_of_failed_import
from hetero.scheduler.formats.stored_payload import StoredPayload
from hetero.scheduler.ray.deployment import RayDeployment
from hetero.scheduler.ray.devices import RayDevices
from hetero.scheduler.vocabulary.plan import Stage

#: Weights over this size go to the object store one by one, once for all stages that have them.
_SHARED_NBYTES: Final = 100_000


class StageLoader:
    """Sends stages to their devices."""

    def __init__(self, devices: RayDevices) -> None:
        self._devices = devices
        #: References to weights in the object store, as long as somebody here has the weight.
        self._weights: weakref.WeakKeyDictionary[Constant, Any] = weakref.WeakKeyDictionary()
        #: What of a model goes to devices, as long as somebody here has the model.
        self._packed: weakref.WeakKeyDictionary[Model, ModelParts] = weakref.WeakKeyDictionary()

    def load(self, deployment: RayDeployment, stages: Sequence[Stage]) -> dict[int, int]:
        """Load stages; return how many requests each runs at once.

        First come those that make the same for every request: it is loaded with its readers, unless
        some are there without it.
        """
        known, placement, sources = deployment.known, deployment.placement, deployment.sources
        loaded = {stage.index for stage in stages}
        num_streams: dict[int, int] = {}
        while left := [stage for stage in stages if stage.index not in num_streams]:
            once = [
                stage
                for stage in left
                if loaded.issuperset(placement.readers(stage.index))
                and known.includes(placement, stage.index, sources[stage.index].model)
            ]
            num_streams |= self._load(deployment, once or left)
            for stage in once:
                known.make(stage.index, partial(deployment.make, stage.index))
        deployment.take()  # not `placement`: another may have come meanwhile
        return num_streams

    def _load(self, deployment: RayDeployment, stages: Sequence[Stage]) -> dict[int, int]:
        """Start every stage's way onto its device, then see to those that must try another."""

        def start(stage: Stage, way: Payload | StoredPayload | None) -> Any:
            source = deployment.sources[stage.index]
            if way is None:
                parts = self.pack(source.model)
            else:  # neither nodes nor weights: an imported model may not have been read here
                ports = (source.model.inputs, source.model.outputs)
                parts = outline(source.model.name, stage.node_names, *ports)
            return deployment.device_of(stage.index).actor.load_stage.remote(
                deployment.key,
                stage.index,
                parts,
                way,
                dict(source.config),
                deployment.num_threads[stage.device],
                {
                    n: self._weight(c)
                    for n, c in deployment.known.given(deployment.placement, stage.index).items()
                },
            )

        num_streams: dict[int, int] = {}
        ways = [_ways(deployment.sources[stage.index]) for stage in stages]
        refs = [start(stage, mine[0]) for stage, mine in zip(stages, ways, strict=True)]
        for stage, mine, ref in zip(stages, ways, refs, strict=True):
            for way, after in zip(mine, [*mine[1:], None], strict=True):
                try:
                    streams = self._devices.fetch(deployment.device_of(stage.index), ref)
                except HeteroError as error:
                    if way is None or isinstance(error, DeviceLostError | ClusterError):
                        raise
                    if not isinstance(way, StoredPayload):
                        warn_of_failed_import(deployment.placement, stage.index, error)
                    ref = start(stage, after)
                else:
                    num_streams[stage.index] = streams
                    if way is not None:
                        deployment.imported.add(stage.index)
                    break
        return num_streams

    def pack(self, model: Model) -> ModelParts:
        """Return a model's parts, with references to its large weights."""
        if model not in self._packed:
            parts = split_model(model)
            weights = {name: self._weight(model.constants[name]) for name in parts.weights}
            self._packed[model] = parts._replace(weights=weights)
        return self._packed[model]

    def _weight(self, constant: Constant) -> Any:
        if constant.array.nbytes <= _SHARED_NBYTES:
            return np.asarray(constant.array)
        if constant not in self._weights:
            self._weights[constant] = ray.put(np.asarray(constant.array))
        return self._weights[constant]

    def close(self) -> None:
        """Let go of what is in the object store."""
        self._packed.clear()
        self._weights.clear()


def _ways(source: StageSource) -> list[Payload | StoredPayload | None]:
    """Return what a stage may be loaded from, the cheapest first; None is compilation."""
    given = (source.stored, source.payload)
    return [*(way for way in given if way is not None), None]
