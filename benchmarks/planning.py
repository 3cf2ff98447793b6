"""Plans by cost on real devices: placement by priority, one replica of a plan, and replicas.

The model is profiled once. The plan from this profile runs briefly, the measured subgraphs correct
the costs, and the model is planned again. Then the placements are measured in turns with many
requests in flight. The output has requests per second, the ratio to priority, and the prediction
error.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hetero
from benchmarks.tables import print_rows
from hetero.cli.bench import measure
from hetero.cli.inputs import model_inputs
from hetero.planning.cost.cost_file import write_costs

#: Placement -> properties.
WAYS: dict[str, dict[str, Any]] = {
    "priority": {"MODEL_DISTRIBUTION_POLICY": "PRIORITY"},
    "one replica": {
        "MODEL_DISTRIBUTION_POLICY": "AUTO",
        "PERFORMANCE_HINT": "THROUGHPUT",
        "REPLICAS": 1,
    },
    "auto": {"MODEL_DISTRIBUTION_POLICY": "AUTO", "PERFORMANCE_HINT": "THROUGHPUT"},
}


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Profile, compile each placement, and measure them in turns."""
    base = {"INFERENCE_NUM_THREADS": options.threads, "PLAN_SECONDS": options.plan_seconds}
    with ExitStack() as stack:
        core = stack.enter_context(hetero.Core(options.executor, devices={"ORT": 2}))
        model = core.read_model(options.model)
        values = model_inputs(options.model, model, (), {})
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path = Path(folder) / "costs.json"
        costs = core.profile_model(
            model, options.device, base, inputs=values, seconds=options.profile_seconds
        )
        write_costs(costs, path)
        compiled: dict[str, hetero.CompiledModel] = {}
        for name, way in WAYS.items():
            config = {**base, **way, "COST_FILE": str(path)}
            compiled[name] = stack.enter_context(core.compile_model(model, options.device, config))
        periods: dict[str, list[float]] = {name: [] for name in WAYS}
        for turn in range(options.rounds + 1):
            for name, one in compiled.items():
                seconds = options.seconds if turn else options.seconds / 3
                measurement = measure(one, values, options.jobs, None, seconds)
                if turn:  # the first turn is a warm-up
                    periods[name].append(1e3 / measurement["throughput_per_s"])
        rows = []
        for name, one in compiled.items():
            report = one.plan_report
            period = statistics.median(periods[name])
            predicted = report.bottleneck_s * 1e3 if report else None
            rows.append(
                {
                    "way": name,
                    "per_second": 1e3 / period,
                    "period_ms": period,
                    "speedup": statistics.median(periods["priority"]) / period,
                    "predicted_ms": predicted,
                    "measured_by_predicted": period / predicted if predicted else None,
                    "bound_ms": report.bound_s * 1e3 if report else None,
                    "subgraphs": [[s.device, len(s.node_names)] for s in one.subgraphs],
                    "periods_ms": periods[name],
                }
            )
        return {
            "model": model.name,
            "device": options.device,
            "executor": options.executor,
            "load": {
                name: device.concurrent_load.time_factor for name, device in costs.devices.items()
            },
            "rows": rows,
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=__doc__)
    parser.add_argument("--model", default="light:densenet121")
    parser.add_argument("--device", default="HETERO:ORT.0,ORT.1,CPU")
    parser.add_argument("--executor", choices=("ray", "inprocess"), default="ray")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="duration per placement and round"
    )
    parser.add_argument("--profile-seconds", type=float, default=20.0)
    parser.add_argument("--plan-seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    document = compare(options)
    print_rows(document.pop("rows"), options.json, **document)


if __name__ == "__main__":
    main()
