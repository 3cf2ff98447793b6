"""Loading of stages on device actors, from a file of the node, a payload, or the model."""

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
from hetero.scheduler.types.plan import Stage

#: Weights over this size are put into the object store, once for all stages that use them.
_SHARED_NBYTES: Final = 100_000


class StageLoader:
    """Loader of stages on their devices."""

    def __init__(self, devices: RayDevices) -> None:
        self._devices = devices
        #: References to weights in the object store, as long as this process uses the weight.
        self._weights: weakref.WeakKeyDictionary[Constant, Any] = weakref.WeakKeyDictionary()
        #: Parts of models that are sent to devices, as long as this process uses the model.
        self._packed: weakref.WeakKeyDictionary[Model, ModelParts] = weakref.WeakKeyDictionary()

    def load(self, deployment: RayDeployment, stages: Sequence[Stage]) -> dict[int, int]:
        """Load stages; return the number of parallel requests of each.

        Constant stages are loaded first. Their outputs are loaded with the stages that read them,
        unless some of these are already loaded without them.
        """
        constant_stages, placement, sources = (
            deployment.constant_stages,
            deployment.placement,
            deployment.sources,
        )
        indices = {stage.index for stage in stages}
        num_streams: dict[int, int] = {}
        while remaining := [stage for stage in stages if stage.index not in num_streams]:
            constant = [
                stage
                for stage in remaining
                if indices.issuperset(placement.readers(stage.index))
                and constant_stages.includes(placement, stage.index, sources[stage.index].model)
            ]
            num_streams |= self._load(deployment, constant or remaining)
            for stage in constant:
                constant_stages.make(stage.index, partial(deployment.make, stage.index))
        deployment.switch_to()  # not `placement`: replanning may have extended it
        return num_streams

    def _load(self, deployment: RayDeployment, stages: Sequence[Stage]) -> dict[int, int]:
        """Load all stages in parallel; after a failed import, try the next source of the stage."""

        def start(stage: Stage, source_option: Payload | StoredPayload | None) -> Any:
            source = deployment.sources[stage.index]
            if source_option is None:
                parts = self.pack(source.model)
            else:  # an imported model may not have been read here: send neither nodes nor weights
                ports = (source.model.inputs, source.model.outputs)
                parts = outline(source.model.name, stage.node_names, *ports)
            return deployment.device_of(stage.index).actor.load_stage.remote(
                deployment.key,
                stage.index,
                parts,
                source_option,
                dict(source.config),
                deployment.num_threads[stage.device],
                {
                    n: self._weight(c)
                    for n, c in deployment.constant_stages.inputs_of(
                        deployment.placement, stage.index
                    ).items()
                },
            )

        num_streams: dict[int, int] = {}
        stage_options = [_load_sources(deployment.sources[stage.index]) for stage in stages]
        refs = [
            start(stage, options[0]) for stage, options in zip(stages, stage_options, strict=True)
        ]
        for stage, options, ref in zip(stages, stage_options, refs, strict=True):
            for source_option, next_option in zip(options, [*options[1:], None], strict=True):
                try:
                    streams = self._devices.fetch(deployment.device_of(stage.index), ref)
                except HeteroError as error:
                    if source_option is None or isinstance(error, DeviceLostError | ClusterError):
                        raise
                    if not isinstance(source_option, StoredPayload):
                        warn_of_failed_import(deployment.placement, stage.index, error)
                    ref = start(stage, next_option)
                else:
                    num_streams[stage.index] = streams
                    if source_option is not None:
                        deployment.imported.add(stage.index)
                    break
        return num_streams

    def pack(self, model: Model) -> ModelParts:
        """Split a model into parts, with references to its large weights."""
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
        """Release the objects in the object store."""
        self._packed.clear()
        self._weights.clear()


def _load_sources(source: StageSource) -> list[Payload | StoredPayload | None]:
    """Return the sources for loading a stage, cheapest first; None stands for compilation."""
    payloads = (source.stored, source.payload)
    return [*(payload for payload in payloads if payload is not None), None]
