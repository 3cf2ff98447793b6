"""``hetero run``: run a model once, compare where an expected output is known, print latency."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from devices.light_models import PREFIX, light_model_outputs
from hetero.cli.compile import print_subgraphs, subgraph_rows
from hetero.cli.inputs import model_inputs, parse_shapes
from hetero.cli.loading import is_blob, load, remap_option
from hetero.cli.options import (
    OUT,
    model_options,
    print_json,
    progress,
    start,
    with_core,
)
from hetero.core import Core

#: ONNX's own tolerances for the light models (`onnx.backend.test.loader`).
RTOL, ATOL = 1e-3, 1e-5
#: Requests timed after the first.
REPEATS = 10


@click.command()
@model_options
@click.option(
    "--input", "-i", "inputs", multiple=True, metavar="[NAME=]FILE",
    help="A .npy, .npz or .pb file; inputs without one are generated.",
)  # fmt: skip
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME:1,3,...", callback=parse_shapes,
    help="The shape of a generated input; open dimensions are 1 otherwise.",
)  # fmt: skip
@click.option(
    "--output", "-o", "output", type=click.Path(path_type=Path, dir_okay=False),
    help="Write the outputs there as .npz.",
)  # fmt: skip
@remap_option
@with_core
def run(
    core: Core,
    model: str,
    device: str,
    pins: tuple[str, ...],
    config: dict[str, Any],
    inputs: tuple[str, ...],
    shapes: dict[str, tuple[int, ...]],
    remap: dict[str, str],
    output: Path | None,
    as_json: bool,
) -> None:
    """Run MODEL over the devices; light models are checked against onnx's own outputs.

    MODEL may be a blob that `hetero compile -o` wrote: it runs on the devices it was compiled for.
    """
    # Bad input is told before anything is started.
    source = None if is_blob(model) else core.read_model(model)
    values = None if source is None else model_inputs(model, source, inputs, shapes)
    start(core)
    compiled = load(core, source or model, device, config, pins, remap)
    if values is None:
        values = model_inputs(model, compiled.partition.source, inputs, shapes)
    request = compiled.create_infer_request()
    times = []
    with progress(core, "running"):
        for _ in range(1 + REPEATS):
            began = time.perf_counter()
            results = request.infer(values)
            times.append((time.perf_counter() - began) * 1e3)
    outputs = results.to_dict()
    generated = not inputs and not shapes
    check = _compare(model, list(results.to_tuple())) if generated else None
    if output:
        np.savez(output, allow_pickle=False, **outputs)
    document = {
        "model": compiled.name,
        "subgraphs": subgraph_rows(compiled),
        "outputs": [
            {"name": n, "dtype": str(np.asarray(v).dtype), "shape": list(np.shape(v))}
            for n, v in outputs.items()
        ],
        "check": check,
        "first_ms": times[0],
        "median_ms": statistics.median(times[1:]),
    }
    if as_json:
        print_json(document)
    else:
        print_subgraphs(compiled)
        _print_outputs(outputs)
        if check:
            verdict = "matches" if check["matches"] else "DIFFERS FROM"
            OUT.print(
                f"{verdict} onnx's expected output: largest difference "
                f"{check['max_difference']:.2g} (rtol {RTOL:g}, atol {ATOL:g})"
            )
        OUT.print(
            f"latency: first {times[0]:.1f} ms, then median {document['median_ms']:.1f} ms "
            f"of {REPEATS}"
        )
    if check and not check["matches"]:
        raise click.exceptions.Exit(1)


def _compare(model: str, results: list[Any]) -> dict[str, Any] | None:
    if not model.startswith(PREFIX):
        return None
    expected = light_model_outputs(model)
    pairs = list(zip(results, expected, strict=True))
    return {
        "matches": all(
            got.shape == want.shape and np.allclose(got, want, RTOL, ATOL) for got, want in pairs
        ),
        "max_difference": max(float(np.max(np.abs(got - want))) for got, want in pairs),
    }


def _print_outputs(outputs: dict[str, Any]) -> None:
    table = Table("output", "type", "shape", "first values")
    for name, value in outputs.items():
        if isinstance(value, np.ndarray):
            head = np.array2string(value.ravel()[:4], precision=4, separator=", ")
            table.add_row(name, str(value.dtype), str(list(value.shape)), head)
        else:
            table.add_row(name, type(value).__name__, "", str(value)[:60])
    OUT.print(table)
