"""Placement: stages on devices, and the routes of requests through them.

A plan or a stage may have several replicas; a request takes one route. Stages are numbered across
all routes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hetero.devices.errors import PlanError
from hetero.scheduler.types.plan import Plan, Stage


@dataclass(frozen=True)
class Route:
    """The devices that an attempt uses, one for each stage.

    `plan`: plan of the attempt, with the devices of this route.
    `stages`: numbers of the plan's stages in the placement.
    `share`: share of the requests relative to other routes; positive.
    `origin`: opaque value of the planner.
    """

    plan: Plan
    stages: tuple[int, ...]
    share: float = 1.0
    origin: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Placement:
    """Stages on devices, and routes through them.

    `stages`: stages, numbered across all routes.
    `routes`: at least one route; all have the same ports.
    Raises PlanError: there is no route, a share is not positive, ports differ, or the stage
        numbers of a route do not match its plan.
    """

    stages: tuple[Stage, ...]
    routes: tuple[Route, ...]

    def __post_init__(self) -> None:
        if not self.routes:
            raise PlanError("a placement has no route; pass at least one plan.")
        first = self.plan
        for number, route in enumerate(self.routes):
            plan = route.plan
            where = f"placement of {first.name!r}: route {number}"
            if not route.share > 0:
                raise PlanError(f"{where} has the share {route.share}; expected a positive number.")
            if (plan.inputs, plan.outputs) != (first.inputs, first.outputs):
                raise PlanError(f"{where} does not have the ports of route 0.")
            if len(route.stages) != len(plan.stages) or any(
                self._stage(i) != replace(stage, index=i)
                for i, stage in zip(route.stages, plan.stages, strict=True)
            ):
                raise PlanError(f"{where} has stages {route.stages}, which do not match its plan.")

    def _stage(self, number: int) -> Stage | None:
        return self.stages[number] if 0 <= number < len(self.stages) else None

    @property
    def plan(self) -> Plan:
        """Plan of the first route: ports and other properties that all routes share."""
        return self.routes[0].plan

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Devices of all routes, in order of first use."""
        return tuple(dict.fromkeys(stage.device for stage in self.stages))

    @cached_property
    def stages_by_device(self) -> Mapping[str, Sequence[Stage]]:
        """The stages of each device."""
        stages: dict[str, list[Stage]] = {name: [] for name in self.devices}
        for stage in self.stages:
            stages[stage.device].append(stage)
        return stages

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Level of each stage: the length of the longest path before it, on any route."""
        levels = [0] * len(self.stages)
        for route in self.routes:
            for number, level in zip(route.stages, route.plan.levels, strict=True):
                levels[number] = max(levels[number], level)
        return tuple(levels)

    @cached_property
    def sends(self) -> tuple[Mapping[int, tuple[tuple[int, tuple[str, ...]], ...]], ...]:
        """For each stage: route -> (consumer, tensors that it reads), one for each consumer."""
        sends: list[dict[int, tuple[tuple[int, tuple[str, ...]], ...]]] = [{} for _ in self.stages]
        for number, route in enumerate(self.routes):
            for producer, place in enumerate(route.stages):
                tensors: dict[int, list[str]] = {}
                for wire in route.plan.wires:
                    if wire.producer == producer:
                        tensors.setdefault(route.stages[wire.consumer], []).append(wire.tensor)
                sends[place][number] = tuple((c, tuple(names)) for c, names in tensors.items())
        return tuple(sends)

    def readers(self, stage: int) -> set[int]:
        """Return the stages that read outputs of a stage, on any route."""
        return {consumer for targets in self.sends[stage].values() for consumer, _ in targets}

    def with_routes(self, more: Placement) -> Placement:
        """Return the placement with additional routes and their stages."""
        numbers = {replace(stage, index=0): stage.index for stage in self.stages}
        places = [numbers.setdefault(replace(s, index=0), len(numbers)) for s in more.stages]
        routes = (replace(r, stages=tuple(places[n] for n in r.stages)) for r in more.routes)
        stages = tuple(replace(stage, index=number) for stage, number in numbers.items())
        return Placement(stages, (*self.routes, *routes))


def single_placement(plan: Plan | Placement) -> Placement:
    """Return the placement of a single plan; a placement is returned unchanged."""
    return plan if isinstance(plan, Placement) else share([plan], [1.0])


def share(plans: Sequence[Plan], shares: Sequence[float], origins: Sequence[Any] = ()) -> Placement:
    """Return the placement of several plans of a model, which share the requests.

    Equal stages of several plans on one device become one stage.

    Raises PlanError: ports differ, or there is not one positive share for each plan.
    """
    if len(plans) != len(shares):
        raise PlanError(f"{len(plans)} plans have {len(shares)} shares; expected one each.")
    numbers: dict[Stage, int] = {}
    routes: list[Route] = []
    for plan, part, origin in zip(plans, shares, origins or [None] * len(plans), strict=True):
        mine = (replace(stage, index=0) for stage in plan.stages)
        places = tuple(numbers.setdefault(stage, len(numbers)) for stage in mine)
        routes.append(Route(plan, places, part, origin))
    stages = tuple(replace(stage, index=number) for stage, number in numbers.items())
    return Placement(stages, tuple(routes))
