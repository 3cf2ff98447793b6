"""Node discovery on a local Ray, whose only node is this machine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hetero.devices.errors import ClusterError, PluginLoadError
from hetero.scheduler.ray import node_discovery
from hetero.scheduler.ray.node_discovery import NodeDiscovery
from hetero.scheduler.ray.nodes import ClusterNode


@pytest.fixture
def discovery():
    """Discovery that has one node and no cluster: a call of Ray would fail."""
    session: Any = SimpleNamespace(is_local=True)
    discovery = NodeDiscovery(session, (), {}, probe_timeout_s=30.0)
    numbers: Any = SimpleNamespace(assign=lambda kind, node, count, nodes: range(count))
    discovery._numbers = numbers
    discovery.nodes = {"id": ClusterNode("id", "here", "here", "127.0.0.1:1", {}, 2, {})}
    return discovery


def test_local_node_lists_its_devices_without_a_worker(discovery):
    discovery.query_nodes(wait=True)
    descriptor, node_id = discovery.rows["CPU"]
    assert (descriptor.node, node_id) == ("here", "id")


def test_local_node_that_lists_no_devices_is_an_error(discovery, monkeypatch):
    def probe(*_: object) -> None:
        raise PluginLoadError("broken here", device="here")

    monkeypatch.setattr(node_discovery, "probe", probe)
    with pytest.raises(ClusterError, match="broken here"):
        discovery.query_nodes(wait=True)
