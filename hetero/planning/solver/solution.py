"""The planner's answer: the plan, what it costs, what is proven of it, what else was tried."""

from __future__ import annotations

from dataclasses import dataclass

from hetero.planning.solver.bounds import Bound
from hetero.planning.solver.mixing import Part
from hetero.planning.solver.problem import Assignment


@dataclass(frozen=True, slots=True)
class Candidate:
    """One judged plan.

    Parameters
    ----------
    names : tuple of str
        Every method that gave it, the first one first: ``single ORT.0``, ``priority``,
        ``priority from ORT.0``, ``packing``, ``minimum cut``, ``slicing``, ``annealing``,
        ``exact``, ``descent on latency``, any of these with ``, tidied``; ``mix``, ``replicas``.
    parts : tuple of Part
        One plan, or several with the share of requests that each takes.
    loads : tuple of float
        Seconds a device is busy per request.
    bottleneck : float
        The largest load: one request leaves every so many seconds.
    latency : float
        Seconds of one request alone; of the slowest part in a mix.
    subgraphs, levels : int
        Number of subgraphs over all parts, and the deepest chain of them.
    """

    names: tuple[str, ...]
    parts: tuple[Part, ...]
    loads: tuple[float, ...]
    bottleneck: float
    latency: float
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


@dataclass(frozen=True, slots=True)
class Solution:
    """The chosen plan and its proof.

    Parameters
    ----------
    chosen : Candidate
        The plan to run.
    bound : Bound
        The largest proven lower bound for the chosen kind of plan.
    bounds : tuple of Bound
        All that were proven, largest first. ``mixing`` tells those that also bound mixes and
        replicas from those that only hold without replication.
    ratio : float
        ``chosen.bottleneck / bound.seconds``; 1 is optimal, ``inf`` without a positive bound.
    latency_bound : float
        Seconds below which no plan answers a single request.
    bottleneck_device : int
        The busiest device.
    advice : tuple of str
        What would lower the bottleneck, a sentence each.
    runners_up : tuple of Candidate
        The other candidates, best first.
    seconds : float
        Time the planning took.
    cut_short : bool
        True where the deadline ended a search early, so that another machine may find another plan.
    """

    chosen: Candidate
    bound: Bound
    bounds: tuple[Bound, ...]
    ratio: float
    latency_bound: float
    bottleneck_device: int
    advice: tuple[str, ...]
    runners_up: tuple[Candidate, ...]
    seconds: float
    cut_short: bool

    @property
    def assignment(self) -> Assignment:
        """Device of every node; of a mix, in the plan with the largest share."""
        return self.chosen.assignment

    @property
    def parts(self) -> tuple[Part, ...]:
        """The plans to compile and the share of the requests that each gets."""
        return self.chosen.parts

    @property
    def loads(self) -> tuple[float, ...]:
        """Seconds that each device is busy per request."""
        return self.chosen.loads

    @property
    def bottleneck(self) -> float:
        """Seconds between two answers of a full pipeline."""
        return self.chosen.bottleneck

    @property
    def latency(self) -> float:
        """Seconds of one request alone."""
        return self.chosen.latency

    def by(self, method: str) -> Candidate | None:
        """The best candidate that a method gave, None where it gave none."""
        return next((c for c in (self.chosen, *self.runners_up) if method in c.names), None)

    def sentence(self, unit: str = "ms", scale: float = 1e3) -> str:
        """The verdict in words: bottleneck, proven bound, and what the bound covers."""
        scope = (
            "any routing of requests over these devices"
            if self.bound.mixing
            else "any assignment of this model without replication"
        )
        return (
            f"bottleneck {self.bottleneck * scale:.4g} {unit}, proven lower bound "
            f"{self.bound.seconds * scale:.4g} {unit} ({self.bound.name}), within "
            f"{max(self.ratio - 1, 0) * 100:.1f} % of {scope}"
        )
