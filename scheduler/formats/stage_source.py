"""Sources of stages: the subgraph to compile, or an earlier export to import."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero.devices.errors import PlanError
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Payload
from hetero.scheduler.formats.stored_payload import StoredPayload
from hetero.scheduler.types.placement import Placement

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageSource:
    """The source of a stage.

    `model`: the subgraph; with a payload, only its ports are needed.
    `payload`: an earlier export of the device, imported instead of compiling. If that fails, the
        model is compiled, with a warning.
    `config`: properties for the compilation.
    `stored`: location of the payload in a file. A device of another process reads it from there
        if its node has the file; otherwise the payload is sent.
    """

    model: Model
    payload: Payload | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    stored: StoredPayload | None = None


def check_sources(placement: Placement, sources: Sequence[StageSource]) -> None:
    """Check that the source of each stage has the ports of the stage.

    Raises PlanError: names the stage and the difference.
    """
    name = placement.plan.name
    if len(sources) != len(placement.stages):
        raise PlanError(
            f"plan of {name!r}: {len(placement.stages)} stages, {len(sources)} sources."
        )
    for stage, source in zip(placement.stages, sources, strict=True):
        for kind, expected, ports in (
            ("inputs", stage.inputs, source.model.inputs),
            ("outputs", stage.outputs, source.model.outputs),
        ):
            names = tuple(port.name for port in ports)
            if names != expected:
                raise PlanError(
                    f"plan of {name!r}: stage {stage.index} has {kind} {list(expected)}, its "
                    f"model {list(names)}; expected the same names in the same order.",
                    stage=stage.index,
                )


def warn_of_failed_import(placement: Placement, stage: int, error: Exception) -> None:
    """Log that a stage is compiled because its payload cannot be imported."""
    device = placement.stages[stage].device
    _log.warning(
        "model=%s stage=%d device=%s: import failed, the stage is compiled again: %s",
        placement.plan.name,
        stage,
        device,
        error,
    )
