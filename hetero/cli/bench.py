"""``hetero bench``: latency percentiles, throughput, and stage times against predictions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click
import numpy as np
from rich.console import RenderableType

from hetero.cli.help_sections import SectionedCommand
from hetero.cli.inputs import input_options, input_shapes
from hetero.cli.model_command import ModelCommand, blob_options, render_subgraphs, subgraph_rows
from hetero.cli.option_types import FiniteFloat
from hetero.cli.options import model_options, observe_options, with_core
from hetero.cli.planning_options import planning_options
from hetero.cli.preprocessing_options import preprocess_options
from hetero.cli.signals import INTERRUPTED
from hetero.cli.terminal import print_note, print_result, progress
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.request.promise import FutureLike
from hetero.devices.request.response import Response
from hetero.formatting import nbytes_text
from hetero.measure.load_generator import keep_in_flight
from hetero.measure.stage_times import StageTimes, median_of
from hetero.report.run_profile import wire_links
from hetero.report.terminal_report import memory_table
from hetero.terminal_tables import Columns, ms, table

PERCENTILES: Final = (50, 90, 95, 99)
#: Stages and wires in the tables; ``--json`` lists all.
MAX_ROWS: Final = 40


@click.command(cls=SectionedCommand)
@model_options
@input_options
@preprocess_options
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=0),
    default=0,
    help="Requests in flight; 0 uses OPTIMAL_NUMBER_OF_INFER_REQUESTS.",
)
@click.option("--requests", "-n", type=click.IntRange(min=1), help="Stop after this many requests.")
@click.option(
    "--seconds",
    "-t",
    type=FiniteFloat(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Stop after this many seconds.",
)
@planning_options
@observe_options
@blob_options
@with_core(runs_model=True)
def bench(command: ModelCommand, jobs: int, requests: int | None, seconds: float) -> None:
    """Measure MODEL, or a blob: one request at a time, then with many requests in flight.

    Measurements of a plan by cost are compared with its prediction, stage by stage and wire by
    wire. Ctrl-C ends the run, prints the measurements so far and exits with 130.
    """
    compiled, values = command.compile_with_inputs(command.read_unless_blob(), with_states=True)
    jobs = jobs or compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    with progress("measuring one request at a time"):
        first = measure(compiled, values, 1, 1, seconds)
        alone = measure(compiled, values, 1, requests, seconds / 2)
    busy = None
    if not alone["interrupted"]:
        try:
            with progress(f"measuring with {jobs} in flight"):
                busy = measure(compiled, values, jobs, requests, seconds / 2)
        except KeyboardInterrupt:
            busy = None
    interrupted = busy is None or busy["interrupted"]
    shapes = input_shapes(compiled.partition.source, values)
    document = {
        "model": compiled.name,
        "device": command.device,
        **command.cache_fields(compiled),
        "first_s": first["latency_s"]["50"],
        "one_at_a_time": alone,
        "in_flight": None if busy is None else {"jobs": jobs, **busy},
        "subgraphs": subgraph_rows(compiled, shapes),
        "prediction": None if busy is None else prediction(compiled, alone, busy),
        "memory": command.core.measure_memory(
            compiled, shapes=input_shapes(compiled.partition.source, values), requests=jobs
        ),
        "interrupted": interrupted,
    }
    print_result("bench", document, _parts(compiled, shapes, document))
    if interrupted:
        print_note("hetero: interrupted")
        raise click.exceptions.Exit(INTERRUPTED)


def _parts(
    compiled: CompiledModel, shapes: Mapping[str, tuple[int, ...]], document: dict[str, Any]
) -> Iterator[RenderableType]:
    yield from render_subgraphs(compiled, shapes)
    alone, busy = document["one_at_a_time"], document["in_flight"]
    measured = ((1, alone), *([(busy["jobs"], busy)] if busy else []))
    rows = ({"jobs": jobs, **result["latency_s"], **result} for jobs, result in measured)
    summarize_metrics: Columns = {
        "in flight": "jobs",
        "requests": "requests",
        "per second": "{throughput_per_s:.1f}",
        **{f"p{p} ms": ms(str(p), 2) for p in PERCENTILES},
    }
    yield table(rows, summarize_metrics)
    for jobs, result in measured:
        if (replays := result["run_again"])["requests"]:
            yield (
                f"{jobs} in flight: requests replayed after a device loss: "
                f"{replays['requests']}; the longest took {replays['longest_s']:.2f} s of the "
                f"{result['elapsed_s']:.2f} s"
            )
    stages: Columns = {
        "stage": "stage",
        "device": "device",
        "run ms": ms("run_s", 2),
        "wait ms": ms("wait_s", 2),
        "busy": "{utilisation:.0%}",
    }
    yield table((busy or alone)["stages"][:MAX_ROWS], stages)
    yield (
        f"compiled in {document['compile_s'] * 1e3:.0f} ms; first inference "
        f"{document['first_s'] * 1e3:.1f} ms"
    )
    if document["prediction"] is not None:
        yield from render_prediction(document["prediction"])
    yield memory_table(document["memory"])
    if document["interrupted"]:
        yield "interrupted: measurements so far"


def measure(
    compiled: CompiledModel,
    values: Mapping[str, Any],
    jobs: int,
    requests: int | None,
    seconds: float,
) -> dict[str, Any]:
    """Keep `jobs` requests in flight until `requests` are done or `seconds` are over.

    Returns a document with latency percentiles, throughput, median run and wait times of each
    stage, median gaps between the stages of each wire, and the number of replayed requests. If
    Ctrl-C ended the measurement, ``interrupted`` is true.
    Raises KeyboardInterrupt if Ctrl-C came before the first request was done.
    """
    latencies_s: list[float] = []
    replays_s: list[float] = []
    times = StageTimes(wire_links(compiled))
    start_s = time.monotonic()

    def submit() -> FutureLike[Response]:
        began_s = time.monotonic()
        submission = compiled.submit(values)

        def record_replay(_: object) -> None:
            if any(line.attempt > 1 for line in submission.story()):
                replays_s.append(time.monotonic() - began_s)

        # Added before the callback that counts the request as done, so no replay is missed.
        submission.future.add_done_callback(record_replay)
        return submission.future

    def continues(count: int) -> bool:
        is_over = count > 0 and time.monotonic() - start_s >= seconds
        return count < (requests or 2**63) and not is_over

    def on_response(began_s: float, ended_s: float, response: Response) -> None:
        latencies_s.append(ended_s - began_s)
        times.add(began_s, ended_s, response.stage_timings)

    interrupted = False
    try:
        keep_in_flight(submit, jobs, continues, on_response)
    except KeyboardInterrupt:
        if not latencies_s:
            raise
        interrupted = True
    elapsed_s = time.monotonic() - start_s
    percentiles_s = np.percentile(latencies_s, PERCENTILES)
    return {
        "requests": len(latencies_s),
        "elapsed_s": elapsed_s,
        "throughput_per_s": len(latencies_s) / elapsed_s,
        "latency_s": {str(p): float(v) for p, v in zip(PERCENTILES, percentiles_s, strict=True)},
        "run_again": {"requests": len(replays_s), "longest_s": max(replays_s, default=0.0)},
        "stages": [
            {
                "stage": stage,
                "device": device,
                "run_s": median_of(run.run_s for run in runs.values()),
                "wait_s": median_of(times.waits_s[stage, device]),
                "utilisation": sum(run.run_s for run in runs.values()) / elapsed_s,
            }
            for (stage, device), runs in sorted(times.runs.items())
        ],
        "wires": [
            {"producer": pair[0], "consumer": pair[1], "gap_s": median_of(gaps_s)}
            for pair, gaps_s in sorted(times.gaps_s.items())
        ],
        "interrupted": interrupted,
    }


def prediction(
    compiled: CompiledModel, alone: dict[str, Any], busy: dict[str, Any]
) -> dict[str, Any] | None:
    """Compare measurements with the plan's prediction; None if the plan has none.

    `alone`, `busy`: results of `measure` for one request at a time, and for a full pipeline.
    """
    report = compiled.plan_report
    if report is None:
        return None
    numbers = compiled.stage_numbers
    run_times_s = {row["stage"]: row["run_s"] for row in busy["stages"]}
    # Transfers are measured one request at a time, so that they contain no wait in a queue.
    gaps = {(row["producer"], row["consumer"]): row["gap_s"] for row in alone["wires"]}
    wires: dict[tuple[int, int], list[Any]] = {}
    for wire in report.wires:
        stages = numbers[wire.replica]
        wires.setdefault((stages[wire.producer], stages[wire.consumer]), []).append(wire)
    return {
        "bound_s": report.bound_s,
        "period": _row(report.bottleneck_s, 1 / busy["throughput_per_s"]),
        "latency": _row(report.latency_s, alone["latency_s"]["50"]),
        "bottleneck": report.bottleneck,
        "cut_short": report.cut_short,
        "basis": report.basis,
        "stages": [
            {
                "stage": numbers[s.replica][s.index],
                "device": s.device,
                **_row(s.run_s, run_times_s.get(numbers[s.replica][s.index])),
            }
            for s in report.stages
        ],
        "wires": [
            {
                "producer": pair[0],
                "consumer": pair[1],
                "tensors": [w.tensor for w in group],
                "nbytes": sum(w.nbytes or 0 for w in group),
                **_row(max(w.seconds for w in group), gaps.get(pair)),
            }
            for pair, group in sorted(wires.items())
        ],
    }


def render_prediction(document: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield the tables of a document from `prediction`."""
    rows = {"time per request at full load": document["period"], "latency": document["latency"]}
    for row in document["stages"][:MAX_ROWS]:
        rows[f"stage {row['stage']} on {row['device']}"] = row
    for row in document["wires"][:MAX_ROWS]:
        size = nbytes_text(row["nbytes"])
        rows[f"wire {row['producer']} to {row['consumer']}, {size}"] = row
    columns: Columns = {
        "": "name",
        "predicted ms": ms("predicted_s"),
        "measured ms": ms("measured_s"),
        "measured / predicted": ("ratio", "{:.2f}".format),
    }
    yield table(({"name": name, **row} for name, row in rows.items()), columns)
    yield f"predicted by {document['basis']}"
    if document["cut_short"]:
        yield "the time limit ended the search for this plan; another run may find another plan"


def _row(predicted_s: float, measured_s: float | None) -> dict[str, float | None]:
    has_ratio = measured_s is not None and predicted_s > 0
    return {
        "predicted_s": predicted_s,
        "measured_s": measured_s,
        "ratio": measured_s / predicted_s if has_ratio and measured_s is not None else None,
    }
