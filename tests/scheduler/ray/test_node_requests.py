"""Requests for nodes: Ray's autoscaler on a cluster of fake nodes, and its absence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hetero.scheduler.ray import node_requests
from hetero.scheduler.ray.node_requests import NodeRequests
from hetero.scheduler.ray.private_api import is_autoscaled

pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_replicas_beyond_the_devices_start_a_node():
    result = subprocess.run(
        [sys.executable, "-m", "tests.scheduler.ray.autoscaled_program"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["before"] == ["CPU"]
    assert report["nodes"] == len(report["devices"]) == 2
    assert report["matches"]


def test_cluster_of_fixed_size_gets_no_request(monkeypatch):
    assert not is_autoscaled()
    monkeypatch.setattr(node_requests, "request_resources", pytest.fail)
    requests = NodeRequests()
    assert not requests.add(1, pytest.fail, 0.0)
    requests.close()


@pytest.mark.parametrize("num_looks", [0, 2, 9])
def test_new_nodes_are_requested_in_addition_to_the_present(num_looks, monkeypatch):
    made: list[Any] = []
    looks: list[None] = []
    nodes = [SimpleNamespace(num_cpus=4), SimpleNamespace(num_cpus=0), SimpleNamespace(num_cpus=2)]
    monkeypatch.setattr(node_requests, "is_autoscaled", lambda: True)
    monkeypatch.setattr(node_requests, "alive_nodes", lambda: nodes)
    monkeypatch.setattr(node_requests, "request_resources", lambda bundles: made.append(bundles))
    monkeypatch.setattr(
        "hetero.scheduler.ray.node_requests.time.sleep", lambda _: looks.append(None)
    )
    monkeypatch.setattr("hetero.scheduler.ray.node_requests.time.monotonic", lambda: len(looks))
    requests = NodeRequests()
    added = requests.add(2, lambda: len(looks) >= num_looks, 5.0)
    assert added == (num_looks < 5)
    requests.close()
    present = [{"CPU": 4}, {"CPU": 2}]
    withdrawn = [] if added else [present]  # they did not start in time
    assert made == [[*present, {"CPU": 1}, {"CPU": 1}], *withdrawn, []]
