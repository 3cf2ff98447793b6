"""What rounds of compile, run, close leave behind: memory, threads, descriptors, object store.

Each executor is measured in a process of its own; on Ray the devices' processes are counted with
the client's. Half of the rounds drop the model without closing it.
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
#: Seconds that threads and processes may take to give back what they hold.
PATIENCE_S = 20.0


def sample(seed: int) -> onnx.ModelProto:
    """Return two stages' worth of a model; no two have the same 400 kB of weights."""
    model = parsed("""sample (float[N, 320] x) => (float[N, 320] y) {
        [product] a = MatMul(x, w) [relu] y = Relu(a) }""")
    weight = np.random.default_rng(seed).standard_normal((320, 320), dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model


def use(core: hetero.Core, rounds: Sequence[int]) -> None:
    """Compile, run and close, or drop, a model in each round."""
    x = np.ones((1, 320), np.float32)
    for number in rounds:
        compiled = core.compile_model(sample(number), "HETERO:NULL,CPU", affinity={"relu": "CPU"})
        compiled({"x": x})
        if number % 2:
            compiled.close()
        del compiled


def settled(core: hetero.Core) -> dict[str, int]:
    """Return what the processes hold once dropped models are closed."""
    end_s = time.monotonic() + PATIENCE_S
    while len(core.executor._deployments) and time.monotonic() < end_s:
        time.sleep(0.01)
    gc.collect()  # a model that was closed is a cycle, which holds its weights until then
    store_nbytes, pids = 0, ["self"]
    if core._devices.kind == "ray":
        pids += map(str, device_processes())
        while (store_nbytes := _store_nbytes()) and time.monotonic() < end_s:
            time.sleep(0.1)
    return {**held(pids), "object_store_nbytes": store_nbytes}


def _store_nbytes() -> int:
    """Return the bytes of the object store that are in use, as Ray last told."""
    import ray

    of = "object_store_memory"
    return int(ray.cluster_resources()[of] - ray.available_resources()[of])


def measure(executor: Any, rounds: int) -> dict[str, Any]:
    """Return what the rounds added: bytes for each round, threads and descriptors in all.

    Of each kind of memory the less of two halves counts: an allocator takes a piece for many rounds
    at once, and pages of shared memory come when they are first used. Models here are of no file.
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
    """Measure an executor in a process of its own."""
    return in_fresh(measure, executor, rounds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000, help="compile, run, close so often")
    parser.add_argument("--executor", choices=EXECUTORS, help="one only")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    chosen = [options.executor] if options.executor else EXECUTORS
    print_rows([run(executor, options.rounds) for executor in chosen], options.json)


if __name__ == "__main__":
    main()
