"""Requests on two replicas, one of which is slower than planned."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from onnx.parser import parse_model

from hetero.core import Core

RELU = """<ir_version: 8, opset_import: ["" : 17]> m (float[2] x) => (float[2] y) { y = Relu(x) }"""
#: One device takes 1 ms, the other 50 ms, so that a busy machine hardly changes their ratio.
SLEEPS = {"NULL.0": {"NULL_NODE_TIME_US": 1_000}, "NULL.1": {"NULL_NODE_TIME_US": 50_000}}


def share_of_slow_replica(core: Core) -> float:
    """Return the share of the requests that the slow replica runs, after its speed is measured."""
    config = {"REPLICAS": 2, "VERIFY": "NO", "DEVICE_PROPERTIES": SLEEPS}
    with core.compile_model(parse_model(RELU), "HETERO:NULL.0,NULL.1", config) as compiled:
        assert compiled.shares == (0.5, 0.5)

        def run_request(_: int) -> str:
            response = compiled.submit({"x": np.zeros(2, np.float32)}).future.result()
            (timing,) = response.stage_timings
            return timing.device

        with ThreadPoolExecutor(2) as clients:
            devices = list(clients.map(run_request, range(140)))
    assert set(devices[:40]) == {"NULL.0", "NULL.1"}
    return devices[40:].count("NULL.1") / 100
