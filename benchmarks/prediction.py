"""Accuracy of predictions: measured over predicted latency, and time per request at full load.

Each model is profiled and placed on one device, in halves on two devices, and by a plan. Each
placement is measured with one request at a time and with many in flight. This is repeated several
times; the output has medians, and ratios of measured to predicted times.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hetero
from benchmarks import small_networks
from benchmarks.tables import names, print_rows
from hetero.cli.bench import measure, prediction
from hetero.cli.inputs import model_inputs
from hetero.devices.model.model import Model
from hetero.planning.cost.cost_file import write_costs
from hetero.planning.cost.costs import Costs


def subject(core: hetero.Core, name: str) -> tuple[Model, Mapping[str, Any]]:
    """Return a model with inputs: ``gpt``, ``bert``, or any model of ``hetero bench``."""
    if name in ("gpt", "bert"):
        model = {"gpt": small_networks.gpt, "bert": small_networks.bert}[name]
        model = core.read_model(model(layers=4, width=192))
        length = 64 if name == "gpt" else 32
        return model, {"ids": np.arange(length, dtype=np.int64)[None]}
    model = core.read_model(name)
    return model, model_inputs(name, model, (), {})


def halves(model: Model, costs: Costs, devices: Sequence[str]) -> dict[str, str]:
    """Place the first half of the model's time on the first device, the rest on the second."""
    times = costs.devices[devices[0]].nodes
    ordered = [n for n in model.node_names if n in times]
    done = list(itertools.accumulate(times[n].seconds for n in ordered))
    return {n: devices[d > done[-1] / 2] for n, d in zip(ordered, done, strict=True)}


def compare(
    core: hetero.Core, name: str, devices: Sequence[str], seconds: float, jobs: int, folder: Path
) -> dict[str, dict[str, Any]]:
    """Profile and measure once; return predictions with measurements by placement."""
    model, values = subject(core, name)
    device = f"HETERO:{','.join(devices)}"
    config = {
        "INFERENCE_NUM_THREADS": 1,
        "PLAN_SECONDS": 1,
        "PERFORMANCE_HINT": "THROUGHPUT",
        "COST_FILE": str(folder / "costs.json"),
    }
    costs = core.profile_model(model, device, config, inputs=values, seconds=8 * seconds)
    write_costs(costs, config["COST_FILE"])
    ways = {
        "one device": dict.fromkeys(model.node_names, devices[0]),
        "halves": halves(model, costs, devices),
        "planned": None,
    }
    comparisons = {}
    for way, pins in ways.items():
        with core.compile_model(model, device, config, affinity=pins) as compiled:
            measure(compiled, values, jobs, None, seconds / 4)
            alone = measure(compiled, values, 1, None, seconds / 2)
            busy = measure(compiled, values, jobs, None, seconds)
            comparisons[way] = prediction(compiled, alone, busy) or {}
    return comparisons


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each executor, model and placement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prediction", description=__doc__)
    parser.add_argument("--executors", default="inprocess,ray")
    parser.add_argument("--devices", default="ORT.0,ORT.1", help="two devices")
    parser.add_argument("--models", default="gpt,bert,light:squeezenet,light:resnet50")
    parser.add_argument("--jobs", type=int, default=8, help="requests in flight at full load")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of each measurement")
    parser.add_argument(
        "--rounds", type=int, default=3, help="repetitions of profiling and measuring"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    devices = names(options.devices)
    rows = []
    for executor in names(options.executors):
        with (
            hetero.Core(executor, devices=Counter(d.partition(".")[0] for d in devices)) as core,
            tempfile.TemporaryDirectory() as folder,
        ):
            for name in names(options.models):
                rounds = [
                    compare(core, name, devices, options.seconds, options.jobs, Path(folder))
                    for _ in range(options.rounds)
                ]
                rows += [
                    {
                        "executor": executor,
                        "model": name,
                        "way": way,
                        **row([r[way] for r in rounds]),
                    }
                    for way in rounds[0]
                ]
    print_rows(rows, options.json)


def row(comparisons: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return medians over several predictions and measurements."""
    summarize_metrics: dict[str, Any] = {"stages": len(comparisons[0]["stages"])}
    for what in ("period", "latency"):
        for part, factor in (("predicted_s", 1e3), ("measured_s", 1e3), ("ratio", 1.0)):
            value = factor * statistics.median(one[what][part] for one in comparisons)
            summarize_metrics[f"{what} {part.replace('_s', ' ms')}"] = value
    return summarize_metrics


if __name__ == "__main__":
    main()
