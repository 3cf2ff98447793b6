"""Plan report: the device of each node, predicted costs, and the distance from a lower bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from hetero.affinity.affinity import Affinity
from hetero.devices.deprecation import deprecated_alias
from hetero.devices.model.html_table import html_table
from hetero.partition.partition import PlacedPartition
from hetero.planning.cost.costs import Time
from hetero.planning.memory.device_memory import DeviceMemory

#: From this ratio to the lower bound on, the bound is too weak to prove that a plan is good.
_WEAK_BOUND: Final = 2.0


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """Predicted costs of a stage per request."""

    #: The subgraph's index in the plan.
    index: int
    device: str
    nodes: int
    #: Seconds that its device computes.
    run_s: float
    #: Seconds that its device is busy receiving inputs and sending outputs.
    transfer_s: float
    #: Seconds of call overhead on its device.
    overhead_s: float
    #: Index of its replica in `PlanReport.replicas`.
    replica: int = 0


@dataclass(frozen=True, slots=True)
class WirePrediction:
    """Predicted costs of a tensor that crosses: bytes (None if unknown) and seconds in transit."""

    tensor: str
    producer: int
    consumer: int
    nbytes: int | None
    seconds: float
    replica: int = 0


@dataclass(frozen=True, slots=True)
class Alternative:
    """A plan with its predicted costs: the chosen one, or an alternative to it."""

    #: ``priority``, ``single ORT.0``, ``slicing``, ``annealing``,
    #: ``replicas``...
    name: str
    #: Seconds between two results of a full pipeline, and of a single request.
    bottleneck_s: float
    latency_s: float
    devices: tuple[str, ...]
    #: Subgraphs of a replica, the tensors that cross between them, and the bytes of these.
    subgraphs: int
    cuts: int = 0
    nbytes: int = 0
    replicas: int = 1
    chosen: bool = False
    #: Whether it keeps within the memory budgets; always if the planning had none.
    fits: bool = True


@dataclass(frozen=True, slots=True, repr=False)
class PlanReport:
    """A plan with its predicted costs, a proven lower bound, and alternatives.

    Attributes
    ----------
    model, model_hash : str
        The model's name and content hash.
    devices : tuple of str
        The requested devices, in order of priority.
    policy, hint : str
        ``PRIORITY``, ``PIPELINE_PARALLEL`` or ``AUTO``; ``THROUGHPUT`` or ``LATENCY``.
    replicas : tuple of PlacedPartition
        The plan on the devices of each replica, the largest share of the requests first; one
        without replicas.
    bottleneck_s, latency_s : float
        Predicted seconds between two results of a full pipeline, and of a single request.
    loads_s : mapping of str to float
        Device -> seconds that it is busy per request, on average over the replicas.
    bottleneck : str
        The busiest device.
    bound_s : float
        Lower bound on the bottleneck, or for ``LATENCY`` on the latency, of plans in its scope.
    bound_name, bound_scope : str
        The proof of the bound, and the plans that it is valid for.
    ratio : float
        The objective divided by its lower bound.
    advice : tuple of str
        Suggested improvements, one sentence each.
    alternatives : tuple of Alternative
        All compared plans, including the chosen one, best first.
    stages : tuple of StagePrediction
        Every stage of every replica.
    wires : tuple of WirePrediction
        Every crossing tensor of every replica.
    node_times : mapping of str to mapping of str to Time
        Node -> device -> time used for planning, with its source; devices that do not support the
        node are absent.
    sources : mapping of str to int
        Number of node times that were measured, calibrated, estimated.
    planning_s : float
        Seconds that planning took, without measurements.
    cut_short : bool
        Whether the time limit ended the search, so that another run may find another plan.
    basis : str
        The sources of all costs, in a sentence: place and time of the measurement, and assumptions.
    shapes : mapping of str to tuple of int
        Input with open dimensions -> the shape used for planning.
    unmeasured : mapping of str to str
        Requested device that could not be measured -> reason.
    memory : tuple of DeviceMemory
        Predicted memory of each device that the plan uses, if the plan was made to fit.
    """

    model: str
    model_hash: str
    devices: tuple[str, ...]
    policy: str
    hint: str
    replicas: tuple[PlacedPartition, ...]
    bottleneck_s: float
    latency_s: float
    loads_s: Mapping[str, float]
    bottleneck: str
    bound_s: float
    bound_name: str
    bound_scope: str
    ratio: float
    advice: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    stages: tuple[StagePrediction, ...]
    wires: tuple[WirePrediction, ...]
    node_times: Mapping[str, Mapping[str, Time]]
    sources: Mapping[str, int]
    planning_s: float
    cut_short: bool = False
    basis: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    memory: tuple[DeviceMemory, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<PlanReport {self.model!r}: {len(self.stages)} subgraphs on "
            f"{', '.join(self.loads_s)}; {milliseconds(self.bottleneck_s)} between results, "
            f"{milliseconds(self.latency_s)} for one>"
        )

    def _repr_html_(self) -> str:
        rows = [
            (
                f"{a.name}{' (chosen)' if a.chosen else ''}",
                ", ".join(a.devices),
                a.subgraphs,
                milliseconds(a.bottleneck_s),
                milliseconds(a.latency_s),
            )
            for a in self.alternatives
        ]
        heads = ("plan", "devices", "subgraphs", "between results", "one request")
        return html_table(repr(self)[1:-1], heads, rows)

    @property
    def figure_s(self) -> float:
        """The objective of the hint: seconds between two results, or of one request."""
        return self.latency_s if self.hint == "LATENCY" else self.bottleneck_s

    @property
    def affinity(self) -> Affinity:
        """The affinity of the replica with the largest share of the requests."""
        return self.replicas[0].affinity

    variants = deprecated_alias("variants", "replicas")

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a JSON document, without the partitions of its replicas."""
        replicas = [
            {
                "share": replica.share,
                "affinity": dict(replica.affinity.devices),
                "reasons": dict(replica.affinity.reasons),
            }
            for replica in self.replicas
        ]
        document = asdict(replace(self, replicas=(), sources=dict(self.sources), memory=()))
        document["memory"] = [device.to_dict() for device in self.memory]
        ratio = self.ratio if self.bound_s > 0 else None
        return document | {"replicas": replicas, "ratio": ratio}

    def sentence(self) -> str:
        """Return the result in a sentence: predicted cost, lower bound and gap."""
        result = f"bottleneck {milliseconds(self.bottleneck_s)} on {self.bottleneck}"
        if self.hint == "LATENCY":
            result = f"one request takes {milliseconds(self.latency_s)}"
        bound = f"proven lower bound {milliseconds(self.bound_s)} ({self.bound_name})"
        gap = f"at most {max(self.ratio - 1, 0) * 100:.1f} % above the best of {self.bound_scope}"
        if self.ratio > _WEAK_BOUND:
            gap = "too weak to prove how close the plan is to the best"
        warning = "; the time limit ended the search, so another run may find another plan"
        warning *= self.cut_short
        return f"{result}, {bound}: {gap}{warning}"


def milliseconds(seconds: float) -> str:
    """Format a time in milliseconds."""
    return f"{seconds * 1e3:.4g} ms"
