"""``hetero compile``: compile a model, show its subgraphs, write them as ONNX."""

from __future__ import annotations

from pathlib import Path

import click

from hetero.cli.inputs import shape_option
from hetero.cli.model_command import Job, subgraph_parts, subgraph_rows
from hetero.cli.options import model_options, with_core
from hetero.cli.output_files import check_folder, output_file, write_models
from hetero.cli.planning_options import planned_at, planning_options
from hetero.cli.preprocessing_options import preprocess_options
from hetero.cli.terminal import tell


@click.command("compile")
@model_options
@planning_options
@shape_option("The shape of an input to plan for, and that sizes are told for.")
@preprocess_options
@click.option(
    "--subgraphs-dir",
    type=click.Path(path_type=Path),
    callback=check_folder,
    help="Write each subgraph as an ONNX model into this folder, which is new or empty.",
)
@output_file("--output", "-o", help="Write the compiled model there, for `hetero run`.")
@click.option(
    "--weightless",
    is_flag=True,
    help="Leave the model's weights out of that file: `hetero run FILE --weights MODEL` has them.",
)
@with_core
def compile_command(
    job: Job, subgraphs_dir: Path | None, output: Path | None, weightless: bool
) -> None:
    """Compile MODEL and show which device got which subgraph."""
    if weightless and not output:
        raise click.UsageError("--weightless: name the file with -o.")
    source = job.read()
    job.config = planned_at(job.config, job.shapes)
    job.start()
    compiled = job.compile(source)
    files: list[Path] = []
    if subgraphs_dir:
        names = ((s, f"subgraph_{s.index:03d}_{s.device}.onnx") for s in compiled.subgraphs)
        files += write_models(subgraphs_dir, {name: s.model for s, name in names})
    if output:
        compiled.export_model(output, weightless=weightless)
        files.append(output)
    cached = compiled.get_property("LOADED_FROM_CACHE")
    document = {
        "model": source.name,
        "compile_s": job.compile_s,
        "loaded_from_cache": cached,
        "subgraphs": subgraph_rows(compiled, job.shapes),
        "files": files,
    }
    how = "loaded from the cache" if cached else "compiled"
    told = [f"{how} in {job.compile_s * 1e3:.0f} ms", *(f"wrote {file}" for file in files)]
    tell("compile", document, [*subgraph_parts(compiled, job.shapes), *told])
