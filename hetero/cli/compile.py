"""``hetero compile``: compile a model, show its subgraphs, write them as ONNX."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from hetero.cli.options import (
    OUT,
    affinity_argument,
    model_options,
    print_json,
    progress,
    start,
    with_core,
)
from hetero.compiled_model import CompiledModel
from hetero.core import Core


@click.command("compile")
@model_options
@click.option(
    "--subgraphs-dir", type=click.Path(path_type=Path, file_okay=False),
    help="Write each subgraph there as an ONNX model.",
)  # fmt: skip
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, dir_okay=False),
    help="Write the compiled model there, for `hetero run`.",
)  # fmt: skip
@with_core
def compile_command(
    core: Core,
    model: str,
    device: str,
    pins: tuple[str, ...],
    config: dict[str, Any],
    subgraphs_dir: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compile MODEL and show which device got which subgraph."""
    source = core.read_model(model)
    start(core)
    began = time.perf_counter()
    with progress(core, f"compiling {source.name}"):
        compiled = core.compile_model(source, device, config, affinity=affinity_argument(pins))
    seconds = time.perf_counter() - began
    files = write_subgraphs(compiled, subgraphs_dir) if subgraphs_dir else []
    if output:
        compiled.export_model(output)
        files.append(str(output))
    cached = compiled.get_property("LOADED_FROM_CACHE")
    if as_json:
        print_json(
            {
                "model": source.name,
                "compile_ms": seconds * 1e3,
                "loaded_from_cache": cached,
                "subgraphs": subgraph_rows(compiled),
                "files": files,
            }
        )
        return
    print_subgraphs(compiled)
    done = "loaded from the cache" if cached else "compiled"
    OUT.print(f"{done} in {seconds * 1e3:.0f} ms")
    for file in files:
        OUT.print(f"wrote {file}")


def subgraph_rows(compiled: CompiledModel) -> list[dict[str, Any]]:
    """Return the subgraphs as plain rows."""
    specs = compiled.partition.source.spec
    crossing = {wire.tensor for wire in compiled.partition.wires}
    return [
        {
            "index": s.index,
            "device": s.device,
            "nodes": list(s.node_names),
            "inputs": list(s.inputs),
            "outputs": list(s.outputs),
            "crossing_nbytes": sum(specs(v).nbytes or 0 for v in s.outputs if v in crossing),
        }
        for s in compiled.subgraphs
    ]


def print_subgraphs(compiled: CompiledModel) -> None:
    """Print which device got which subgraph."""
    rows = subgraph_rows(compiled)
    nodes = sum(len(row["nodes"]) for row in rows)
    OUT.print(f"{compiled.plan.name}: {nodes} nodes in {len(rows)} subgraphs")
    table = Table("subgraph", "device", "nodes", "first … last", "inputs", "outputs", "bytes out")
    shown = rows if len(rows) <= 24 else rows[:20]
    for row in shown:
        names = row["nodes"]
        table.add_row(
            str(row["index"]),
            row["device"],
            str(len(names)),
            f"{names[0]} … {names[-1]}" if len(names) > 1 else "".join(names),
            str(len(row["inputs"])),
            str(len(row["outputs"])),
            str(row["crossing_nbytes"] or ""),
        )
    OUT.print(table)
    if len(shown) < len(rows):
        OUT.print(f"… and {len(rows) - len(shown)} more; --json lists all")


def write_subgraphs(compiled: CompiledModel, folder: Path) -> list[str]:
    """Write each subgraph as ONNX and return the files' paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for s in compiled.subgraphs:
        path = folder / f"subgraph_{s.index:03d}_{s.device}.onnx"
        s.model.save(path)
        files.append(str(path))
    return files
