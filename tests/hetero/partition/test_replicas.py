"""Replicas of a placement: devices, shares and reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetero.affinity.affinity import Affinity
from hetero.partition.partition import PlacedPartition, partition
from hetero.partition.replicas import replicate
from tests.support.chains import chain


@pytest.fixture
def placement():
    """Return three nodes on A, B and A, with reasons for the first two."""
    model = chain(3)
    devices = dict(zip(model.node_names, "ABA", strict=True))
    reasons = {model.node_names[0]: "pin", model.node_names[1]: ""}
    affinity = Affinity(devices, reasons)
    return PlacedPartition(partition(model, affinity), affinity, 0.5)


def devices_of(placements: list[PlacedPartition]) -> list[list[str]]:
    return [[s.device for s in placement.partition.subgraphs] for placement in placements]


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ({}, ["ABA"]),
        ({"Z": ("Y",)}, ["ABA"]),
        ({"A": ("C",)}, ["ABA", "CBC"]),
        # Devices of one place in their lists work together.
        ({"A": ("C",), "B": ("D",)}, ["ABA", "CDC"]),
        ({"A": ("C",), "B": ("D", "E")}, ["ABA", "CDC", "AEA", "CBC", "ADA", "CEC"]),
    ],
)
def test_replicas_use_each_device_equally(placement, replicas, expected):
    placements = replicate(placement, replicas)
    assert devices_of(placements) == [list(devices) for devices in expected]
    assert [p.share for p in placements] == pytest.approx([0.5 / len(expected)] * len(expected))
    for replica in placements:
        stages = [stage.device for stage in replica.plan.stages]
        assert [replica.affinity[s.node_names[0]] for s in replica.partition.subgraphs] == stages


def test_reasons_name_the_replaced_device(placement):
    first, second = replicate(placement, {"A": ("C",)})
    names = list(placement.affinity)
    assert first.affinity.reasons == placement.affinity.reasons
    assert second.affinity.reasons == {
        names[0]: "pin (in place of A)",
        names[1]: "",
        names[2]: "(in place of A)",
    }
    assert second.partition.source is placement.partition.source


def test_same_devices_leave_a_placement_unchanged(placement):
    assert placement.on_devices({"A": "A", "Z": "Z"}, "compiled for") is placement
    moved = placement.on_devices({"B": "D", "A": "A"}, "compiled for")
    assert devices_of([moved]) == [["A", "D", "A"]]
    assert moved.share == 0.5
    assert replace(moved, share=1.0).plan == moved.plan
