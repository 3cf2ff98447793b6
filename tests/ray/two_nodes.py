"""A program for `test_clusters`: two Ray nodes, stages on both; one dies, another joins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

os.environ |= {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
}

import numpy as np
from ray.cluster_utils import Cluster

from hetero.devices.errors import DeviceLostError, UnknownDeviceError
from hetero.scheduler import Executor, create_executor
from tests.scheduler.models import chain, diamond

TOY = ("tests.scheduler.plugins:ToyPlugin",)


def toys(executor: Executor) -> dict[str, str]:
    """Return the toy devices and their nodes."""
    return {row.name: row.node for row in executor.devices() if row.plugin == "TOY"}


SECOND_CLIENT = """
import json, sys
from hetero.scheduler import create_executor
from tests.ray.two_nodes import TOY, toys
executor = create_executor("ray", address=sys.argv[1], plugins=TOY)
print(json.dumps(toys(executor)))
executor.close()
"""


def main() -> None:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "include_dashboard": False,
        },
    )
    second = cluster.add_node(num_cpus=1, labels={"hetero/TOY": "2"})
    executor = create_executor("ray", address=cluster.address, plugins=TOY)
    found: dict[str, Any] = {"devices": toys(executor)}
    plan = diamond(("TOY.0", "TOY.1", "TOY.2", "TOY.0"))
    deployment = executor.deploy(*plan)
    for size in (4, 500_000):
        x = np.arange(size, dtype=np.float32)
        y = deployment.submit({"x": x}).future.result(300).outputs["y"]
        found[str(size)] = bool(np.array_equal(y, 2 - 4 * x))
    sleeping = executor.deploy(*diamond(("TOY.0", "TOY.1", "TOY.2", "TOY.0"), left="sleep_30_"))
    submission = sleeping.submit({"x": np.ones(500_000, np.float32)})
    cluster.remove_node(second, allow_graceful=False)
    try:
        submission.future.result(300)
    except DeviceLostError as error:
        found["lost"] = [error.device, error.node]
    # Its processes end one after another.
    until = time.monotonic() + 120
    while len(toys(executor)) > 1 and time.monotonic() < until:
        time.sleep(0.1)
    found["left"] = toys(executor)
    try:
        executor.deploy(*plan)
    except UnknownDeviceError as error:
        found["unknown"] = error.data["device"]
    cluster.add_node(num_cpus=1)
    found["joined"] = toys(executor)
    executor.deploy(*chain("TOY.0", "TOY.1")).submit({"x": x}).future.result(300)
    seen = subprocess.run(
        [sys.executable, "-c", SECOND_CLIENT, cluster.address],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found["seen by another"] = json.loads(seen.stdout)
    executor.close()
    cluster.shutdown()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
