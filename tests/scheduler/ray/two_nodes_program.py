"""Program of a test in `test_clusters`: of two Ray nodes with stages, one dies; another joins."""

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


def toy_devices(executor: Executor) -> dict[str, str]:
    """Return the node of each toy device."""
    return {row.name: row.node for row in executor.devices() if row.plugin == "TOY"}


SECOND_CLIENT = """
import json, sys
from hetero.scheduler import create_executor
from tests.scheduler.ray.two_nodes_program import TOY, toy_devices
executor = create_executor("ray", address=sys.argv[1], plugins=TOY)
print(json.dumps(toy_devices(executor)))
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
    report: dict[str, Any] = {"devices": toy_devices(executor)}
    plan = diamond(("TOY.0", "TOY.1", "TOY.2", "TOY.0"))
    deployment = executor.deploy(*plan)
    for size in (4, 500_000):
        x = np.arange(size, dtype=np.float32)
        y = deployment.submit({"x": x}).future.result(300).outputs["y"]
        report[str(size)] = bool(np.array_equal(y, 2 - 4 * x))
    sleeper = executor.deploy(*diamond(("TOY.0", "TOY.1", "TOY.2", "TOY.0"), left="sleep_30_"))
    submission = sleeper.submit({"x": np.ones(500_000, np.float32)})
    cluster.remove_node(second, allow_graceful=False)
    try:
        submission.future.result(300)
    except DeviceLostError as error:
        report["lost"] = [error.device, error.node]
    # The processes of the node end one after another.
    deadline_s = time.monotonic() + 120
    while len(toy_devices(executor)) > 1 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    report["remaining"] = toy_devices(executor)
    try:
        executor.deploy(*plan)
    except UnknownDeviceError as error:
        report["unknown device"] = error.data["device"]
    cluster.add_node(num_cpus=1)
    report["after joining"] = toy_devices(executor)
    executor.deploy(*chain("TOY.0", "TOY.1")).submit({"x": x}).future.result(300)
    client = subprocess.run(
        [sys.executable, "-c", SECOND_CLIENT, cluster.address],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    report["of another client"] = json.loads(client.stdout)
    executor.close()
    cluster.shutdown()
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
