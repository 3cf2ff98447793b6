"""``hetero compile``: compile a model, show its subgraphs, write it as a blob or as ONNX files."""

from __future__ import annotations

from pathlib import Path

import click

from hetero.cli.help_sections import SectionedCommand
from hetero.cli.inputs import shape_option
from hetero.cli.model_command import ModelCommand, render_subgraphs, subgraph_rows
from hetero.cli.options import model_options, with_core
from hetero.cli.output_files import check_folder, output_file, write_models
from hetero.cli.planning_options import plan_for_shapes, planning_options
from hetero.cli.preprocessing_options import preprocess_options
from hetero.cli.terminal import print_result


@click.command("compile", cls=SectionedCommand)
@model_options
@planning_options
@shape_option("Shape of an input for planning and for the sizes shown.")
@preprocess_options
@click.option(
    "--subgraphs-dir",
    type=click.Path(path_type=Path),
    callback=check_folder,
    help="Write each subgraph as an ONNX model into this folder; it must be new or empty.",
)
@output_file(
    "--output", "-o", help="Write the compiled model to this file (a blob), for `hetero run`."
)
@click.option(
    "--weightless",
    is_flag=True,
    help="Omit the weights from that file; load it with `hetero run FILE --weights MODEL`.",
)
@with_core
def compile_command(
    command: ModelCommand, subgraphs_dir: Path | None, output: Path | None, weightless: bool
) -> None:
    """Compile MODEL and show the device of each subgraph."""
    if weightless and not output:
        raise click.UsageError("--weightless needs -o FILE.")
    source = command.read()
    command.config = plan_for_shapes(command.config, command.shapes)
    command.start()
    compiled = command.compile(source)
    files: list[Path] = []
    if subgraphs_dir:
        names = ((s, f"subgraph_{s.index:03d}_{s.device}.onnx") for s in compiled.subgraphs)
        files += write_models(subgraphs_dir, {name: s.model for s, name in names})
    if output:
        compiled.export_model(output, weightless=weightless)
        files.append(output)
    verification = compiled.verification
    document = {
        "model": source.name,
        **command.cache_fields(compiled),
        "verification": verification.to_dict(),
        "subgraphs": subgraph_rows(compiled, command.shapes),
        "files": files,
    }
    cached = document["loaded_from_cache"]
    lines = [] if cached else [f"compiled in {command.compile_s * 1e3:.0f} ms"]
    lines += [line for line in verification.sentences() if line]
    lines += [f"wrote {file}" for file in files]
    if not (files or "CACHE_DIR" in command.config):
        lines.append("wrote nothing; add -o FILE to keep the compiled model, or --cache DIR")
    print_result("compile", document, [*render_subgraphs(compiled, command.shapes), *lines])
