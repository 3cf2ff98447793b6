"""A model that was cut and placed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hetero.affinity.affinity import Affinity
from hetero.partition.partition import Partition
from hetero.scheduler.vocabulary.plan import Plan


@dataclass(frozen=True, slots=True)
class Cut:
    """One way to run a model; several may share its requests."""

    partition: Partition
    #: Which device each node has, and why.
    affinity: Affinity
    #: The part of the requests that goes this way.
    share: float = 1.0
    #: The `PlanReport` of the costs that chose it, if costs did.
    report: Any = field(default=None, repr=False, compare=False)

    @property
    def plan(self) -> Plan:
        """The plan that is deployed."""
        return self.partition.plan

    def on(self, placed: Mapping[str, str], why: str) -> Cut:
        """Return the same cut on other devices: device -> the one in its place.

        `why` goes before the old device in the reasons.
        """
        if all(old == new for old, new in placed.items()):
            return self
        here = {**{d: d for d in self.affinity.values()}, **placed}
        reasons = {
            name: f"{self.affinity.reasons.get(name, '')} ({why} {old})".lstrip()
            for name, old in self.affinity.items()
            if here[old] != old
        }
        affinity = Affinity(
            {name: here[old] for name, old in self.affinity.items()},
            {**self.affinity.reasons, **reasons},
        )
        subgraphs = tuple(replace(s, device=here[s.device]) for s in self.partition.subgraphs)
        partition = replace(self.partition, subgraphs=subgraphs)
        return replace(self, partition=partition, affinity=affinity)
