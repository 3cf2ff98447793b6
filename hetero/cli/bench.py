"""``hetero bench``: latency percentiles, throughput and per-stage time."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from hetero.cli.compile import print_subgraphs, subgraph_rows
from hetero.cli.inputs import model_inputs, parse_shapes
from hetero.cli.options import (
    OUT,
    affinity_argument,
    model_options,
    print_json,
    progress,
    start,
    with_core,
)
from hetero.cli.plan import plan_config, plan_options
from hetero.cli.prediction import (
    prediction,
    print_prediction,
    stage_measurements,
    wire_links,
)
from hetero.compiled_model import CompiledModel
from hetero.core import Core
from hetero.planning.cost.cost_file import write_costs
from hetero.planning.cost.feedback import learn
from scheduler.executor import Answer

PERCENTILES = (50, 90, 95, 99)


@click.command()
@model_options
@click.option("--input", "-i", "inputs", multiple=True, metavar="[NAME=]FILE",
              help="A .npy, .npz or .pb file; inputs without one are generated.")  # fmt: skip
@click.option("--shape", "shapes", multiple=True, metavar="NAME:1,3,...", callback=parse_shapes,
              help="The shape of a generated input.")  # fmt: skip
@click.option("--jobs", "-j", type=click.IntRange(min=0), default=0,
              help="Requests in flight; 0 lets the model choose.")  # fmt: skip
@click.option("--requests", "-n", type=click.IntRange(min=1), help="Stop after so many requests.")
@click.option("--seconds", "-t", type=click.FloatRange(min=0, min_open=True), default=10.0,
              show_default=True, help="Stop after so long.")  # fmt: skip
@plan_options
@click.option("--update-costs", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A cost file that learns from the subgraphs measured.")  # fmt: skip
@with_core
def bench(
    core: Core,
    model: str,
    device: str,
    pins: tuple[str, ...],
    config: dict[str, Any],
    inputs: tuple[str, ...],
    shapes: dict[str, tuple[int, ...]],
    jobs: int,
    requests: int | None,
    seconds: float,
    update_costs: Path | None,
    as_json: bool,
    **planning: Any,
) -> None:
    """Measure MODEL: one request at a time, then with many in flight.

    A plan by cost is measured against its prediction, stage by stage and wire by wire.
    """
    config = plan_config(config, planning)
    source = core.read_model(model)
    values = model_inputs(model, source, inputs, shapes)
    start(core)
    began = time.perf_counter()
    with progress(core, f"compiling {source.name}"):
        compiled = core.compile_model(source, device, config, affinity=affinity_argument(pins))
    compile_ms = (time.perf_counter() - began) * 1e3
    known = None
    if update_costs is not None:
        # Before the long part: a file that does not fit is refused at once.
        known = core.read_costs(update_costs, source, device, config)
    jobs = jobs or compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    with progress(core, "measuring one request at a time"):
        first = measure(compiled, values, 1, 1, seconds)
        alone = measure(compiled, values, 1, requests, seconds / 2)
    with progress(core, f"measuring {jobs} requests in flight"):
        busy = measure(compiled, values, jobs, requests, seconds / 2)
    document = {
        "model": source.name,
        "device": device,
        "compile_ms": compile_ms,
        "first_inference_ms": first["latency_ms"]["50"],
        "one_at_a_time": alone,
        "in_flight": {"jobs": jobs, **busy},
        "subgraphs": subgraph_rows(compiled),
        "prediction": prediction(compiled, alone, busy),
    }
    if update_costs is not None and known is not None:
        costs = learn(known, stage_measurements(compiled, alone, busy))
        write_costs(costs, update_costs)
    if as_json:
        print_json(document)
        return
    print_subgraphs(compiled)
    _print(document)
    print_prediction(document["prediction"])
    if update_costs is not None:
        OUT.print(f"updated {update_costs}")


def measure(
    compiled: CompiledModel,
    values: dict[str, Any],
    jobs: int,
    requests: int | None,
    seconds: float,
) -> dict[str, Any]:
    """Keep `jobs` requests in flight until `requests` are done or `seconds` are over.

    Returns
    -------
    dict
        Count, seconds, requests a second, latency percentiles in milliseconds; for each stage the
        median time it waited and ran; for each pair of stages with wires the median time from the
        end of the one to the start of the other, which holds on one node only.
    """
    free = threading.Semaphore(jobs)
    lock = threading.Lock()
    latencies: list[float] = []
    errors: list[BaseException] = []
    stages: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    gaps: dict[tuple[int, int], list[float]] = defaultdict(list)
    links = wire_links(compiled)

    def finished(began: float, future: Future[Answer]) -> None:
        now = time.perf_counter()
        with lock:
            if error := future.exception():
                errors.append(error)
            else:
                latencies.append(now - began)
                runs = {run.stage: run for run in future.result().stage_runs}
                for run in runs.values():
                    stages[run.stage, run.device].append((run.queued_s, run.run_s))
                for producer, consumer in links:
                    if producer in runs and consumer in runs:
                        gap = runs[consumer].started_s - runs[producer].ended_s
                        gaps[producer, consumer].append(gap)
        free.release()

    start_s = time.perf_counter()
    sent = 0
    while sent < (requests or 2**63) and time.perf_counter() - start_s < seconds and not errors:
        free.acquire()
        began = time.perf_counter()
        submission = compiled.submit(values)
        submission.future.add_done_callback(partial(finished, began))
        sent += 1
    for _ in range(jobs):
        free.acquire()
    elapsed = time.perf_counter() - start_s
    if errors:
        raise errors[0]
    cuts = np.percentile(np.array(latencies) * 1e3, PERCENTILES)
    return {
        "requests": len(latencies),
        "seconds": elapsed,
        "throughput_per_s": len(latencies) / elapsed,
        "latency_ms": {str(p): float(v) for p, v in zip(PERCENTILES, cuts, strict=True)},
        "stages": [
            {
                "stage": stage,
                "device": device,
                "run_ms": float(np.median([r for _, r in times]) * 1e3),
                "queued_ms": float(np.median([q for q, _ in times]) * 1e3),
                "utilisation": sum(r for _, r in times) / elapsed,
            }
            for (stage, device), times in sorted(stages.items())
        ],
        "wires": [
            {"producer": producer, "consumer": consumer, "gap_ms": float(np.median(times) * 1e3)}
            for (producer, consumer), times in sorted(gaps.items())
        ],
    }


def _print(document: dict[str, Any]) -> None:
    heads = [f"p{p} ms" for p in PERCENTILES]
    table = Table("in flight", "requests", "per second", *heads)
    busy = document["in_flight"]
    for jobs, result in ((1, document["one_at_a_time"]), (busy["jobs"], busy)):
        cells = [f"{result['latency_ms'][str(p)]:.2f}" for p in PERCENTILES]
        rate = f"{result['throughput_per_s']:.1f}"
        table.add_row(str(jobs), str(result["requests"]), rate, *cells)
    OUT.print(table)
    table = Table("stage", "device", "runs ms", "waits ms", "busy")
    for row in busy["stages"][:40]:
        table.add_row(
            str(row["stage"]),
            row["device"],
            f"{row['run_ms']:.2f}",
            f"{row['queued_ms']:.2f}",
            f"{row['utilisation']:.0%}",
        )
    OUT.print(table)
    OUT.print(
        f"compiled in {document['compile_ms']:.0f} ms; first inference "
        f"{document['first_inference_ms']:.1f} ms"
    )
