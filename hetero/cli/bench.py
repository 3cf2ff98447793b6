"""``hetero bench``: latency percentiles, throughput and times of stages, beside a prediction."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click
import numpy as np
from rich.console import RenderableType

from hetero.cli.inputs import input_options
from hetero.cli.model_command import Job, blob_options, subgraph_parts, subgraph_rows
from hetero.cli.option_types import Finite
from hetero.cli.options import model_options, watch_options, with_core
from hetero.cli.planning_options import planning_options
from hetero.cli.preprocessing_options import preprocess_options
from hetero.cli.signals import INTERRUPTED
from hetero.cli.terminal import progress, remark, tell
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.request.promise import FutureLike
from hetero.devices.request.response import Response
from hetero.formatting import nbytes_text
from hetero.measure.load_generator import keep_in_flight
from hetero.measure.stage_times import StageTimes, median_of
from hetero.report.run_profile import wire_links
from hetero.terminal_tables import Columns, ms, table

PERCENTILES: Final = (50, 90, 95, 99)
#: Stages and wires that are shown; ``--json`` has all.
SHOWN: Final = 40


@click.command()
@model_options
@input_options
@preprocess_options
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=0),
    default=0,
    help="Requests in flight; 0 lets the model choose.",
)
@click.option("--requests", "-n", type=click.IntRange(min=1), help="Stop after this many requests.")
@click.option(
    "--seconds",
    "-t",
    type=Finite(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Stop after this many seconds.",
)
@planning_options
@watch_options
@blob_options
@with_core(runs_model=True)
def bench(job: Job, jobs: int, requests: int | None, seconds: float) -> None:
    """Measure MODEL, or a blob: one request at a time, then with many in flight.

    A plan by cost is measured against its prediction, stage by stage and wire by wire. Ctrl-C ends
    it with the figures so far and exit code 1.
    """
    compiled, values = job.compile_with_inputs(job.read_unless_blob(), with_states=True)
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
    document = {
        "model": compiled.name,
        "device": job.device,
        "compile_s": job.compile_s,
        "first_s": first["latency_s"]["50"],
        "one_at_a_time": alone,
        "in_flight": None if busy is None else {"jobs": jobs, **busy},
        "subgraphs": subgraph_rows(compiled),
        "prediction": None if busy is None else prediction(compiled, alone, busy),
        "interrupted": interrupted,
    }
    tell("bench", document, _parts(compiled, document))
    if interrupted:
        remark("hetero: interrupted")
        raise click.exceptions.Exit(INTERRUPTED)


def _parts(compiled: CompiledModel, document: dict[str, Any]) -> Iterator[RenderableType]:
    yield from subgraph_parts(compiled)
    alone, busy = document["one_at_a_time"], document["in_flight"]
    measured = ((1, alone), *([(busy["jobs"], busy)] if busy else []))
    rows = ({"jobs": jobs, **result["latency_s"], **result} for jobs, result in measured)
    figures: Columns = {
        "in flight": "jobs",
        "requests": "requests",
        "per second": "{throughput_per_s:.1f}",
        **{f"p{p} ms": ms(str(p), 2) for p in PERCENTILES},
    }
    yield table(rows, figures)
    for jobs, result in measured:
        if (again := result["run_again"])["requests"]:
            yield (
                f"{jobs} in flight: requests lost with a device and run again: "
                f"{again['requests']}; the longest took {again['longest_s']:.2f} s of the "
                f"{result['elapsed_s']:.2f} s"
            )
    stages: Columns = {
        "stage": "stage",
        "device": "device",
        "runs ms": ms("run_s", 2),
        "waits ms": ms("wait_s", 2),
        "busy": "{utilisation:.0%}",
    }
    yield table((busy or alone)["stages"][:SHOWN], stages)
    yield (
        f"compiled in {document['compile_s'] * 1e3:.0f} ms; first inference "
        f"{document['first_s'] * 1e3:.1f} ms"
    )
    if document["prediction"] is not None:
        yield from prediction_parts(document["prediction"])
    if document["interrupted"]:
        yield "interrupted: these are the figures so far"


def measure(
    compiled: CompiledModel,
    values: Mapping[str, Any],
    jobs: int,
    requests: int | None,
    seconds: float,
) -> dict[str, Any]:
    """Keep `jobs` requests in flight until `requests` are done or `seconds` are over.

    Returns: medians of each stage's waits and runs, and from the end of one to the start of another
        where wires are; how many requests were lost and run again, and how long the longest took.
        ``interrupted`` says that Ctrl-C ended it.
    Raises KeyboardInterrupt: Ctrl-C came before any request was done.
    """
    latencies_s: list[float] = []
    again_s: list[float] = []
    times = StageTimes(wire_links(compiled))
    start_s = time.monotonic()

    def submit() -> FutureLike[Response]:
        began_s = time.monotonic()
        made = compiled.submit(values)

        def look_at(_: object) -> None:
            if any(line.attempt > 1 for line in made.story()):
                again_s.append(time.monotonic() - began_s)

        # Before the callback that counts it as done: no request is looked at too late.
        made.future.add_done_callback(look_at)
        return made.future

    def more(sent: int) -> bool:
        late = sent > 0 and time.monotonic() - start_s >= seconds
        return sent < (requests or 2**63) and not late

    def answered(began_s: float, ended_s: float, answer: Response) -> None:
        latencies_s.append(ended_s - began_s)
        times.add(began_s, ended_s, answer.stage_timings)

    interrupted = False
    try:
        keep_in_flight(submit, jobs, more, answered)
    except KeyboardInterrupt:
        if not latencies_s:
            raise
        interrupted = True
    elapsed_s = time.monotonic() - start_s
    cuts = np.percentile(latencies_s, PERCENTILES)
    return {
        "requests": len(latencies_s),
        "elapsed_s": elapsed_s,
        "throughput_per_s": len(latencies_s) / elapsed_s,
        "latency_s": {str(p): float(v) for p, v in zip(PERCENTILES, cuts, strict=True)},
        "run_again": {"requests": len(again_s), "longest_s": max(again_s, default=0.0)},
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
    """Compare a plan's prediction, where it has one, with what was measured.

    `alone`, `busy`: what `measure` gave for one request at a time, and for a full pipeline.
    """
    report = compiled.plan_report
    if report is None:
        return None
    numbers = compiled.stage_numbers
    ran = {row["stage"]: row["run_s"] for row in busy["stages"]}
    # Waiting in queues is not a transfer: wires are looked at one request at a time.
    gaps = {(row["producer"], row["consumer"]): row["gap_s"] for row in alone["wires"]}
    wires: dict[tuple[int, int], list[Any]] = {}
    for wire in report.wires:
        mine = numbers[wire.variant]
        wires.setdefault((mine[wire.producer], mine[wire.consumer]), []).append(wire)
    return {
        "bound_s": report.bound_s,
        "period": _row(report.bottleneck_s, 1 / busy["throughput_per_s"]),
        "latency": _row(report.latency_s, alone["latency_s"]["50"]),
        "bottleneck": report.bottleneck,
        "cut_short": report.cut_short,
        "basis": report.basis,
        "stages": [
            {
                "stage": numbers[s.variant][s.index],
                "device": s.device,
                **_row(s.run_s, ran.get(numbers[s.variant][s.index])),
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


def prediction_parts(document: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield `prediction`'s comparison for people."""
    rows = {"between answers": document["period"], "one request": document["latency"]}
    for row in document["stages"][:SHOWN]:
        rows[f"stage {row['stage']} on {row['device']}"] = row
    for row in document["wires"][:SHOWN]:
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
        yield "the time limit ended the search of this plan: another run may find another plan"


def _row(predicted_s: float, measured_s: float | None) -> dict[str, float | None]:
    known = measured_s is not None and predicted_s > 0
    return {
        "predicted_s": predicted_s,
        "measured_s": measured_s,
        "ratio": measured_s / predicted_s if known and measured_s is not None else None,
    }
