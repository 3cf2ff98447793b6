"""Work of stages, in proportion to which the devices of a node share its cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from hetero.affinity.request_dependence import request_dependent_positions
from hetero.partition.partition import PlacedPartition
from hetero.planning.cost.estimation import DEFAULT_SPEED, count_work


def with_stage_work(placements: Sequence[PlacedPartition]) -> list[PlacedPartition]:
    """Return the placements with the work of each stage; unchanged if they use a single device.

    A plan by cost has predicted the stages' times. Otherwise they are estimated from the operations
    and bytes of the nodes that every request runs, at the same speed for all devices.
    """
    if len({device for placement in placements for device in placement.plan.devices}) < 2:
        return list(placements)
    model = placements[0].partition.source
    per_request = frozenset(request_dependent_positions(model))

    @cache  # replicas have the same subgraphs
    def estimate_s(positions: tuple[int, ...]) -> float:
        nodes = (model.nodes[p] for p in positions if p in per_request)
        return sum(DEFAULT_SPEED(count_work(model, node)) for node in nodes)

    with_work = []
    for number, placement in enumerate(placements):
        report = placement.report
        predicted_s = (
            {s.index: s.run_s for s in report.stages if s.replica == number} if report else {}
        )
        subgraphs = tuple(
            replace(s, work=predicted_s.get(s.index) or estimate_s(s.positions))
            for s in placement.partition.subgraphs
        )
        with_work.append(
            replace(placement, partition=replace(placement.partition, subgraphs=subgraphs))
        )
    return with_work
