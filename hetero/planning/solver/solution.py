"""The solver's answer: the plan, what it costs, what is proven of it, what else was tried."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hetero.planning.solver.bounds import Bound
from hetero.planning.solver.mixing import Part
from hetero.planning.solver.problem import Assignment

#: What a plan makes small: the bottleneck, or the time of a single request.
Objective = Literal["throughput", "latency"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One judged plan."""

    #: Every method that gave it, the first one first: ``single ORT.0``, ``priority``, ``priority
    #: from ORT.0``, ``packing``, ``minimum cut``, ``slicing``, ``annealing``, any of
    #: these with ``, tidied``; ``mix``, ``replicas``.
    names: tuple[str, ...]
    #: One plan, or several with the share of requests that each takes.
    parts: tuple[Part, ...]
    #: Seconds a device is busy per request.
    loads: tuple[float, ...]
    #: The largest load: one request leaves each time this many seconds pass.
    bottleneck: float
    #: Seconds of one request alone; of the slowest part in a mix.
    latency: float
    #: Number of subgraphs over all parts, and the deepest chain of them.
    subgraphs: int
    levels: int

    @property
    def name(self) -> str:
        """The method that found it first."""
        return self.names[0]

    @property
    def assignment(self) -> Assignment:
        """The plan; of a mix, the one with the largest share."""
        return max(self.parts, key=lambda p: p.share).assignment

    def figure(self, objective: Objective) -> float:
        """Seconds that are to be small."""
        return self.latency if objective == "latency" else self.bottleneck


@dataclass(frozen=True, slots=True)
class Solution:
    """The chosen plan and its proof."""

    #: What was to be small.
    objective: Objective
    chosen: Candidate
    #: The other candidates, best first; also mixes of more parts than were allowed.
    runners_up: tuple[Candidate, ...]
    #: All that were proven of the objective, largest first. ``mixing`` marks those that also bound
    #: mixes and replicas from those that only hold without replication.
    bounds: tuple[Bound, ...]
    #: True where the clock ended a search early, so that another run may find another plan.
    cut_short: bool

    @property
    def bound(self) -> Bound:
        """The largest proven lower bound for the chosen kind of plan."""
        mixed = len(self.chosen.parts) > 1
        return next(b for b in self.bounds if b.mixing or not mixed)

    @property
    def ratio(self) -> float:
        """The chosen plan's figure by its bound; 1 is optimal."""
        figure, bound = self.chosen.figure(self.objective), self.bound.seconds
        if figure == bound:
            return 1.0
        return figure / bound if bound > 0 else math.inf
