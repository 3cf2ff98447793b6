"""What an executor takes besides a plan: each stage's model and configuration, and constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hetero.partition.partition import Partition
from scheduler.formats.stage_source import StageSource


def stage_sources(
    partitions: Iterable[Partition], configs: Mapping[str, Mapping[str, Any]]
) -> list[StageSource]:
    """Return what each stage's device compiles, numbered through the partitions.

    `configs`: device name -> its options.
    """
    return [
        StageSource(s.model, None, dict(configs.get(s.device, {})))
        for partition in partitions
        for s in partition.subgraphs
    ]


def constant_outputs(partition: Partition) -> dict[str, np.ndarray]:
    """Return the outputs of the model that are weights."""
    # An imported model is not read unless it has to be.
    return {n: partition.source.constants[n].array for n in partition.plan.constant_outputs}
