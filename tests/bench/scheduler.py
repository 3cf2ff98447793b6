"""What the scheduler itself costs: a chain of three NULL devices, against plain Ray actors.

The devices compute nothing, so that what is measured is admission, transport and answers. The peer
is what one would write by hand: three Ray actors, the reference of one's result handed to the next,
the last one fetched. Peer and executors run in turn, in the same process and on the same Ray.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import ray
from onnx import TensorProto, helper

from devices.model.reader import read_model
from scheduler import Deployment, Executor, Plan, Stage, StageSource, create_executor

STAGES = 3
Submit = Callable[[], Callable[[], Any]]


def chain_of_null(executor: Executor, nbytes: int) -> Deployment:
    """Deploy three Identity nodes, each on its own NULL device."""
    size = nbytes // 4
    names = ["x", *(f"t{i}" for i in range(STAGES))]
    nodes = [
        helper.make_node("Neg", [names[i]], [names[i + 1]], name=f"n{i}") for i in range(STAGES)
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [size]) for n in names]
    graph = helper.make_graph(nodes, "chain", [ports[0]], [ports[-1]])
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    stages = tuple(
        Stage(i, f"NULL.{i}", (names[i],), (names[i + 1],), (f"n{i}",)) for i in range(STAGES)
    )
    sources = [StageSource(model.extract([i], [names[i + 1]])) for i in range(STAGES)]
    return executor.deploy(Plan("chain", model.inputs, model.outputs, stages), sources)


class PlainActor:
    """The peer's stage: a fresh array of its input's shape, as the NULL device makes."""

    def step(self, x: np.ndarray) -> np.ndarray:
        return np.zeros_like(x)


def submit_plain(actors: Sequence[Any], x: np.ndarray) -> Submit:
    def submit() -> Callable[[], Any]:
        ref: Any = x
        for actor in actors:
            ref = actor.step.remote(ref)
        return lambda: ray.get(ref)

    return submit


def submit_deployed(deployment: Deployment, x: np.ndarray) -> Submit:
    def submit() -> Callable[[], Any]:
        return deployment.submit({"x": x}).future.result

    return submit


def measure(submit: Submit, window: int, seconds: float) -> tuple[float, float]:
    """Return the median latency in ms and requests per second, `window` requests in flight."""
    for _ in range(20):
        submit()()
    waiting: deque[tuple[float, Callable[[], Any]]] = deque()
    latencies = []
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        waiting.append((time.perf_counter(), submit()))
        if len(waiting) == window:
            began, wait = waiting.popleft()
            wait()
            latencies.append(time.perf_counter() - began)
    while waiting:
        began, wait = waiting.popleft()
        wait()
        latencies.append(time.perf_counter() - began)
    return statistics.median(latencies) * 1e3, len(latencies) / (time.perf_counter() - start)


def run(seconds: float) -> list[dict[str, Any]]:
    """Measure each size and window on each executor and on the peer."""
    rows = []
    on_ray = create_executor("ray", devices={"NULL": STAGES})
    in_process = create_executor("inprocess", devices={"NULL": STAGES})
    plain = [ray.remote(num_cpus=0)(PlainActor).remote() for _ in range(STAGES)]
    for nbytes in (1_000, 1_000_000):
        x = np.ones(nbytes // 4, np.float32)
        ways = {
            "plain": submit_plain(plain, x),
            "ray": submit_deployed(chain_of_null(on_ray, nbytes), x),
            "inprocess": submit_deployed(chain_of_null(in_process, nbytes), x),
        }
        for window in (1, 8):
            peer_ms = peer_rate = 0.0
            for name, submit in ways.items():
                median_ms, rate = measure(submit, window, seconds)
                if name == "plain":
                    peer_ms, peer_rate = median_ms, rate
                rows.append(
                    {
                        "executor": name,
                        "nbytes": nbytes,
                        "window": window,
                        "p50_ms": round(median_ms, 4),
                        "hop_ms": round(median_ms / STAGES, 4) if window == 1 else None,
                        "requests_per_s": round(rate, 1),
                        "latency_ratio": round(median_ms / peer_ms, 3),
                        "rate_ratio": round(rate / peer_rate, 3),
                    }
                )
    in_process.close()
    on_ray.close()
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    rows = run(options.seconds)
    if options.json:
        sys.stdout.write(json.dumps({"rows": rows}) + "\n")
        return
    columns = ("executor", "nbytes", "window", "p50_ms", "hop_ms", "requests_per_s")
    columns += ("latency_ratio", "rate_ratio")
    print(" ".join(f"{c:>14}" for c in columns))
    for row in rows:
        print(" ".join(f"{row[c] if row[c] is not None else '':>14}" for c in columns))


if __name__ == "__main__":
    main()
