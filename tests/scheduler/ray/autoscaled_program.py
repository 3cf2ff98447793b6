"""A program on a cluster with Ray's autoscaler and its fake nodes, which are processes.

It requests more replicas than the head has devices, prints what it got, and ends the cluster.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import ray

NODE = {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 2}
#: The sections of a cluster's file that may be empty.
EMPTY = {
    **{name: {} for name in ("auth", "docker", "file_mounts")},
    **{f"{name}_commands": [] for name in ("initialization", "setup", "head_setup")},
    **{f"{name}_commands": [] for name in ("worker_setup", "head_start_ray", "worker_start_ray")},
    **{name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
    "file_mounts_sync_continuously": False,
}


@contextmanager
def cluster(folder: str) -> Iterator[str]:
    """Start a head that may start two more nodes; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray's gap
    address = f"{host}:{port}"
    config = EMPTY | {
        "cluster_name": "fake",
        "max_workers": 2,
        "provider": {"type": "fake_multinode", "gcs_address": address},
        "available_node_types": {
            "ray.head.default": NODE | {"max_workers": 0},
            "worker": NODE | {"labels": {"hetero/CPU": "1"}, "min_workers": 0},
        },
        "head_node_type": "ray.head.default",
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 5,
    }
    path = Path(folder, "cluster.json")
    path.write_text(json.dumps(config))
    process = subprocess.Popen(
        [
            *("ray", "start", "--head", "--block", f"--port={port}", "--num-cpus=1"),
            *(f"--temp-dir={folder}/r", f"--autoscaling-config={path}"),
            *("--include-dashboard=false", "--labels=hetero/CPU=1"),
        ],
        env=os.environ | {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for entry in Path("/proc").iterdir():  # nodes of the fake provider have sessions of theirs
            with suppress(OSError):
                if entry.name.isdigit() and folder in (entry / "cmdline").read_text():
                    os.kill(int(entry.name), signal.SIGKILL)


def main() -> None:
    """Compile a model for two replicas on a cluster with one device."""
    import numpy as np

    import hetero
    from hetero.devices.errors import ClusterError
    from hetero.scheduler.ray.nodes import alive_nodes
    from tests.support.models import branches, branches_output

    x = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
    with (
        tempfile.TemporaryDirectory(prefix="ht-", dir="/tmp") as folder,
        cluster(folder) as address,
    ):
        until_s = time.monotonic() + 120
        while True:
            try:
                core = hetero.Core(address=address)
                before = [d.name for d in core.device_descriptors if d.plugin == "CPU"]
                break
            except ClusterError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(1)
        with core, core.compile_model(branches(), "HETERO:CPU", {"REPLICAS": 2}) as compiled:
            result = compiled({"x": x})["y"]
            report = {
                "before": before,
                "devices": sorted({s.device for s in compiled.subgraphs}),
                "nodes": len(alive_nodes()),
                "matches": bool(np.allclose(result, branches_output(x), rtol=1e-5)),
            }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
