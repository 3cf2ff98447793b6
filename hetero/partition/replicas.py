"""Replicas of a placement: the same subgraphs on several devices each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from hetero.partition.partition import PlacedPartition

#: Device -> the further devices that run its subgraphs.
ReplicaDevices = Mapping[str, tuple[str, ...]]


def replicate(placement: PlacedPartition, replicas: ReplicaDevices) -> list[PlacedPartition]:
    """Return one placement for each replica, with equal shares.

    Replica i uses the i-th device of each subgraph, and starts again with the first if a subgraph
    has fewer devices than others. Devices that are listed together therefore work together.
    """
    devices = {d: (d, *replicas.get(d, ())) for d in placement.plan.devices}
    count = math.lcm(*map(len, devices.values()))
    return [
        replace(
            placement.on_devices(
                {d: members[i % len(members)] for d, members in devices.items()}, "in place of"
            ),
            share=placement.share / count,
        )
        for i in range(count)
    ]
