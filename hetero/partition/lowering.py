"""From a partition to what an executor takes: a plan, and each stage's model and configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from devices.plugin.program import Payload
from hetero.partition.partition import Partition
from scheduler.executor import StageSource
from scheduler.plan import Plan, Stage


def lower(partition: Partition) -> Plan:
    """Return the plan of a partition: a stage for each subgraph, in running order."""
    model = partition.source
    return Plan(
        name=model.name,
        inputs=model.inputs,
        outputs=model.outputs,
        stages=tuple(
            Stage(s.index, s.device, s.inputs, s.outputs, s.node_names) for s in partition.subgraphs
        ),
        passthrough=tuple(n for n, kind in partition.passthrough.items() if kind == "input"),
        constant_outputs=tuple(
            n for n, kind in partition.passthrough.items() if kind == "constant"
        ),
    )


def stage_sources(
    partition: Partition,
    configs: Mapping[str, Mapping[str, Any]],
    payloads: Mapping[int, Payload] | None = None,
) -> tuple[StageSource, ...]:
    """Return what each stage's device compiles: its model, its device's configuration.

    `configs`: device name -> its configuration.
    `payloads`: stage index -> an earlier export of that stage, to import instead of compiling.
    """
    return tuple(
        StageSource(s.model, (payloads or {}).get(s.index), dict(configs.get(s.device, {})))
        for s in partition.subgraphs
    )


def constant_outputs(partition: Partition) -> dict[str, np.ndarray]:
    """Return the outputs of the model that are weights."""
    names = [n for n, kind in partition.passthrough.items() if kind == "constant"]
    # An imported model is not read unless it has to be.
    return {n: partition.source.constants[n].array for n in names}
