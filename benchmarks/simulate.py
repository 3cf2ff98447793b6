"""Accuracy of the simulator: rates and latencies against real runs, and the gain from its advice.

First the program's overhead is measured on chains of NULL devices: processor time of a request in
the client and of a task on its device, and the latency of a message. Then twelve real runs in
process, under Poisson arrivals or at full load: chains of NULL devices (2 to 50 ms), replicas,
batches, and squeezenet on ONNX Runtime in 1 to 8 stages. Each is simulated with the same arrivals
and with stage times measured just before, both one request at a time and at full load. Real and
simulated results are medians of three runs, because one may be disturbed. Both signed and absolute
mean errors are printed, so that errors that cancel are visible.

Then the advice is tested on chains of two to four stages: the device that the simulator suggests to
add, against the real gain from adding each device.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any, Literal

import numpy as np

import hetero
from benchmarks.null_models import chain
from benchmarks.tables import print_rows
from hetero.apps.simulate.arrivals import Arrivals, Batches
from hetero.apps.simulate.fleet import Fleet, FleetNode, Program, planned_fleet
from hetero.apps.simulate.simulation import simulate
from hetero.apps.simulate.virtual_run import Outcome, run
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.support import Support
from hetero.planning.cost.costs import (
    CLIENT,
    Costs,
    DeviceCosts,
    DeviceIdentity,
    LinearCost,
    Time,
    Transfer,
)
from hetero.planning.plan_report import PlanReport
from hetero.planning.plan_task import PlanOptions, plan_task
from hetero.planning.task import Constraints, Task


@dataclass(frozen=True)
class Case:
    """Configuration of a real run.

    `stages`: milliseconds of each stage of a chain on NULL devices, or a number of stages of
        squeezenet on two ORT devices in turn.
    `load`: share of the maximum rate; 0 for full load.
    `copies`: number of replicas of the chain.
    `batch`: rows of a batch; NULL devices take the same time for a batch as for one row.
    """

    stages: tuple[float, ...] | int
    load: float
    copies: int = 1
    batch: int = 1

    @property
    def names(self) -> list[str]:
        """Device of each stage in the first replica."""
        if isinstance(self.stages, int):
            return [f"ORT.{i % 2}" for i in range(self.stages)] if self.stages > 1 else ["ORT"]
        return [f"NULL.{i * self.copies}" for i in range(len(self.stages))]


CASES: Mapping[str, Case] = {
    "NULL 50 ms, 30 %": Case((50,), 0.3),
    "NULL 20 ms, 60 %": Case((20,), 0.6),
    "NULL 10 ms, 95 %": Case((10,), 0.95),
    "NULL 2 ms x 4, 70 %": Case((2,) * 4, 0.7),
    "NULL 10 20 10 ms, all": Case((10, 20, 10), 0.0),
    "NULL 8 x 10 ms, 80 %": Case((10,) * 8, 0.8),
    "NULL 10 ms, 3 copies, 80 %": Case((10,), 0.8, copies=3),
    "NULL 20 ms, batches of 4, 60 %": Case((20,), 0.6, batch=4),
    "ORT 1 stage, 50 %": Case(1, 0.5),
    "ORT 2 stages, 70 %": Case(2, 0.7),
    "ORT 4 stages, all": Case(4, 0.0),
    "ORT 8 stages, 60 %": Case(8, 0.6),
}
#: Allowed relative error of a simulated value.
_WANTED = {"rate": 0.03, "p50": 0.05, "p99": 0.15}
#: Most requests in flight.
_IN_FLIGHT = 64


@dataclass
class Runs:
    """Measurements of a real run: arrival and end of each request, and times of stages."""

    took_s: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    stages_s: dict[int, list[float]] = field(default_factory=dict)
    #: Times from the end of a stage to the start of the next one.
    gaps_s: list[float] = field(default_factory=list)

    @property
    def _counted(self) -> slice:
        return slice(len(self.ends_s) // 10, len(self.ends_s) - len(self.ends_s) // 10)

    @property
    def rate_per_s(self) -> float:
        """Results per second, without the first and last tenth."""
        ends = self.ends_s[self._counted]
        return (len(ends) - 1) / (ends[-1] - ends[0])

    def at(self, part: float) -> float:
        """Return a percentile of the latency."""
        took = sorted(self.took_s[self._counted])
        return took[min(len(took) - 1, math.ceil(part * len(took)) - 1)]


def measure(
    compiled: hetero.CompiledModel,
    inputs: Mapping[str, np.ndarray],
    times_s: Sequence[float] | None,
    count: int,
    in_flight: int = _IN_FLIGHT,
    is_alone: bool = False,
) -> Runs:
    """Run requests at their arrival times, or at full load.

    `is_alone`: send each request some time after the previous one has ended.
    """
    queue = hetero.AsyncInferQueue(compiled, jobs=in_flight)
    runs, lock, pause = Runs(), threading.Lock(), Random(0)

    def ended(request: Any, begun_s: float) -> None:
        now_s = time.perf_counter()
        with lock:
            runs.took_s.append(now_s - begun_s)
            runs.ends_s.append(now_s)
            for stage in request.times.stages:
                runs.stages_s.setdefault(stage.stage, []).append(stage.run_s)
            for one, other in pairwise(request.times.stages):
                runs.gaps_s.append(other.started_s - one.ended_s)

    queue.set_callback(ended)
    start_s = time.perf_counter() + (0.05 if times_s else 0.0)
    for number in range(count):
        if is_alone:
            queue.wait_all()
            time.sleep(0.005 + 0.01 * pause.random())
        due_s = start_s + times_s[number] if times_s else time.perf_counter()
        while (wait_s := due_s - time.perf_counter()) > 0:
            time.sleep(wait_s)
        queue.start_async(inputs, userdata=due_s)
    queue.wait_all()
    return runs


def planned(names: list[str], seconds: list[float]) -> PlanReport:
    """Return the plan of a chain with each node on its device."""
    model = read_model(chain(len(names), 4))
    free = Transfer(LinearCost(0.0, 0.0, "measured"), LinearCost(0.0, 0.0, "measured"))
    ends = (*dict.fromkeys(names), CLIENT)
    costs = Costs(
        model.name,
        model.content_hash,
        {},
        {
            name: DeviceCosts(
                DeviceIdentity("NULL", "1", "", "local", 1),
                {
                    f"n{i}": Time(seconds[i], "measured")
                    for i, other in enumerate(names)
                    if other == name
                },
            )
            for name in ends[:-1]
        },
        {(a, b): free for a in ends for b in ends if a != b},
    )
    supports = {n: Support(dict.fromkeys(costs.devices[n].nodes, n)) for n in ends[:-1]}
    return plan_task(
        Task(model, ends[:-1], supports, costs, Constraints()), PlanOptions(seconds=1.0)
    )


def compiled_case(
    core: hetero.Core, case: Case, more: Mapping[str, Any] = {}
) -> tuple[hetero.CompiledModel, dict[str, np.ndarray]]:
    """Return the compiled model of a case, and its inputs."""
    config: dict[str, Any] = {"MAX_REQUESTS_IN_FLIGHT": _IN_FLIGHT, **more}
    names = case.names
    if isinstance(case.stages, int):
        model = core.read_model("light:squeezenet")
        order = [node.name for node in model.nodes]
        pins = {n: names[i * len(names) // len(order)] for i, n in enumerate(order)}
        (port,) = model.inputs
        shape = [size if isinstance(size, int) else 1 for size in port.shape or ()]
        x = np.random.default_rng(0).random(shape, np.float32)
        config["INFERENCE_NUM_THREADS"] = 1
        device = "HETERO:" + ",".join(dict.fromkeys(names))
        return core.compile_model(model, device, config, affinity=pins), {port.name: x}
    count = len(names) * case.copies + sum(map(len, more.get("REPLICAS", {}).values()))
    pins = {f"n{i}": name for i, name in enumerate(names)}
    config["NULL_NODE_TIMES_US"] = {f"n{i}": ms * 1e3 for i, ms in enumerate(case.stages)}
    if case.copies > 1:
        config["REPLICAS"] = {
            name: [f"NULL.{i + copy * len(names)}" for copy in range(1, case.copies)]
            for i, name in enumerate(names)
        }
    if case.batch > 1:
        config["AUTO_BATCH_SIZE"] = case.batch
    device = "HETERO:" + ",".join(f"NULL.{i}" for i in range(count)) if count > 1 else "NULL"
    compiled = core.compile_model(
        chain(len(names), 4), device, config, affinity=pins if count > 1 else None
    )
    return compiled, {"x": np.zeros(1, np.float32)}


def quantiles(values: Sequence[float], count: int = 200) -> tuple[float, ...]:
    """Return evenly spaced quantiles."""
    ordered = sorted(values)
    return tuple(ordered[int((i + 0.5) / count * len(ordered))] for i in range(count))


def measured_program(executor: Literal["ray", "inprocess"]) -> tuple[Program, float]:
    """Return the program's overhead, and the client's processor time per request."""

    def chain_of(stages: int) -> tuple[Runs, float, float]:
        """Run requests one by one; return them, and the overhead of a task and of this process."""
        with hetero.Core(executor, devices={"NULL": stages}) as core:
            compiled, inputs = compiled_case(core, Case((2.0,) * stages, 0.0))
            measure(compiled, inputs, None, 100)
            alone = measure(compiled, inputs, None, 80, in_flight=1, is_alone=True)
            begun_s = time.process_time()
            full = measure(compiled, inputs, None, 800, in_flight=16)
            cpu_s = (time.process_time() - begun_s) / len(full.ends_s)
            longest_s = max(map(statistics.fmean, full.stages_s.values()))
            return alone, max(0.0, 1 / full.rate_per_s - longest_s), cpu_s

    alone, leave_s, cpu_s = chain_of(4)
    call_s, is_one = 0.0, executor == "inprocess"
    if is_one:  # the last stage's thread delivers the result; the rest is the way to the first
        _, last_s, _ = chain_of(1)
        computed_s = (sum(one) for one in zip(*alone.stages_s.values(), strict=True))
        between_s = (sum(alone.gaps_s[3 * i : 3 * i + 3]) for i in range(len(alone.took_s)))
        ways = zip(alone.took_s, computed_s, between_s, strict=True)
        ends_s = statistics.median(took_s - run_s - gap_s for took_s, run_s, gap_s in ways)
        cpu_s = 2 * max(0.0, last_s - leave_s)
        call_s = max(0.0, ends_s - last_s - cpu_s / 2)
    hops = quantiles([max(0.0, gap_s - leave_s) for gap_s in alone.gaps_s])
    return Program(call_s, 0.0, leave_s, hops, one_process=is_one), cpu_s


def row(name: str, seconds: float, program: Program, client_s: float) -> dict[str, Any]:
    """Run one case three times, for about `seconds` in total, and simulate it."""
    case = CASES[name]
    plugin = case.names[0].partition(".")[0]
    num_devices = len(set(case.names)) * case.copies
    with hetero.Core("inprocess", devices={plugin: num_devices}) as core:
        compiled, inputs = compiled_case(core, case)
        # Full load, so that the mutual slowdown of devices is measured.
        flight = 4 * num_devices * case.batch
        warm = measure(compiled, inputs, None, flight + 20, in_flight=flight)
        count = max(40, min(600, int(2 * warm.rate_per_s)))
        full = measure(compiled, inputs, None, count, in_flight=flight)
        alone = measure(compiled, inputs, None, 40 * case.copies, in_flight=1, is_alone=True)
        # A model may have more or fewer stages than the pins suggest.
        names = [s.device for s in compiled.subgraphs] if plugin == "ORT" else case.names
        fleet, times_s = calibrated(case, names, alone, full, program, client_s)
        report = planned(names, times_s)
        fleet = planned_fleet(report, {plugin: num_devices})
        devices = tuple(replace(d, cores=float(plugin == "ORT")) for d in fleet.devices)
        fleet = replace(fleet, devices=devices)
        rate = (case.load or 1.0) * full.rate_per_s
        count = min(2000, max(60, int(rate * seconds / 3)))
        arrivals_s = list(Arrivals(name, rate).times_s(count, Random(0)))
        times = arrivals_s if case.load else None
        reals = [measure(compiled, inputs, times, count) for _ in range(3)]
    gaps = tuple(b - a for a, b in pairwise([0.0, *arrivals_s]))
    founds = [
        run(
            report,
            fleet,
            Arrivals(name, rate, gaps_s=gaps) if times else None,
            requests=count,
            seed=seed,
            in_flight=_IN_FLIGHT,
            batches=Batches(case.batch, 1.0),
        )
        for seed in range(3)
    ]
    return {"run": name, "stages": len(names), "requests": count, **_compare(founds, reals)}


def calibrated(
    case: Case, names: Sequence[str], alone: Runs, full: Runs, program: Program, client_s: float
) -> tuple[Fleet, list[float]]:
    """Return an empty fleet with the measured overheads, and the time of each stage."""

    def means(runs: Runs) -> list[float]:
        # Stages are numbered separately in each replica.
        of = [[] for _ in names]  # type: list[list[float]]
        for stage, times_s in runs.stages_s.items():
            of[stage % len(names)] += times_s
        return [statistics.fmean(times_s) for times_s in of]

    def spread(runs: Runs, by: Sequence[float]) -> tuple[float, ...]:
        return quantiles(
            [
                t / mean
                for stage, times in runs.stages_s.items()
                for t in times
                if (mean := by[stage % len(by)])
            ]
        )

    quiet, busy = means(alone), means(full)
    nodes, base = {}, busy
    if isinstance(case.stages, int) and len(set(names)) > 1:
        # Times alone, and the slowdown at full load.
        together = min(1.0, sum(quiet) / sum(busy))
        nodes, base = {"local": FleetNode(len(os.sched_getaffinity(0)), together)}, quiet
    # Seconds per request of one replica in which the busiest device does not compute.
    own = {name: [s for s, n in zip(busy, names, strict=True) if n == name] for name in names}
    name = max(own, key=lambda name: sum(own[name]))
    task_s = case.copies * case.batch / full.rate_per_s - sum(own[name])
    task_s -= client_s / 2 * (name == names[-1])
    program = replace(
        program,
        leave_s=max(0.0, task_s / len(own[name])),
        run=spread(full, busy),
        idle=spread(alone, base),
    )
    return Fleet((), {}, client_s=client_s, nodes=nodes, program=program), base


def _compare(founds: Sequence[Outcome], reals: Sequence[Runs]) -> dict[str, Any]:
    pairs = {
        "rate": ([f.throughput_per_s for f in founds], [r.rate_per_s for r in reals]),
        "p50": ([f.p50_s for f in founds], [r.at(0.5) for r in reals]),
        "p99": ([f.p99_s for f in founds], [r.at(0.99) for r in reals]),
    }
    medians = {key: tuple(map(statistics.median, pair)) for key, pair in pairs.items()}
    return {
        **{key: measured for key, (_, measured) in medians.items()},
        **{
            f"{key} error": simulated / measured - 1
            for key, (simulated, measured) in medians.items()
        },
    }


def advice(number: int, seconds: float, program: Program, client_s: float) -> dict[str, Any]:
    """Draw a random chain, and add the suggested device and each of the others for real.

    In half of the chains one device has a replica from the start.
    """
    random = Random(number)
    stages = tuple(
        random.choice((2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 50.0))
        for _ in range(random.choice((2, 3, 4)))
    )
    case = Case(stages, 0.0)
    doubled = random.choice(case.names) if number % 2 else ""
    count = max(40, int(seconds / max(stages) * 1e3))
    rates: dict[str, float] = {}
    for name in ("", *case.names):
        more: dict[str, list[str]] = {}
        for i, other in enumerate(filter(None, (doubled, name))):
            more.setdefault(other, []).append(f"NULL.{len(stages) + i}")
        with hetero.Core("inprocess", devices={"NULL": len(stages) + 2}) as core:
            compiled, inputs = compiled_case(core, case, {"REPLICAS": more} if more else {})
            measure(compiled, inputs, None, 20)
            real = measure(compiled, inputs, None, count)
            rates[name] = real.rate_per_s
            if not name:
                times_s = [statistics.fmean(real.stages_s[i]) for i in range(len(stages))]
    report = planned(case.names, times_s)
    fleet = replace(planned_fleet(report, {}), client_s=client_s, program=program)
    fleet = fleet.with_one_more(doubled) if doubled else fleet
    advised = simulate(report, fleet, requests=1000).added[0]
    best = max(case.names, key=rates.__getitem__)
    # If the suggestion brings nothing, any other device is as good.
    mine = rates.get(advised.name.removeprefix("+1 "), rates[""])
    return {
        "stages, ms": " ".join(
            f"{ms:g}" + " x 2" * (name == doubled)
            for ms, name in zip(stages, case.names, strict=True)
        ),
        "advice": advised.name,
        "gain said": advised.gain,
        "gain": mine / rates[""] - 1,
        "best": f"+1 {best}",
        "best gain": rates[best] / rates[""] - 1,
        # If the two slowest stages are equal, no single device helps.
        "right": mine >= 0.98 * rates[best],
    }


def scale(devices: int, count: int) -> dict[str, Any]:
    """Simulate requests on a number of devices in chains of five, at 70 % of the maximum rate."""
    names = [f"NULL.{i}" for i in range(5)]
    report = planned(names, [0.01] * 5)
    fleet = replace(planned_fleet(report, {"NULL": devices}), client_s=0.0)
    begun_s = time.process_time()
    simulation = run(report, fleet, Arrivals("", 0.7 * devices / 5 / 0.01), requests=count)
    took_s = time.process_time() - begun_s
    return {
        "devices": devices,
        "requests": count,
        "events": simulation.events,
        "cpu_s": took_s,
        "events a second": simulation.events / took_s,
        "p50_ms": simulation.p50_s * 1e3,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cases and print each error and both means; then test the advice."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=12.0, help="approximate duration of each real run"
    )
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--advice", type=int, default=10, help="number of chains to test advice on")
    parser.add_argument(
        "--program", action="store_true", help="only measure the overhead, for a cluster file"
    )
    parser.add_argument(
        "--executor",
        default="inprocess",
        choices=("inprocess", "ray"),
        help="executor of --program",
    )
    parser.add_argument(
        "--scale", type=int, nargs="*", help="only simulate these numbers of devices"
    )
    parser.add_argument("--requests", type=int, default=10_000, help="requests of --scale")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.scale:
        print_rows([scale(number, options.requests) for number in options.scale], options.json)
        return
    program, client_s = measured_program(options.executor)
    if options.program:
        some = quantiles(program.hop_s, 20)
        document = {
            "clients": {"microseconds": round(client_s * 1e6, 1)},
            "program": {
                "call_us": round(program.call_s * 1e6, 1),
                "leave_us": round((program.leave_s or 0.0) * 1e6, 1),
                "hop_us": [round(hop_s * 1e6, 1) for hop_s in some],
                "one_process": program.one_process,
            },
        }
        print(json.dumps(document))  # JSON is also YAML
        return
    rows = [row(name, options.seconds, program, client_s) for name in options.only]
    advised = [advice(i, options.seconds / 10, program, client_s) for i in range(options.advice)]
    errors = [key for key in rows[0] if key.endswith(" error")] if rows else []
    more: dict[str, Any] = {
        "signed mean errors": {k: round(statistics.fmean(r[k] for r in rows), 4) for k in errors},
        "absolute mean errors": {
            k: round(statistics.fmean(abs(r[k]) for r in rows), 4) for k in errors
        },
        "held": {
            f"{key} within {most:.0%}": sum(abs(r[f"{key} error"]) <= most for r in rows)
            for key, most in _WANTED.items()
        },
        "advice right": f"{sum(r['right'] for r in advised)} of {len(advised)}",
        "client_us": round(client_s * 1e6, 1),
    }
    if options.json:
        print_rows(rows, True, advice=advised, **more)
        return
    print_rows(rows, False, **more)
    print_rows(advised, False)


if __name__ == "__main__":
    main()
