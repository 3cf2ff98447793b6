"""Costs of a model on devices: every number with where it comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

import msgspec

from hetero.scheduler.vocabulary.rows import THIS_PROCESS

#: ``measured`` on the device; ``calibrated``: fitted to measurements; ``estimated`` from counts of
#: operations and bytes.
Source = Literal["measured", "calibrated", "estimated"]
#: A figure that can be measured; a file with another one is damaged.
Figure = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]
#: Stands among devices for the process that sends requests and gets their answers.
CLIENT: Final = "client"


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds, and where they come from."""

    seconds: Figure
    source: Source


@dataclass(frozen=True, slots=True)
class Line:
    """``a + b * bytes`` seconds, fitted to measurements or assumed."""

    #: Seconds of an empty tensor.
    a: Figure
    #: Seconds for each byte.
    b: Figure
    source: Source

    def __call__(self, nbytes: float) -> float:
        """Seconds of this many bytes."""
        return self.a + self.b * nbytes


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a tensor takes from one device to another, or from or to the client."""

    #: Seconds from the end of the stage that makes it to the start of the one that takes it; from
    #: when the request was sent, or until its answer is there, where one end is the client.
    latency: Line
    #: Seconds that each device of the two is kept from computing.
    busy: Line


@dataclass(frozen=True, slots=True)
class Pace:
    """What a device takes while its requests follow each other without a pause."""

    #: What times are multiplied by.
    load: Figure = 1.0
    #: Seconds that the executor keeps the device busy for each call of a subgraph.
    overhead_s: Figure = 0.0
    source: Source = "estimated"


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """Which device was measured, and how it was set."""

    #: As its descriptor gives them.
    plugin: str
    version: str
    fingerprint: str
    node: str
    #: Threads of an inference while it works alone.
    num_threads: int
    #: Properties it was measured with, sorted.
    config: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceCosts:
    """What a model's nodes take on one device.

    A subgraph takes the sum of its nodes, times what company, or requests that follow each other,
    make of it.
    """

    identity: DeviceIdentity
    #: Node name -> seconds in a subgraph, alone on the device; unsupported nodes are absent.
    nodes: Mapping[str, Time]
    #: What times are multiplied by where the device shares its node's cores with others that have
    #: nothing to do.
    share: Figure = 1.0
    #: While no other device works.
    alone: Pace = Pace()
    #: While all the others work too; its load holds the share as well.
    company: Pace = Pace()
    #: Nodes that the device runs as one.
    fused: tuple[tuple[str, ...], ...] = ()
    #: What other work on the machine spoiled, and is assumed therefore: ``nodes`` (then a guess at
    #: best), ``load``.
    spoiled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Costs:
    """What a model costs on devices.

    Attributes
    ----------
    model, model_hash : str
        The model's name and content hash.
    shapes : mapping of str to tuple of int
        Input name -> the shape measured with.
    devices : mapping of str to DeviceCosts
        By device name.
    transfers : mapping of (str, str) to Transfer
        By the names of the device that sends and the one that receives; `CLIENT` stands for the
        client.
    missing : mapping of str to str
        Devices that could not be measured, with the reason.
    interrupted : bool
        Whether measuring was ended before it was done.
    measured_at : str
        When it began, in ISO 8601 and UTC; empty for costs that were not measured.
    """

    model: str
    model_hash: str
    shapes: Mapping[str, tuple[int, ...]]
    devices: Mapping[str, DeviceCosts]
    transfers: Mapping[tuple[str, str], Transfer]
    missing: Mapping[str, str] = field(default_factory=dict)
    interrupted: bool = False
    measured_at: str = ""

    def basis(self) -> str:
        """Return what figures that are made from these costs rest on, in a sentence."""
        devices = self.devices.values()
        nodes = Counter(t.source for d in devices for t in d.nodes.values())
        guessed = nodes["estimated"]
        counts = f"{nodes.total() - guessed} node times measured"
        counts += f", {guessed} estimated" * bool(guessed)
        told: dict[str, Iterable[Source]] = {
            "load": (p.source for d in devices for p in (d.alone, d.company)),
            "transfers": (t.latency.source for t in self.transfers.values()),
        }
        assumed = ", ".join(what for what, sources in told.items() if "estimated" in sources)
        nodes_of = sorted({d.identity.node for d in devices})
        where = "in process" if nodes_of == [THIS_PROCESS] else f"on {', '.join(nodes_of)}"
        when = f" at {self.measured_at}" * bool(self.measured_at)
        spoiled = "; ".join(
            f"{', '.join(d.spoiled)} of {name}" for name, d in self.devices.items() if d.spoiled
        )
        return (
            f"costs {where}{when}: {counts}"
            + f"; assumed: {assumed}" * bool(assumed)
            + f"; spoiled by other work, profile again: {spoiled}" * bool(spoiled)
        )
