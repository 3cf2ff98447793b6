"""Leaks: memory, threads, descriptors and object store after many rounds of compile, run, close.

Each executor is measured in a new process; on Ray, the devices' processes count as well. In half of
the rounds the model is garbage-collected instead of closed.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx

import hetero
from benchmarks.processes import MEMORY, device_processes, held, in_fresh
from benchmarks.sessions import parsed
from benchmarks.tables import print_rows

EXECUTORS = ("inprocess", "ray")
#: Rounds before the first measurement: caches and pools fill up.
WARM_UP = 150
#: Time limit for threads and processes to release their memory.
PATIENCE_S = 20.0


def sample(seed: int) -> onnx.ModelProto:
    """Return a model of two stages with 400 kB of weights, different for each seed."""
    model = parsed("""sample (float[N, 320] x) => (float[N, 320] y) {
        [product] a = MatMul(x, w) [relu] y = Relu(a) }""")
    weight = np.random.default_rng(seed).standard_normal((320, 320), dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model


def use(core: hetero.Core, rounds: Sequence[int]) -> None:
    """Compile and run a model in each round, then close it or drop the reference."""
    x = np.ones((1, 320), np.float32)
    for number in rounds:
        compiled = core.compile_model(sample(number), "HETERO:NULL,CPU", affinity={"relu": "CPU"})
        compiled({"x": x})
        if number % 2:
            compiled.close()
        del compiled


def settled(core: hetero.Core) -> dict[str, int]:
    """Return the resources of the processes after dropped models were closed."""
    end_s = time.monotonic() + PATIENCE_S
    while len(core.executor._deployments) and time.monotonic() < end_s:
        time.sleep(0.01)
    gc.collect()  # a closed model is a reference cycle, which keeps its weights until collected
    store_nbytes, pids = 0, ["self"]
    if core._devices.kind == "ray":
        pids += map(str, device_processes())
        while (store_nbytes := _store_nbytes()) and time.monotonic() < end_s:
            time.sleep(0.1)
    return {**held(pids), "object_store_nbytes": store_nbytes}


def _store_nbytes() -> int:
    """Return the used bytes of the object store, as last reported by Ray."""
    import ray

    of = "object_store_memory"
    return int(ray.cluster_resources()[of] - ray.available_resources()[of])


def measure(executor: Any, rounds: int) -> dict[str, Any]:
    """Return the growth over the rounds: bytes per round, total threads and descriptors.

    For each kind of memory the smaller growth of two halves counts, because an allocator grows in
    large steps and shared memory is allocated on first use. The models have no file.
    """
    half = rounds // 2
    with hetero.Core(executor=executor, devices={"NULL": 1}) as core:
        use(core, range(WARM_UP))
        seen = [settled(core)]
        for begin in (WARM_UP, WARM_UP + half):
            use(core, range(begin, begin + half))
            seen.append(settled(core))
    grown: Mapping[str, int] = {name: seen[-1][name] - seen[0][name] for name in seen[0]}
    growth = sum(
        max(0, min(after[kind] - before[kind] for before, after in pairwise(seen)))
        for kind in MEMORY
    )
    return {
        "executor": executor,
        "rounds": rounds,
        "growth_nbytes": round(growth / half),
        "threads": grown["threads"],
        "fds": grown["descriptors"],
        "object_store_nbytes": round(grown["object_store_nbytes"] / rounds),
    }


def run(executor: str, rounds: int) -> dict[str, Any]:
    """Measure an executor in a new process."""
    return in_fresh(measure, executor, rounds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000, help="rounds of compile, run, close")
    parser.add_argument("--executor", choices=EXECUTORS, help="measure one executor only")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    executors = [options.executor] if options.executor else EXECUTORS
    print_rows([run(executor, options.rounds) for executor in executors], options.json)


if __name__ == "__main__":
    main()
