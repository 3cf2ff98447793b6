"""``hetero bench``: latency percentiles, throughput and per-stage time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from rich.console import RenderableType

from hetero.cli.inputs import input_options
from hetero.cli.job import Job, blob_options, subgraph_parts, subgraph_rows
from hetero.cli.measuring import PERCENTILES, SHOWN, measure, prediction, prediction_parts
from hetero.cli.option_kinds import Finite
from hetero.cli.options import model_options, watch_options, with_core
from hetero.cli.planning import planning_options
from hetero.cli.preprocessing import preprocess_options
from hetero.cli.signals import INTERRUPTED
from hetero.cli.terminal import progress, remark, tell
from hetero.compile.compiled_model import CompiledModel
from hetero.report.text import Columns, ms, table


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
