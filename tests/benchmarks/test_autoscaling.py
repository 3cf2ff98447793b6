"""Benchmark of replicas that follow the load: it counts every request, and plots the replicas."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from benchmarks import autoscaling


def test_every_request_is_counted():
    outcome = autoscaling.measure("inprocess", ((0.2, 10.0), (0.1, 40.0)), node_time_us=1000)
    assert (outcome.requests, outcome.lost) == (6, 0)
    assert outcome.p99_ms >= outcome.p50_ms >= 1
    assert outcome.replicas == [(0.0, 1)]


def test_plot_shows_load_and_replicas():
    replicas = [(0.0, 1), (5.0, 4), (8.0, 2)]
    outcome = autoscaling.Outcome(1, 0, 1.0, 1.0, replicas)
    tree = ET.fromstring(autoscaling.draw(outcome, ((4.0, 5.0), (6.0, 10.0))))
    paths = {path.attrib["class"]: path.attrib["d"] for path in tree.iter() if "d" in path.attrib}
    left, width, height = autoscaling._LEFT, autoscaling._WIDTH, autoscaling._HEIGHT
    (across,) = re.findall(r"H([\d.]+)V", paths["load"])
    assert float(across) == left + 0.4 * width
    levels = [float(y) - autoscaling._TOP for y in re.findall(r"[,V]([\d.]+)", paths["replicas"])]
    assert levels == [height * (1 - count / 4) for _, count in replicas]
