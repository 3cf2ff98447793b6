"""The result of planning: which device each node gets, what that costs, and how good it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from hetero.affinity.affinity import Affinity
from hetero.devices.model.html_table import html_table
from hetero.partition.partition import PlacedPartition
from hetero.planning.cost.costs import Time

#: How often as long as its bound a plan takes, from which on the bound tells little of it.
_WEAK_BOUND: Final = 2.0


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """What a subgraph is expected to take."""

    #: The subgraph's index in the partition of its variant.
    index: int
    device: str
    nodes: int
    #: Seconds that its device computes for a request.
    run_s: float
    #: Seconds that its device is busy receiving its inputs and sending its outputs.
    transfer_s: float
    #: Seconds that its device is busy for a call, besides both.
    overhead_s: float
    #: Which of the report's variants it is of.
    variant: int = 0


@dataclass(frozen=True, slots=True)
class WirePrediction:
    """What a tensor that crosses is expected to take: bytes (None: unknown), seconds on its way."""

    tensor: str
    producer: int
    consumer: int
    nbytes: int | None
    seconds: float
    variant: int = 0


@dataclass(frozen=True, slots=True)
class Alternative:
    """A plan that was judged: the chosen one, and those that were not."""

    #: ``priority``, ``single ORT.0``, ``slicing``, ``annealing``, ``mix``,
    #: ``replicas``...
    name: str
    #: Seconds between answers of a full pipeline, and of a request alone.
    bottleneck_s: float
    latency_s: float
    devices: tuple[str, ...]
    subgraphs: int
    #: Tensors that cross between subgraphs, and their bytes.
    cuts: int = 0
    nbytes: int = 0
    variants: int = 1
    chosen: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class PlanReport:
    """A plan with its prediction and its proof.

    Attributes
    ----------
    model, model_hash : str
        The model's name and content hash.
    devices : tuple of str
        Devices that were asked for, in order of priority.
    policy, hint : str
        ``PRIORITY``, ``PIPELINE_PARALLEL`` or ``AUTO``; ``THROUGHPUT`` or ``LATENCY``.
    variants : tuple of Cut
        The plan: one way through the devices, or several with shares; the largest share first.
    bottleneck_s, latency_s : float
        Predicted seconds between two answers of a full pipeline, and of one request alone.
    loads_s : mapping of str to float
        Device -> seconds that it is busy for a request, on average over the variants.
    bottleneck : str
        The busiest device.
    bound_s : float
        No plan of the kind has a smaller bottleneck, or for ``LATENCY`` a smaller latency.
    bound_name, bound_scope : str
        How that was proven, and of which plans.
    ratio : float
        What the bound is of, by the bound.
    advice : tuple of str
        What would help, a sentence each.
    alternatives : tuple of Alternative
        Plans that were judged, the chosen one included, best first.
    stages : tuple of StagePrediction
        Every subgraph of every variant.
    wires : tuple of WirePrediction
        Every crossing tensor of every variant.
    node_times : mapping of str to mapping of str to Time
        Node -> device -> seconds as planned with, and where they come from; devices that do not
        support the node are absent.
    sources : mapping of str to int
        How many of the node times were measured, calibrated, estimated.
    planning_s : float
        Seconds that planning took, measuring not included.
    cut_short : bool
        Whether the clock ended a search, so that another run may find another plan.
    basis : str
        What all figures rest on, in a sentence: where and when costs were measured, and what of
        them is assumed.
    shapes : mapping of str to tuple of int
        The shapes planned at, of inputs with open dimensions.
    unmeasured : mapping of str to str
        Devices that were asked for and could not be measured, with the reason.
    """

    model: str
    model_hash: str
    devices: tuple[str, ...]
    policy: str
    hint: str
    variants: tuple[PlacedPartition, ...]
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

    def __repr__(self) -> str:
        return (
            f"<PlanReport {self.model!r}: {len(self.stages)} subgraphs on "
            f"{', '.join(self.loads_s)}; {milliseconds(self.bottleneck_s)} between answers, "
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
        heads = ("plan", "devices", "subgraphs", "between answers", "one request")
        return html_table(repr(self)[1:-1], heads, rows)

    @property
    def figure_s(self) -> float:
        """What the hint wants small: seconds between answers, or of one request."""
        return self.latency_s if self.hint == "LATENCY" else self.bottleneck_s

    @property
    def affinity(self) -> Affinity:
        """The affinity that most requests follow."""
        return self.variants[0].affinity

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON, its variants without their partitions."""
        variants = [
            {
                "share": v.share,
                "affinity": dict(v.affinity.devices),
                "reasons": dict(v.affinity.reasons),
            }
            for v in self.variants
        ]
        document = asdict(replace(self, variants=(), sources=dict(self.sources)))
        ratio = self.ratio if self.bound_s > 0 else None
        return document | {"variants": variants, "ratio": ratio}

    def sentence(self) -> str:
        """Return the verdict in words."""
        what = f"bottleneck {milliseconds(self.bottleneck_s)} on {self.bottleneck}"
        if self.hint == "LATENCY":
            what = f"one request takes {milliseconds(self.latency_s)}"
        proven = f"proven lower bound {milliseconds(self.bound_s)} ({self.bound_name})"
        gap = f"at most {max(self.ratio - 1, 0) * 100:.1f} % above the best of {self.bound_scope}"
        if self.ratio > _WEAK_BOUND:
            gap = "too weak to tell how near the plan is to the best"
        late = "; the clock ended the search, another run may find another plan" * self.cut_short
        return f"{what}, {proven}: {gap}{late}"


def milliseconds(seconds: float) -> str:
    """Return a time as people read it."""
    return f"{seconds * 1e3:.4g} ms"
