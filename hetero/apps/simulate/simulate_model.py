"""`Core.simulate`: plan a model and simulate serving it."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any, Protocol

from hetero.affinity.pins import AffinitySource
from hetero.apps.simulate.arrivals import Batches, read_arrivals, read_batches
from hetero.apps.simulate.fleet import planned_fleet, read_fleet
from hetero.apps.simulate.simulation import Simulation, simulate
from hetero.devices.errors import ArgumentError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import Source
from hetero.devices.plugin.properties import Config
from hetero.planning.cost.costs import Costs
from hetero.planning.cost.profile import Progress
from hetero.planning.plan_report import PlanReport


class _Planner(Protocol):
    """The method of a Core that plans a model."""

    def plan_model(self, model: Source | Model, *arguments: Any, **options: Any) -> PlanReport: ...


def simulate_model(
    planner: _Planner,
    model: Source | Model,
    device_name: str = "HETERO",
    config: Config | None = None,
    *,
    affinity: AffinitySource | None = None,
    costs: Costs | None = None,
    devices: Mapping[str, int] | None = None,
    cluster: str | Path | Mapping[str, Any] | None = None,
    arrivals: str | None = None,
    requests: int = 10_000,
    slo_s: float = inf,
    batch: str | None = None,
    seed: int = 0,
    trace: str | Path | None = None,
    curve: bool = False,
    progress: Progress | None = None,
) -> Simulation:
    """Simulate serving a model in virtual time with the real scheduler; devices may not exist.

    Parameters
    ----------
    planner : Core
        Plans the model.
    model, device_name, config, affinity, costs, progress
        As for `plan_model`, whose plan is served.
    devices, cluster, arrivals, requests, slo_s, batch, seed, trace, curve
        As the options of ``hetero simulate``: `docs/simulate.md`; `cluster` is a file or its
        content.
    """
    if cluster and devices:
        raise ArgumentError("cluster= lists the devices; leave out devices=.")
    report = planner.plan_model(model, device_name, config, affinity=affinity, costs=costs)
    fleet = read_fleet(cluster, report) if cluster else planned_fleet(report, devices or {})
    return simulate(
        report,
        fleet,
        read_arrivals(arrivals) if arrivals else None,
        batches=read_batches(batch) if batch else Batches(),
        requests=requests,
        slo_s=slo_s,
        seed=seed,
        trace=trace,
        curve=curve,
        progress=progress,
    )
