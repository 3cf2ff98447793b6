"""What an executor takes besides a plan: each stage's model and configuration, and constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero.partition.partition import Partition
from scheduler.formats.stage_source import StageSource


def stage_sources(
    partition: Partition,
    configs: Mapping[str, Mapping[str, Any]],
) -> tuple[StageSource, ...]:
    """Return what each stage's device compiles: its model, its device's configuration.

    `configs`: device name -> its configuration.
    """
    return tuple(
        StageSource(s.model, None, dict(configs.get(s.device, {}))) for s in partition.subgraphs
    )


def constant_outputs(partition: Partition) -> dict[str, np.ndarray]:
    """Return the outputs of the model that are weights."""
    # An imported model is not read unless it has to be.
    return {n: partition.source.constants[n].array for n in partition.plan.constant_outputs}
