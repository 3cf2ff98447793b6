"""``hetero run``: run a model once, compare where an expected output is known, print latency."""

from __future__ import annotations

import math
import statistics
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import click
import numpy as np
from rich.console import RenderableType

from hetero.cli.inputs import input_options
from hetero.cli.model_command import Job, blob_options, subgraph_parts, subgraph_rows
from hetero.cli.options import model_options, watch_options, with_core
from hetero.cli.output_files import output_file
from hetero.cli.planning_options import planning_options, plans_by_cost
from hetero.cli.preprocessing_options import preprocess_options
from hetero.cli.run_profile import expected, profile_options, profile_parts, profiled, write_page
from hetero.cli.terminal import progress, remark, tell
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.model.light_models import PREFIX, TIED, light_model_outputs
from hetero.devices.model.model import Model
from hetero.formatting import counted
from hetero.report.run_profile import TimedRequest, build_profile
from hetero.scheduler.formats.publish import publish
from hetero.terminal_tables import Columns, Rows, table

#: ONNX's own tolerances for the light models (`onnx.backend.test.loader`).
RTOL, ATOL = 1e-3, 1e-5
#: Requests timed after the first.
REPEATS = 10


@click.command()
@model_options
@planning_options
@input_options
@preprocess_options
@profile_options
@output_file("--output", "-o", help="Write the outputs there, in numpy's .npz format.")
@watch_options
@blob_options
@with_core(runs_model=True)
def run(job: Job, profile: bool, html: Path | None, output: Path | None) -> None:
    """Run MODEL over the devices; light models are checked against onnx's own outputs.

    MODEL may be a blob that `hetero compile -o` wrote: it runs on the devices it was compiled for.
    """
    # Bad input is reported before anything starts.
    job.config, costs = profiled(job.config, profile, html)
    source = job.read_unless_blob()
    if source is None and (html or costs):
        raise click.UsageError("--html and --costs are for models; a blob is placed already.")
    compiled, values = job.compile_with_inputs(source, with_states=False)
    idle = {d.name for d in job.core.device_descriptors if d.plugin == "NULL"}
    if idle := idle.intersection(s.device for s in compiled.subgraphs):
        remark(f"{', '.join(sorted(idle))} computes nothing: the outputs are not results")
    request = compiled.create_infer_request()
    timed = []
    with progress("running"):
        for _ in range(1 + REPEATS):
            request.reset_state()
            began_s = time.monotonic()
            results = request.infer(values)
            timed.append(TimedRequest(began_s, time.monotonic() - began_s, request.times))
    left = _left(job, compiled, source)
    times = [one.latency_s for one in timed]
    outputs = results.by_name()
    generated = not job.inputs and not job.shapes and not job.preprocessing
    check = _compare(job.model, list(results.to_tuple())) if generated else None
    if output:
        publish(output, lambda file: _save(file, outputs))
        kind = "" if output.suffix == ".npz" else ", which is an .npz archive"
        remark(f"wrote {output}{kind}")
    document: dict[str, Any] = {
        "model": compiled.name,
        "subgraphs": subgraph_rows(compiled),
        "outputs": [_row(name, value) for name, value in outputs.items()],
        "check": check,
        "left": left,
        "first_s": times[0],
        "median_s": statistics.median(times[1:]),
    }
    if profile:
        plan = expected(job, compiled, source, costs)
        document["profile"] = build_profile(compiled, timed[1:], plan)
        if html and source is not None:
            write_page(html, job, source, plan, document["profile"])
    tell("run", document, _parts(compiled, document, outputs))
    if html:
        remark(f"wrote {html}")
    if check and not check["matches"]:
        raise click.exceptions.Exit(1)


def _parts(
    compiled: CompiledModel, document: Mapping[str, Any], outputs: Mapping[str, Any]
) -> Iterator[RenderableType]:
    yield from subgraph_parts(compiled)
    if document["left"]:
        yield document["left"]
    yield _output_table(outputs)
    if "profile" in document:
        yield from profile_parts(document["profile"])
    if check := document["check"]:
        yield (
            f"{'matches' if check['matches'] else 'DIFFERS FROM'} onnx's expected output: largest "
            f"difference {check['max_difference']:.2g} (rtol {RTOL:g}, atol {ATOL:g})"
        )
    first_ms, median_ms = document["first_s"] * 1e3, document["median_s"] * 1e3
    yield f"latency: first {first_ms:.1f} ms, then median {median_ms:.1f} ms of {REPEATS}"


def _left(job: Job, compiled: CompiledModel, source: Model | None) -> str:
    """Return what left the first device of a list, and which options would keep it there.

    It is not asked again for what is cached.
    """
    cached = compiled.get_property("LOADED_FROM_CACHE")
    if source is None or cached or plans_by_cost(job.config):
        return ""
    support = job.core.query_model(source, job.device, job.config, affinity=job.pins or None)
    preferred = next((name for refused in support.refusals.values() for name in refused), "")
    left = {
        name: refusal
        for name, device in support.devices.items()
        if device != preferred
        and (refusal := support.refusals.get(name, {}).get(preferred)) is not None
    }
    if not left:
        return ""
    takers = dict.fromkeys(support.devices[name] for name in left)
    remedies = Counter(refusal.remedy for refusal in left.values() if refusal.remedy)
    kept = "".join(
        f"; -c {remedy} keeps {'them' if count == len(left) else count}"
        for remedy, count in remedies.most_common()
    )
    name, refusal = next(iter(left.items()))
    operator = source.nodes[source.index_of[name]].op_type
    return (
        f"{counted(len(left), 'node')} left {preferred} for {', '.join(takers)}, as {name!r} "
        f"({operator}): {refusal.message}{kept}"
    )


def _compare(model: str, results: list[Any]) -> dict[str, Any] | None:
    """Compare with onnx's outputs; None where there are none, or where rounding decides them."""
    if not model.startswith(PREFIX):
        return None
    pairs = list(zip(results, light_model_outputs(model), strict=True))
    matches = all(
        got.shape == want.shape and np.allclose(got, want, RTOL, ATOL) for got, want in pairs
    )
    if not matches and model in TIED:
        remark(f"{model} ties its classes, so that rounding decides its output: not compared")
        return None
    return {
        "matches": matches,
        "max_difference": max(
            float(np.max(np.abs(got - want))) if got.shape == want.shape else math.inf
            for got, want in pairs
        ),
    }


def _save(file: BinaryIO, outputs: Mapping[str, Any]) -> None:
    """Write arrays as numpy.savez does, under any name; a sequence's elements one by one."""
    arrays: dict[str, Any] = {}
    for name, value in outputs.items():
        if isinstance(value, list | tuple):
            arrays |= {f"{name}[{i}]": item for i, item in enumerate(value)}
        else:
            arrays[name] = value
    with zipfile.ZipFile(file, "w") as archive:
        for name, value in arrays.items():
            array = np.asarray(value)
            # Text is an array of objects, which would be pickled.
            array = array.astype(str) if array.dtype == object else array
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def _row(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, np.ndarray):
        return {"name": name, "dtype": str(value.dtype), "shape": list(value.shape)}
    shape = [len(value)] if isinstance(value, list | tuple) else None
    return {"name": name, "dtype": type(value).__name__, "shape": shape}


def _output_table(outputs: Mapping[str, Any]) -> Rows:
    def head(value: Any) -> str:
        if not isinstance(value, np.ndarray):
            return str(value)[:60]
        return np.array2string(value.ravel()[:4], precision=4, separator=", ")

    rows = ({**_row(name, value), "head": head(value)} for name, value in outputs.items())
    columns: Columns = {
        "output": "name",
        "type": "dtype",
        "shape": "shape",
        "first values": "head",
    }
    return table(rows, columns, wraps=("output", "first values"))
