"""Costs of a model on devices: node times, load factors and transfers, each with its source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

import msgspec

from hetero.scheduler.types.device_descriptor import THIS_PROCESS

#: ``measured`` on the device; ``calibrated``: fitted to measurements; ``estimated`` from numbers
#: of operations and bytes.
Source = Literal["measured", "calibrated", "estimated"]
#: A plausible cost; a cost file with any other value is damaged.
CostValue = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]
#: Name of the client, the process that sends requests and receives results, among the devices.
CLIENT: Final = "client"


@dataclass(frozen=True, slots=True)
class Time:
    """A time in seconds, with its source."""

    seconds: CostValue
    source: Source


@dataclass(frozen=True, slots=True)
class LinearCost:
    """The cost ``a + b * nbytes`` of a transfer in seconds, fitted to measurements or assumed."""

    #: Seconds of an empty tensor.
    a: CostValue
    #: Seconds for each byte.
    b: CostValue
    source: Source

    def __call__(self, nbytes: float) -> float:
        """Return the seconds for a number of bytes."""
        return self.a + self.b * nbytes


@dataclass(frozen=True, slots=True)
class Transfer:
    """The cost of a tensor's transfer between two devices, or between the client and a device."""

    #: Seconds from the end of the producing stage to the start of the consuming stage. If one end
    #: is the client: from sending the request, or until receiving its result.
    latency: LinearCost
    #: Seconds that the transfer keeps each of the two devices from computing.
    busy: LinearCost


@dataclass(frozen=True, slots=True)
class LoadFactors:
    """Slowdown of a device whose requests follow each other without a pause."""

    #: Factor on the run times.
    time_factor: CostValue = 1.0
    #: Seconds that the executor occupies the device for each run of a subgraph.
    overhead_s: CostValue = 0.0
    source: Source = "estimated"


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """The identity and the settings of a measured device."""

    #: From the device's descriptor.
    plugin: str
    version: str
    fingerprint: str
    node: str
    #: Threads of an inference while no other device works.
    num_threads: int
    #: Properties during the measurement, sorted by name.
    config: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceCosts:
    """Costs of a model's nodes on one device.

    The time of a subgraph is the sum of its nodes' times, multiplied by the factors below.
    """

    identity: DeviceIdentity
    #: Node name -> seconds within a subgraph, one request at a time; unsupported nodes are absent.
    nodes: Mapping[str, Time]
    #: Factor on the times while idle devices reserve a share of the cluster node's cores.
    core_sharing_factor: CostValue = 1.0
    #: Load factors while no other device works.
    single_load: LoadFactors = LoadFactors()
    #: Load factors while all devices work; they include `core_sharing_factor`.
    concurrent_load: LoadFactors = LoadFactors()
    #: Groups of nodes that the device runs as one fused node.
    fused_groups: tuple[tuple[str, ...], ...] = ()
    #: Measurements disturbed by other processes: ``nodes`` (the times are unreliable), ``load``
    #: (default factors are used).
    disturbed_measurements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a model on a set of devices.

    Attributes
    ----------
    model, model_hash : str
        The model's name and content hash.
    shapes : mapping of str to tuple of int
        Input name -> its shape during the measurement.
    devices : mapping of str to DeviceCosts
        Device name -> costs.
    transfers : mapping of (str, str) to Transfer
        (Sending device, receiving device) -> cost; `CLIENT` is the name of the client.
    missing : mapping of str to str
        Device that could not be measured -> reason.
    interrupted : bool
        Whether profiling was interrupted.
    measured_at : str
        Start of the measurement in ISO 8601 and UTC; empty for costs that were not measured.
    """

    model: str
    model_hash: str
    shapes: Mapping[str, tuple[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)], ...]]
    devices: Mapping[str, DeviceCosts]
    transfers: Mapping[tuple[str, str], Transfer]
    missing: Mapping[str, str] = field(default_factory=dict)
    interrupted: bool = False
    measured_at: str = ""

    def basis(self) -> str:
        """Describe the sources of these costs in a sentence."""
        devices = self.devices.values()
        nodes = Counter(t.source for d in devices for t in d.nodes.values())
        num_estimated = nodes["estimated"]
        parts = f"{nodes.total() - num_estimated} node times measured"
        parts += f", {num_estimated} estimated" * bool(num_estimated)
        sources_by_kind: dict[str, Iterable[Source]] = {
            "load": (p.source for d in devices for p in (d.single_load, d.concurrent_load)),
            "transfers": (t.latency.source for t in self.transfers.values()),
        }
        assumed = ", ".join(
            kind for kind, sources in sources_by_kind.items() if "estimated" in sources
        )
        cluster_nodes = sorted({d.identity.node for d in devices})
        nodes_text = ", ".join(cluster_nodes)
        place = "in process" if cluster_nodes == [THIS_PROCESS] else f"on {nodes_text}"
        time = f" at {self.measured_at}" * bool(self.measured_at)
        disturbed = "; ".join(
            f"{', '.join(d.disturbed_measurements)} of {name}"
            for name, d in self.devices.items()
            if d.disturbed_measurements
        )
        return (
            f"costs {place}{time}: {parts}"
            + f"; assumed: {assumed}" * bool(assumed)
            + f"; disturbed by other processes, profile again: {disturbed}" * bool(disturbed)
        )
