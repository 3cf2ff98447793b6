"""Discovery of devices: descriptors, logical devices, and plugins that fail."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from hetero.devices.errors import DeviceError
from hetero.devices.plugin.properties import Property
from hetero.devices.plugin.registry import PluginEntry
from hetero.scheduler.device.discovery import probe_node, usable, with_cluster_names
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from tests.scheduler.plugins import ToyPlugin

NODE_NBYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class BoardPlugin(ToyPlugin):
    """Two accelerators with 1,000 and 2,000 bytes."""

    name = "BOARD"
    automatic = True
    rank = 7
    computes = False
    ids: tuple[str, ...] = ("left", "right")
    kind = "DISCRETE"
    properties = ToyPlugin.properties.extended(
        Property("DEVICE_TOTAL_MEM_SIZE", int, 0, False, "Memory in bytes.")
    )

    def device_ids(self) -> tuple[str, ...]:
        return self.ids

    def full_name(self, device_id: str) -> str:
        return f"board {device_id}"

    def fingerprint(self, device_id: str) -> str:
        return f"print of {device_id}"

    def get_property(self, name: str, device_id: str = "0") -> Any:
        values = {
            "DEVICE_TYPE": self.kind,
            "DEVICE_TOTAL_MEM_SIZE": 2000 if device_id == "right" else 1000,
            "OPTIMIZATION_CAPABILITIES": ("FP32", device_id),
        }
        return values[name] if name in values else super().get_property(name, device_id)


def entries(*plugins: ToyPlugin) -> dict[str, PluginEntry]:
    return {plugin.name: PluginEntry(plugin.name, "test", plugin) for plugin in plugins}


def probe(plugin: ToyPlugin, **options: Any) -> tuple[DeviceDescriptor, ...]:
    return probe_node("here", entries=entries(plugin), **options)


def test_descriptor_has_what_the_plugin_reports():
    left, right = probe(BoardPlugin())
    assert (left.name, left.plugin, left.device_id, left.node) == (
        "BOARD.0",
        "BOARD",
        "left",
        "here",
    )
    assert (right.name, right.device_id) == ("BOARD.1", "right")
    assert (right.full_name, right.version, right.fingerprint, right.capabilities) == (
        "board right",
        "1.0",
        "print of right",
        ("FP32", "right"),
    )
    assert (left.memory_nbytes, left.shares_memory, left.num_threads) == (1000, False, 1)
    assert (left.automatic, left.rank, left.computes, left.error) == (True, 7, False, None)
    device_id = right.properties["DEVICE_ID"]
    assert (device_id.mutable, device_id.default) == (False, "right")


@pytest.mark.parametrize(
    ("count", "ids", "nbytes"),
    [
        (1, ["left"], [1000]),
        (3, ["left", "right", "left"], [500, 2000, 500]),
        (4, ["left", "right", "left", "right"], [500, 1000, 500, 1000]),
        (0, [], []),
    ],
)
def test_logical_devices_share_physical_ones(count, ids, nbytes):
    rows = probe(BoardPlugin(), counts={"BOARD": count, "OTHER": 9})
    assert [row.device_id for row in rows] == ids
    assert [row.memory_nbytes for row in rows] == nbytes
    assert [row.name for row in rows] == [f"BOARD.{i}" for i in range(count)]


@pytest.mark.parametrize(("limit", "expected"), [(None, None), (0, None), (1, 1), (10**6, None)])
def test_processor_has_the_cores_and_memory_of_the_node(limit, expected):
    (row,) = probe(ToyPlugin(), num_cores=limit)
    assert row.memory_nbytes == NODE_NBYTES
    assert row.shares_memory
    cores = len(os.sched_getaffinity(0))
    uses_cores = row.num_threads if ToyPlugin.automatic else cores
    assert uses_cores == (cores if expected is None else expected)


def test_plugin_that_fails_is_listed_with_its_error():
    missing = PluginEntry("GONE", "test", None, "no driver")
    empty, broken = BoardPlugin(), BoardPlugin()
    empty.ids, broken.name = (), "BAD"
    broken.device_ids = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    rows = probe_node("here", entries={"GONE": missing, **entries(empty, broken, ToyPlugin())})
    assert [(row.name, row.error) for row in rows] == [
        ("GONE", "no driver"),
        ("BAD", "ZeroDivisionError: division by zero"),
        ("TOY.0", None),
    ]
    wanted = probe_node("here", entries=entries(empty), counts={"BOARD": 2})
    assert [row.error for row in wanted] == ["BOARD finds no device on node here"]
    assert probe_node("here", entries={"GONE": missing}, counts={"GONE": 0}) == ()
    with pytest.raises(
        DeviceError, match="device GONE on node here cannot be used: no driver"
    ) as c:
        usable(rows[0])
    assert c.value.data["device"] == "GONE"
    assert usable(rows[2]) is rows[2]


def test_plugin_that_exits_is_listed_with_its_error():
    plugin = BoardPlugin()
    plugin.device_ids = lambda: sys.exit(3)  # type: ignore[method-assign]
    rows = probe_node("here", entries=entries(plugin, ToyPlugin()))
    assert [(row.name, row.error) for row in rows] == [("BOARD", "SystemExit: 3"), ("TOY.0", None)]


def test_devices_of_one_node_are_named():
    rows = (*probe(BoardPlugin()), *probe(ToyPlugin()))
    assert [row.name for row in with_cluster_names(rows)] == ["BOARD.left", "BOARD.right", "TOY"]
    assert [row.device_id for row in with_cluster_names(rows)] == [row.device_id for row in rows]
