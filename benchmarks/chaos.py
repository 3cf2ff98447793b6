"""Chaos test: requests on a cluster of three nodes whose actors and nodes are killed at random.

No request may be lost, duplicated or wrong. A request is lost if it ends in an error or not at all,
because everything that is killed comes back before the deadline. The recovery time is the time from
a fault to the first result of a request that was submitted after it. `unrecovered` faults had no
such result; in `recovery_max_s` they count until the end. The test runs in its own process, so it
ends in bounded time even if it hangs; `whole` shows whether it completed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import end_session
from benchmarks.tables import names, print_rows

_ROOT: Final = Path(__file__).parents[1]
#: Deadline of a request, and time limit for the remaining requests after the last fault.
TIMEOUT_S: Final = 30.0
_SETTLE_S: Final = 10.0
_STOP_S: Final = TIMEOUT_S + 10.0
_START_S: Final = 180.0
_NODES: Final = ("one", "two")


def _run_in_this_process(options: argparse.Namespace) -> None:
    """Run the test in this process, then exit without clean-up."""
    from ray.cluster_utils import Cluster

    import hetero  # imported here: the parent process does not need them
    from benchmarks.chaos_faults import KINDS, Faults
    from benchmarks.chaos_flow import CONFIG, DEVICES, PLACES, Flow, model, question

    node = {"num_cpus": 1}
    (Path(tempfile.gettempdir()) / "ray").mkdir(
        exist_ok=True
    )  # Ray records its latest session there
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**node, "include_dashboard": False, "temp_dir": options.here},
    )
    nodes = {name: cluster.add_node(node_name=name, **node) for name in _NODES}
    core = hetero.Core(
        address=cluster.address,
        devices={"TOY": 1, "NULL": 1},
        plugins=("tests.scheduler.plugins:ToyPlugin",),
    )
    compiled = core.compile_model(model(), DEVICES, CONFIG, affinity=PLACES)
    compiled({"x": question(1)})
    flow = Flow(compiled, options.window, options.rate, TIMEOUT_S)
    kinds = names(options.kinds) or list(KINDS)
    faults = Faults(cluster, nodes, options.seed, kinds, **node)

    def print_outcome(whole: bool) -> None:
        outcome = result(flow, faults.done, time.monotonic())
        os.write(1, json.dumps({**outcome, "seed": options.seed, "whole": whole}).encode() + b"\n")
        os._exit(0)

    limit_s = options.seconds + _STOP_S + _SETTLE_S + _STOP_S
    watchdog = threading.Timer(limit_s, print_outcome, (False,))
    watchdog.daemon = True
    watchdog.start()
    faults.run(options.seconds)
    time.sleep(_SETTLE_S)
    flow.stop(_STOP_S)
    print_outcome(True)


def result(flow: Any, faults: Sequence[tuple[float, str]], now_s: float) -> dict[str, Any]:
    """Return the counts of request outcomes and the recovery times."""
    answered_s: dict[float, float] = {}
    for at_s, _ in faults:
        later = [end_s for begun_s, end_s in flow.answers if begun_s >= at_s]
        if later:
            answered_s[at_s] = min(later)
    took_s = [round(answered_s.get(at_s, now_s) - at_s, 3) for at_s, _ in faults]
    begun_s = min((at_s for at_s, _ in faults), default=0.0)
    return {
        "requests": flow.requests,
        "lost": flow.lost,
        "duplicated": flow.duplicated,
        "wrong": flow.wrong,
        "faults": len(faults),
        "recovery_p50_s": round(statistics.median(took_s), 3) if took_s else None,
        "recovery_max_s": max(took_s, default=None),
        "unrecovered": len(faults) - len(answered_s),
        "errors": dict(flow.errors),
        "kinds": dict(Counter(kind for _, kind in faults)),
        "examples": flow.examples,
        "recoveries": [
            f"{at_s - begun_s:.1f} {kind} {seconds}"
            for (at_s, kind), seconds in zip(faults, took_s, strict=True)
        ],
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the test in a new process, and kill all of its descendants at the end."""
    folder = tempfile.mkdtemp(prefix="hc-", dir="/tmp")
    command = [sys.executable, "-m", __spec__.name, "--here", folder]
    for name in ("seconds", "seed", "window", "rate", "kinds"):
        command += [f"--{name}", str(getattr(options, name))]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
        "PYTHONPATH": str(_ROOT),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
    }
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            limit_s = _START_S + options.seconds + 3 * _STOP_S
            printed, _ = child.communicate(timeout=limit_s)
            outcome: dict[str, Any] = json.loads(printed.splitlines()[-1])
        except (subprocess.TimeoutExpired, IndexError, json.JSONDecodeError) as error:
            errors.seek(0)
            raise RuntimeError(f"no result: {errors.read()[-3000:]}") from error
        finally:
            end_session(child.pid)
            child.wait()
            shutil.rmtree(folder, ignore_errors=True)
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the faults")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults")
    parser.add_argument("--window", type=int, default=8, help="requests in flight")
    parser.add_argument("--rate", type=float, default=100.0, help="maximum requests per second")
    parser.add_argument("--kinds", default="", help="kinds of faults: kill,stop,remove,add")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--here", metavar="FOLDER", help="run in this process")
    options = parser.parse_args(arguments)
    if options.here:
        _run_in_this_process(options)
    result_row = run(options)
    if options.json:
        print(json.dumps(result_row))
    else:
        print_rows([{"what": name, "found": value} for name, value in result_row.items()], False)
    return int(
        any(result_row[name] for name in ("lost", "duplicated", "wrong")) or not result_row["whole"]
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
