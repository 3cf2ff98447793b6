"""Simulated against real: rates and times of the same runs, and both kinds of mean error.

Each row is a real run in process under Poisson arrivals, or as fast as it is answered, and its
simulation with the times of the stages that the same process measured one request at a time.
"""

from __future__ import annotations

import argparse
import math
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

import hetero
from benchmarks.null_models import chain
from benchmarks.tables import print_rows
from devices.model.reader import read_model
from devices.plugin.support import Support
from hetero.planning.choose import Choice, choose
from hetero.planning.cost import CLIENT, Costs, DeviceCosts, DeviceIdentity, Line, Time, Transfer
from hetero.planning.problem import Constraints, Task
from hetero.planning.report import PlanReport
from hetero.simulate.arrivals import Arrivals
from hetero.simulate.fleet import planned_fleet
from hetero.simulate.run import Outcome, run

#: Milliseconds of each stage of a chain on NULL devices; load of the slowest, 0: all it can.
ROWS: Mapping[str, tuple[tuple[float, ...], float]] = {
    "1 stage 50 ms, 30 %": ((50,), 0.3),
    "1 stage 20 ms, 60 %": ((20,), 0.6),
    "1 stage 10 ms, 80 %": ((10,), 0.8),
    "1 stage 10 ms, 95 %": ((10,), 0.95),
    "2 stages, 60 %": ((10, 20), 0.6),
    "3 stages, 80 %": ((10, 20, 10), 0.8),
    "3 stages, all": ((10, 20, 10), 0.0),
    "5 stages of 10 ms, 70 %": ((10,) * 5, 0.7),
    "8 stages of 10 ms, 60 %": ((10,) * 8, 0.6),
    "8 stages, all": ((5, 10, 5, 10, 5, 20, 5, 5), 0.0),
    "1 stage 2 ms, 50 %": ((2,), 0.5),
    "4 stages of 2 ms, all": ((2,) * 4, 0.0),
}


def measure(
    compiled: hetero.CompiledModel, x: np.ndarray, times_s: list[float] | None, count: int
) -> tuple[float, list[float]]:
    """Return answers a second, and seconds that each took from its arrival."""
    queue = hetero.AsyncInferQueue(compiled, jobs=64 if times_s else 32)
    took: list[float] = []
    ends: list[float] = []
    lock = threading.Lock()

    def ended(request: Any, begun_s: float) -> None:
        now_s = time.perf_counter()
        with lock:
            took.append(now_s - begun_s)
            ends.append(now_s)

    queue.set_callback(ended)
    start_s = time.perf_counter() + 0.05
    for number in range(count):
        due_s = start_s + times_s[number] if times_s else time.perf_counter()
        while (wait_s := due_s - time.perf_counter()) > 0:
            time.sleep(wait_s)
        queue.start_async({"x": x}, userdata=due_s)
    queue.wait_all()
    first = count // 10
    last = count - first
    return (last - first) / (ends[last - 1] - ends[first - 1]), sorted(took[first:last])


def timed(compiled: hetero.CompiledModel, x: np.ndarray, names: list[str]) -> PlanReport:
    """Return the plan that a chain is on, with the times that its stages take alone."""
    request = compiled.create_infer_request()
    runs: dict[int, list[float]] = {}
    for _ in range(15):
        request.infer({"x": x})
        for stage in request.times.stages:
            runs.setdefault(stage.stage, []).append(stage.run_s)
    return planned(names, [statistics.median(runs[i]) for i in sorted(runs)])


def planned(names: list[str], seconds: list[float]) -> PlanReport:
    """Return the plan of a chain, each node on a device of its own."""
    model = read_model(chain(len(names), 4))
    free = Transfer(Line(0.0, 0.0, "measured"), Line(0.0, 0.0, "measured"))
    ends = (*names, CLIENT)
    costs = Costs(
        model.name,
        model.content_hash,
        {},
        {
            name: DeviceCosts(
                DeviceIdentity("NULL", "1", "", "local", 1),
                {f"n{i}": Time(seconds[i], "measured")},
            )
            for i, name in enumerate(names)
        },
        {(a, b): free for a in ends for b in ends if a != b},
    )
    supports = {n: Support(dict.fromkeys(costs.devices[n].nodes, n)) for n in names}
    return choose(Task(model, tuple(names), supports, costs, Constraints()), Choice(seconds=1.0))


def row(name: str, count: int, client_us: float) -> dict[str, Any]:
    """Run one row, and simulate it."""
    stages, load = ROWS[name]
    names = [f"NULL.{i}" for i in range(len(stages))] if len(stages) > 1 else ["NULL"]
    config = {"NULL_NODE_TIMES_US": {f"n{i}": ms * 1e3 for i, ms in enumerate(stages)}}
    pins = {f"n{i}": device for i, device in enumerate(names)}
    x = np.zeros(1, np.float32)
    with hetero.Core("inprocess", devices={"NULL": len(names)}) as core:
        device = "HETERO:" + ",".join(names)
        compiled = core.compile_model(chain(len(stages), 4), device, config, affinity=pins)
        report = timed(compiled, x, names)
        rate = load / (max(stages) / 1e3)
        arrivals = Arrivals(name, rate) if load else None
        times = list(arrivals.times_s(count, Random(0))) if arrivals else None
        real_rate, took = measure(compiled, x, times, count)
    fleet = replace(planned_fleet(report, {}), client_s=client_us / 1e6)
    found = run(report, fleet, arrivals, requests=count, seed=0, in_flight=64 if load else 32)
    return {"run": name, **_compared(found, real_rate, took)}


def _compared(found: Outcome, rate: float, took: list[float]) -> dict[str, Any]:
    def at(part: float) -> float:
        return took[min(len(took) - 1, math.ceil(part * len(took)) - 1)]

    pairs = {
        "rate": (found.throughput_per_s, rate),
        "p50": (found.p50_s, at(0.5)),
        "p99": (found.p99_s, at(0.99)),
    }
    return {
        **{f"{key}": real for key, (_, real) in pairs.items()},
        **{f"{key} error": simulated / real - 1 for key, (simulated, real) in pairs.items()},
    }


def scale(devices: int, count: int) -> dict[str, Any]:
    """Serve requests on so many devices, in chains of five, at 70 % of what they can."""
    names = [f"NULL.{i}" for i in range(5)]
    report = planned(names, [0.01] * 5)
    fleet = replace(planned_fleet(report, {"NULL": devices}), client_s=0.0)
    begun_s = time.process_time()
    found = run(report, fleet, Arrivals("", 0.7 * devices / 5 / 0.01), requests=count)
    took_s = time.process_time() - begun_s
    return {
        "devices": devices,
        "requests": count,
        "events": found.events,
        "cpu_s": took_s,
        "events a second": found.events / took_s,
        "p50_ms": found.p50_s * 1e3,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the rows, and print each error and both means."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--only", nargs="*", default=list(ROWS))
    parser.add_argument("--client-us", type=float, default=150.0, help="a request's, in process")
    parser.add_argument("--scale", type=int, nargs="*", help="numbers of devices; no real runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.scale:
        print_rows([scale(number, options.requests) for number in options.scale], options.json)
        return
    rows = [row(name, options.requests, options.client_us) for name in options.only]
    errors = ("rate error", "p50 error", "p99 error")
    means = {
        "signed mean errors": [round(statistics.fmean(r[key] for r in rows), 4) for key in errors],
        "absolute mean errors": [
            round(statistics.fmean(abs(r[key]) for r in rows), 4) for key in errors
        ],
    }
    print_rows(rows, options.json, **means)


if __name__ == "__main__":
    main()
