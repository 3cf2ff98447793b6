"""``hetero run``: run a model, compare with the expected output if there is one, print latency."""

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

from hetero.cli.help_sections import SectionedCommand
from hetero.cli.inputs import input_options, input_shapes
from hetero.cli.model_command import ModelCommand, blob_options, render_subgraphs, subgraph_rows
from hetero.cli.options import model_options, observe_options, with_core
from hetero.cli.output_files import output_file
from hetero.cli.planning_options import planning_options, plans_by_cost
from hetero.cli.preprocessing_options import preprocess_options
from hetero.cli.run_profile import (
    predicted_plan,
    profile_config,
    profile_options,
    render_profile,
    write_html,
)
from hetero.cli.terminal import print_note, print_result, progress
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.model.light_models import EQUAL_SCORES, PREFIX, light_model_outputs
from hetero.devices.model.model import Model
from hetero.formatting import count_text
from hetero.report.run_profile import TimedRequest, build_profile
from hetero.scheduler.formats.publish import publish
from hetero.scheduler.types.device_names import HETERO, parse_device
from hetero.terminal_tables import Columns, Rows, table

#: ONNX's own tolerances for the light models (`onnx.backend.test.loader`).
RTOL, ATOL = 1e-3, 1e-5
#: Requests timed after the first.
REPEATS = 10


@click.command(cls=SectionedCommand)
@model_options
@planning_options
@input_options
@preprocess_options
@profile_options
@output_file("--output", "-o", help="Write the outputs to this file, in numpy's .npz format.")
@observe_options
@blob_options
@with_core(runs_model=True)
def run(command: ModelCommand, profile: bool, html: Path | None, output: Path | None) -> None:
    """Run MODEL on the devices; outputs of light models are compared with onnx's reference.

    MODEL may be a blob from `hetero compile -o`; it runs on the devices it was compiled for.
    """
    # Invalid input is reported before any device starts.
    command.config, costs = profile_config(command.config, profile, html)
    source = command.read_unless_blob()
    if source is None and (html or costs):
        raise click.UsageError("--html and --costs need a model; a blob's placement is fixed.")
    compiled, values = command.compile_with_inputs(source, with_states=False)
    null_devices = {d.name for d in command.core.device_descriptors if d.plugin == "NULL"}
    if null_devices := null_devices.intersection(s.device for s in compiled.subgraphs):
        print_note(
            f"{', '.join(sorted(null_devices))} computes nothing: the outputs are not results"
        )
    request = compiled.create_infer_request()
    timed_requests = []
    with progress("running"):
        for _ in range(1 + REPEATS):
            request.reset_state()
            began_s = time.monotonic()
            results = request.infer(values)
            latency_s = time.monotonic() - began_s
            timed_requests.append(TimedRequest(began_s, latency_s, request.times))
    fallback = _fallback_line(command, compiled, source)
    latencies_s = [timed.latency_s for timed in timed_requests]
    outputs = results.by_name()
    uses_light_inputs = not command.inputs and not command.shapes and not command.preprocessing
    check = _compare(command.model, list(results.to_tuple())) if uses_light_inputs else None
    if output:
        publish(output, lambda file: _save(file, outputs))
        file_format = "" if output.suffix == ".npz" else ", an .npz archive"
        print_note(f"wrote {output}{file_format}")
    shapes = input_shapes(compiled.partition.source, values)
    document: dict[str, Any] = {
        "model": compiled.name,
        **command.cache_fields(compiled),
        "subgraphs": subgraph_rows(compiled, shapes),
        "outputs": [_row(name, value) for name, value in outputs.items()],
        "check": check,
        "left": fallback,
        "first_s": latencies_s[0],
        "median_s": statistics.median(latencies_s[1:]),
    }
    if profile:
        plan = predicted_plan(command, compiled, source, costs)
        document["profile"] = build_profile(compiled, timed_requests[1:], plan)
        document["profile"]["memory"] = command.core.measure_memory(
            compiled, shapes=input_shapes(compiled.partition.source, values)
        )
        if html and source is not None:
            write_html(html, command, source, plan, document["profile"])
    print_result("run", document, _parts(compiled, shapes, document, outputs))
    if html:
        print_note(f"wrote {html}")
    if check and not check["matches"]:
        raise click.exceptions.Exit(1)


def _parts(
    compiled: CompiledModel,
    shapes: Mapping[str, tuple[int, ...]],
    document: Mapping[str, Any],
    outputs: Mapping[str, Any],
) -> Iterator[RenderableType]:
    yield from render_subgraphs(compiled, shapes)
    if document["left"]:
        yield document["left"]
    yield _output_table(outputs)
    if "profile" in document:
        yield from render_profile(document["profile"])
    if check := document["check"]:
        yield (
            f"{'matches' if check['matches'] else 'DIFFERS FROM'} onnx's expected output: largest "
            f"difference {check['max_difference']:.2g} (rtol {RTOL:g}, atol {ATOL:g})"
        )
    first_ms, median_ms = document["first_s"] * 1e3, document["median_s"] * 1e3
    yield f"latency: first {first_ms:.1f} ms, then median {median_ms:.1f} ms of {REPEATS}"


def _fallback_line(command: ModelCommand, compiled: CompiledModel, source: Model | None) -> str:
    """Return a line about nodes that the preferred device refused, and options that avoid it.

    It is empty for a model from the cache, which is not queried again.
    """
    cached = compiled.get_property("LOADED_FROM_CACHE")
    if source is None or cached or plans_by_cost(command.config):
        return ""
    device = command.device
    if parse_device(device).hetero:  # without unusable devices, which would be reported again
        device = f"{HETERO}:" + ",".join(compiled.get_property("MULTI_DEVICE_PRIORITIES"))
    support = command.core.query_model(
        source, device, command.config, affinity=command.pins or None
    )
    preferred = next((name for devices in support.refusals.values() for name in devices), "")
    fallbacks = {
        name: refusal
        for name, device in support.devices.items()
        if device != preferred
        and (refusal := support.refusals.get(name, {}).get(preferred)) is not None
    }
    if not fallbacks:
        return ""
    fallback_devices = dict.fromkeys(support.devices[name] for name in fallbacks)
    remedies = Counter(refusal.remedy for refusal in fallbacks.values() if refusal.remedy)
    advice = "".join(
        f"; -c {remedy} keeps {'them' if count == len(fallbacks) else count} on {preferred}"
        for remedy, count in remedies.most_common()
    )
    name, refusal = next(iter(fallbacks.items()))
    operator = source.nodes[source.index_of[name]].op_type
    return (
        f"{preferred} refused {count_text(len(fallbacks), 'node')}; fallback to "
        f"{', '.join(fallback_devices)}; for example {name!r} ({operator}): "
        f"{refusal.message}{advice}"
    )


def _compare(model: str, results: list[Any]) -> dict[str, Any] | None:
    """Compare with onnx's outputs; None if there are none, or if rounding decides them."""
    if not model.startswith(PREFIX):
        return None
    pairs = list(zip(results, light_model_outputs(model), strict=True))
    matches = all(
        result.shape == reference.shape and np.allclose(result, reference, RTOL, ATOL)
        for result, reference in pairs
    )
    if not matches and model in EQUAL_SCORES:
        print_note(f"{model} is not compared: its classes tie, so rounding decides the output")
        return None
    return {
        "matches": matches,
        "max_difference": max(
            float(np.max(np.abs(result - reference)))
            if result.shape == reference.shape
            else math.inf
            for result, reference in pairs
        ),
    }


def _save(file: BinaryIO, outputs: Mapping[str, Any]) -> None:
    """Write arrays like numpy.savez, under any name; each element of a sequence separately."""
    arrays: dict[str, Any] = {}
    for name, value in outputs.items():
        if isinstance(value, list | tuple):
            arrays |= {f"{name}[{i}]": item for i, item in enumerate(value)}
        else:
            arrays[name] = value
    with zipfile.ZipFile(file, "w") as archive:
        for name, value in arrays.items():
            array = np.asarray(value)
            # numpy would pickle an array of objects, such as strings.
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
