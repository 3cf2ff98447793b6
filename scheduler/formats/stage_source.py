"""What a device makes a stage from."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero.devices.errors import PlanError
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Payload
from hetero.scheduler.formats.stored_payload import StoredPayload
from hetero.scheduler.vocabulary.placement import Placement

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageSource:
    """What a device makes a stage from.

    `model`: the subgraph; with a payload its ports are enough.
    `payload`: the device's own earlier export, imported instead of compiling. Where that fails, the
        model is compiled after all, and a warning says so.
    `config`: properties for the compilation.
    `stored`: the file that `payload` is in: a device of another process reads it from there, if its
        node has it, and is sent the payload only if not.
    """

    model: Model
    payload: Payload | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    stored: StoredPayload | None = None


def check_sources(placement: Placement, sources: Sequence[StageSource]) -> None:
    """Check that each stage's source has the stage's ports.

    Raises PlanError, naming the stage and the difference.
    """
    name = placement.plan.name
    if len(sources) != len(placement.stages):
        raise PlanError(
            f"plan of {name!r}: {len(placement.stages)} stages, {len(sources)} sources."
        )
    for stage, source in zip(placement.stages, sources, strict=True):
        for kind, wanted, ports in (
            ("inputs", stage.inputs, source.model.inputs),
            ("outputs", stage.outputs, source.model.outputs),
        ):
            got = tuple(port.name for port in ports)
            if got != wanted:
                raise PlanError(
                    f"plan of {name!r}: stage {stage.index} has {kind} {list(wanted)}, its "
                    f"model {list(got)}; they must be the same, in the same order.",
                    stage=stage.index,
                )


def import_failed(placement: Placement, stage: int, error: Exception) -> None:
    """Say that a stage's payload was of no use, and that the stage is compiled instead."""
    device = placement.stages[stage].device
    _log.warning(
        "model=%s stage=%d device=%s: cannot be imported, so it is compiled again: %s",
        placement.plan.name,
        stage,
        device,
        error,
    )
