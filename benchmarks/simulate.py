"""Simulated against real: rates and times of the same runs, and whether the advice holds.

Twelve real runs in process, under Poisson arrivals or as fast as they are answered: chains of NULL
devices (2 to 50 ms), replicas, batches, and squeezenet on ONNX Runtime in 1 to 8 stages. Each is
simulated with the same arrivals and the times that its stages took just before, several requests
being in flight. Signed and absolute mean errors are both printed: errors that cancel show.

Then the advice: chains of three stages, what the simulation says to add, and what adding one of
each device brings for real.
"""

from __future__ import annotations

import argparse
import math
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from hetero.simulate.advise import simulate
from hetero.simulate.arrivals import Arrivals
from hetero.simulate.batches import Batches
from hetero.simulate.fleet import planned_fleet
from hetero.simulate.run import Outcome, run


@dataclass(frozen=True)
class Case:
    """A real run.

    `stages`: milliseconds of each stage of a chain on NULL devices; a number: so many stages of
        squeezenet on two ORT devices in turn.
    `load`: of what it can answer; 0: as fast as it is answered.
    `copies`: how many devices have the whole chain.
    `batch`: rows of a batch; NULL takes as long for all of them as for one.
    """

    stages: tuple[float, ...] | int
    load: float
    copies: int = 1
    batch: int = 1

    @property
    def names(self) -> list[str]:
        """Each stage's device, in the first copy."""
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
#: Requests in flight at most, of each run.
_IN_FLIGHT = 64


@dataclass
class Runs:
    """What a real run gave: when each request arrived and ended, and how long stages ran."""

    took_s: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    stages_s: dict[int, list[float]] = field(default_factory=dict)

    @property
    def _counted(self) -> slice:
        return slice(len(self.ends_s) // 10, len(self.ends_s) - len(self.ends_s) // 10)

    @property
    def rate_per_s(self) -> float:
        """Answers a second, but for the first and last tenth."""
        ends = self.ends_s[self._counted]
        return (len(ends) - 1) / (ends[-1] - ends[0])

    def at(self, part: float) -> float:
        """Return a percentile of the seconds from arrival to answer."""
        took = sorted(self.took_s[self._counted])
        return took[min(len(took) - 1, math.ceil(part * len(took)) - 1)]


def measure(
    compiled: hetero.CompiledModel,
    inputs: Mapping[str, np.ndarray],
    times_s: Sequence[float] | None,
    count: int,
    in_flight: int = _IN_FLIGHT,
) -> Runs:
    """Have requests come when they are to, or as fast as they are answered."""
    queue = hetero.AsyncInferQueue(compiled, jobs=in_flight)
    runs, lock = Runs(), threading.Lock()

    def ended(request: Any, begun_s: float) -> None:
        now_s = time.perf_counter()
        with lock:
            runs.took_s.append(now_s - begun_s)
            runs.ends_s.append(now_s)
            for stage in request.times.stages:
                runs.stages_s.setdefault(stage.stage, []).append(stage.run_s)

    queue.set_callback(ended)
    start_s = time.perf_counter() + 0.05
    for number in range(count):
        due_s = start_s + times_s[number] if times_s else time.perf_counter()
        while (wait_s := due_s - time.perf_counter()) > 0:
            time.sleep(wait_s)
        queue.start_async(inputs, userdata=due_s)
    queue.wait_all()
    return runs


def planned(names: list[str], seconds: list[float]) -> PlanReport:
    """Return the plan of a chain, each node on its device."""
    model = read_model(chain(len(names), 4))
    free = Transfer(Line(0.0, 0.0, "measured"), Line(0.0, 0.0, "measured"))
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
    return choose(Task(model, ends[:-1], supports, costs, Constraints()), Choice(seconds=1.0))


def compiled_case(
    core: hetero.Core, case: Case, more: Mapping[str, Any] = {}
) -> tuple[hetero.CompiledModel, dict[str, np.ndarray]]:
    """Return a case's model on its devices, and its inputs."""
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
    count = len(names) * case.copies + ("STAGE_REPLICAS" in more)
    pins = {f"n{i}": name for i, name in enumerate(names)}
    config["NULL_NODE_TIMES_US"] = {f"n{i}": ms * 1e3 for i, ms in enumerate(case.stages)}
    if case.copies > 1:
        config["NUM_REPLICAS"] = case.copies
    if case.batch > 1:
        config["AUTO_BATCH_SIZE"] = case.batch
    device = "HETERO:" + ",".join(f"NULL.{i}" for i in range(count)) if count > 1 else "NULL"
    compiled = core.compile_model(
        chain(len(names), 4), device, config, affinity=pins if count > 1 else None
    )
    return compiled, {"x": np.zeros(1, np.float32)}


def row(name: str, seconds: float, client_us: float) -> dict[str, Any]:
    """Run one case for about so long, and simulate it."""
    case = CASES[name]
    plugin = case.names[0].partition(".")[0]
    num_devices = len(set(case.names)) * case.copies
    with hetero.Core("inprocess", devices={plugin: num_devices}) as core:
        compiled, inputs = compiled_case(core, case)
        # As many as keep each device at work, so that what they do to each other is in it.
        before = measure(compiled, inputs, None, 60, in_flight=2 * num_devices * case.batch)
        times_s = [statistics.fmean(runs) for _, runs in sorted(before.stages_s.items())]
        if case.copies > 1:  # each copy's stages have numbers of their own
            times_s = [
                statistics.fmean(times_s[i :: len(case.names)]) for i in range(len(case.names))
            ]
        # A model may be cut into more or fewer stages than its nodes were given to in turn.
        names = [s.device for s in compiled.subgraphs] if plugin == "ORT" else case.names
        report = planned(names, times_s)
        fleet = replace(planned_fleet(report, {plugin: num_devices}), client_s=client_us / 1e6)
        busy_s = max(
            sum(s for s, n in zip(times_s, names, strict=True) if n == name) for name in set(names)
        )
        rate = (case.load or 1.0) * case.batch * case.copies / busy_s
        count = min(4000, max(60, int(rate * seconds)))
        arrivals = Arrivals(name, rate) if case.load else None
        times = list(arrivals.times_s(count, Random(0))) if arrivals else None
        real = measure(compiled, inputs, times, count)
    found = run(
        report, fleet, arrivals, requests=count, seed=0, in_flight=_IN_FLIGHT,
        batches=Batches(case.batch, 1.0),
    )  # fmt: skip
    return {"run": name, "stages": len(names), "requests": count, **_compared(found, real)}


def _compared(found: Outcome, real: Runs) -> dict[str, Any]:
    pairs = {
        "rate": (found.throughput_per_s, real.rate_per_s),
        "p50": (found.p50_s, real.at(0.5)),
        "p99": (found.p99_s, real.at(0.99)),
    }
    return {
        **{key: measured for key, (_, measured) in pairs.items()},
        **{
            f"{key} error": simulated / measured - 1 for key, (simulated, measured) in pairs.items()
        },
    }


def advice(number: int, seconds: float) -> dict[str, Any]:
    """Draw a chain, and add for real what the simulation says, and each of the others."""
    random = Random(number)
    case = Case(tuple(random.choice((3.0, 5.0, 8.0, 12.0, 20.0)) for _ in range(3)), 0.0)
    count = int(seconds / max(case.stages) * 1e3)  # type: ignore[arg-type]  # a tuple
    rates: dict[str, float] = {}
    for name in ("", *case.names):
        more = {"STAGE_REPLICAS": {name: ["NULL.3"]}} if name else {}
        with hetero.Core("inprocess", devices={"NULL": 4}) as core:
            compiled, inputs = compiled_case(core, case, more)
            real = measure(compiled, inputs, None, count)
            rates[name] = real.rate_per_s
            if not name:
                times_s = [statistics.fmean(runs) for _, runs in sorted(real.stages_s.items())]
    report = planned(case.names, times_s)
    said = simulate(report, planned_fleet(report, {}), requests=1000).added[0]
    best = max(case.names, key=rates.__getitem__)
    mine = said.name.removeprefix("+1 ")
    return {
        "stages, ms": " ".join(f"{ms:g}" for ms in case.stages),  # type: ignore[union-attr]
        "advice": said.name,
        "gain said": said.gain,
        "gain": rates.get(mine, 0.0) / rates[""] - 1,
        "best": f"+1 {best}",
        "best gain": rates[best] / rates[""] - 1,
        # Two slowest stages alike: what is added brings nothing, whichever it is.
        "right": rates.get(mine, 0.0) >= 0.98 * rates[best],
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
    """Run the cases, and print each error and both means; then the advice."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each real run, about")
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--advice", type=int, default=10, help="chains of which advice is tried")
    parser.add_argument("--client-us", type=float, default=150.0, help="a request's, in process")
    parser.add_argument("--scale", type=int, nargs="*", help="numbers of devices; no real runs")
    parser.add_argument("--requests", type=int, default=10_000, help="of --scale")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.scale:
        print_rows([scale(number, options.requests) for number in options.scale], options.json)
        return
    rows = [row(name, options.seconds, options.client_us) for name in options.only]
    advised = [advice(i, options.seconds / 8) for i in range(options.advice)]
    errors = [key for key in rows[0] if key.endswith(" error")] if rows else []
    more: dict[str, Any] = {
        "signed mean errors": {k: round(statistics.fmean(r[k] for r in rows), 4) for k in errors},
        "absolute mean errors": {
            k: round(statistics.fmean(abs(r[k]) for r in rows), 4) for k in errors
        },
        "advice right": f"{sum(r['right'] for r in advised)} of {len(advised)}",
    }
    if options.json:
        print_rows(rows, True, advice=advised, **more)
        return
    print_rows(rows, False, **more)
    print_rows(advised, False)


if __name__ == "__main__":
    main()
