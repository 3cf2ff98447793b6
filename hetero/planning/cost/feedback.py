"""Learning from a run: subgraphs that were measured in a pipeline correct what nodes cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetero.planning.cost.costs import Costs, Time


@dataclass(frozen=True, slots=True)
class StageMeasurement:
    """How long a subgraph took."""

    device: str
    nodes: tuple[str, ...]
    #: Median seconds of its runs, one request at a time, and with the pipeline full.
    alone_s: float
    busy_s: float


def learn(costs: Costs, measurements: Iterable[StageMeasurement]) -> Costs:
    """Return costs that agree with measured subgraphs.

    A subgraph's nodes are scaled so that together they make its time, and are ``calibrated`` from
    then on. The device's load becomes the median of its subgraphs', in company where they were on
    several devices. Devices of equal costs learn together, so that they stay interchangeable;
    devices that the costs do not have are passed over.
    """
    measurements = list(measurements)
    together = len({m.device for m in measurements}) > 1
    by_device: dict[str, list[StageMeasurement]] = {}
    for measured in measurements:
        own = costs.devices.get(measured.device)
        if own is not None and measured.alone_s > 0:
            for name, device in costs.devices.items():
                if device == own:
                    by_device.setdefault(name, []).append(measured)
    devices = dict(costs.devices)
    for name, stages in by_device.items():
        device = devices[name]
        share = device.share.seconds if together else 1.0
        nodes = dict(device.nodes)
        for stage in stages:
            known = [n for n in stage.nodes if n in nodes]
            model = device.fusion.seconds * sum(nodes[n].seconds for n in known)
            target = max(stage.alone_s / share - device.dispatch.seconds, 0.0)
            if model > 0:
                nodes |= {n: Time(nodes[n].seconds * target / model, "calibrated") for n in known}
        load = _median([s.busy_s / s.alone_s for s in stages])
        old = device.company if together else device.alone
        pace = replace(old, load=Time(share * load, "calibrated"))
        if together:
            devices[name] = replace(device, nodes=nodes, company=pace)
        else:
            devices[name] = replace(device, nodes=nodes, alone=pace)
    return replace(costs, devices=devices)


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
