"""The placement: which stages there are on which devices, and the routes of requests through them.

It stands beside the plan. A whole plan, or a stage of one, may be there several times; a request
takes one route. Stages are numbered through all routes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hetero.devices.errors import PlanError
from hetero.scheduler.vocabulary.plan import Plan, Stage


@dataclass(frozen=True)
class Route:
    """One way of an attempt.

    `plan`: what it runs, each stage on the device of this route.
    `stages`: the placement's numbers of the plan's stages.
    `share`: of the requests, in proportion to the other routes' shares; positive.
    `origin`: what whoever made the plan keeps with it.
    """

    plan: Plan
    stages: tuple[int, ...]
    share: float = 1.0
    origin: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Placement:
    """Stages on devices, and routes through them.

    `stages`: each with its number through all routes.
    `routes`: at least one; all have the same ports.
    Raises PlanError: no route, a share that is not positive, ports that differ, or a route that
        gives a stage another number.
    """

    stages: tuple[Stage, ...]
    routes: tuple[Route, ...]

    def __post_init__(self) -> None:
        if not self.routes:
            raise PlanError("a placement has no route; give at least one plan.")
        first = self.plan
        for number, route in enumerate(self.routes):
            plan = route.plan
            where = f"placement of {first.name!r}: route {number}"
            if not route.share > 0:
                raise PlanError(f"{where} has the share {route.share}; wanted a positive number.")
            if (plan.inputs, plan.outputs) != (first.inputs, first.outputs):
                raise PlanError(f"{where} has other ports than route 0; wanted the same.")
            if len(route.stages) != len(plan.stages) or any(
                self._stage(i) != replace(stage, index=i)
                for i, stage in zip(route.stages, plan.stages, strict=True)
            ):
                raise PlanError(f"{where} says {route.stages}, which are not its plan's stages.")

    def _stage(self, number: int) -> Stage | None:
        return self.stages[number] if 0 <= number < len(self.stages) else None

    @property
    def plan(self) -> Plan:
        """The first route's: ports, and whatever else of a model routes have in common."""
        return self.routes[0].plan

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Devices of all routes, in order of first use."""
        return tuple(dict.fromkeys(stage.device for stage in self.stages))

    @cached_property
    def on(self) -> Mapping[str, Sequence[Stage]]:
        """The stages of each device."""
        found: dict[str, list[Stage]] = {name: [] for name in self.devices}
        for stage in self.stages:
            found[stage.device].append(stage)
        return found

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Each stage's level: the most stages on a path before it, on any route."""
        levels = [0] * len(self.stages)
        for route in self.routes:
            for number, level in zip(route.stages, route.plan.levels, strict=True):
                levels[number] = max(levels[number], level)
        return tuple(levels)

    @cached_property
    def sends(self) -> tuple[Mapping[int, tuple[tuple[int, tuple[str, ...]], ...]], ...]:
        """For each stage: route -> (consumer, tensors that it takes), one for each consumer."""
        found: list[dict[int, tuple[tuple[int, tuple[str, ...]], ...]]] = [{} for _ in self.stages]
        for number, route in enumerate(self.routes):
            for producer, place in enumerate(route.stages):
                tensors: dict[int, list[str]] = {}
                for wire in route.plan.wires:
                    if wire.producer == producer:
                        tensors.setdefault(route.stages[wire.consumer], []).append(wire.tensor)
                found[place][number] = tuple((c, tuple(names)) for c, names in tensors.items())
        return tuple(found)

    def readers(self, stage: int) -> set[int]:
        """Return the stages that take a stage's outputs, on any route."""
        return {consumer for targets in self.sends[stage].values() for consumer, _ in targets}

    def extended(self, more: Placement) -> Placement:
        """Return this placement with more routes, and with those stages that it has not got."""
        numbers = {replace(stage, index=0): stage.index for stage in self.stages}
        places = [numbers.setdefault(replace(s, index=0), len(numbers)) for s in more.stages]
        routes = (replace(r, stages=tuple(places[n] for n in r.stages)) for r in more.routes)
        stages = tuple(replace(stage, index=number) for stage, number in numbers.items())
        return Placement(stages, (*self.routes, *routes))


def alone(plan: Plan | Placement) -> Placement:
    """Return the placement of one plan, or the placement that is given."""
    return plan if isinstance(plan, Placement) else share([plan], [1.0])


def share(plans: Sequence[Plan], shares: Sequence[float], origins: Sequence[Any] = ()) -> Placement:
    """Return the placement of plans of one model that share the requests, replicas included.

    What several plans do alike on one device is one stage.

    Raises PlanError: plans whose ports differ, or shares that are not one positive number each.
    """
    if len(plans) != len(shares):
        raise PlanError(f"{len(plans)} plans have {len(shares)} shares; wanted one each.")
    numbers: dict[Stage, int] = {}
    routes: list[Route] = []
    for plan, part, origin in zip(plans, shares, origins or [None] * len(plans), strict=True):
        mine = (replace(stage, index=0) for stage in plan.stages)
        places = tuple(numbers.setdefault(stage, len(numbers)) for stage in mine)
        routes.append(Route(plan, places, part, origin))
    stages = tuple(replace(stage, index=number) for stage, number in numbers.items())
    return Placement(stages, tuple(routes))
