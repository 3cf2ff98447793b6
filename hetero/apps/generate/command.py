"""``hetero generate``: complete a prompt, and report the speed and the layers of each device."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hetero.affinity.layer_pins import number_ranges
from hetero.affinity.layers import find_layers
from hetero.apps.generate.decoder_ports import Decoder, decoder_file, step_shapes
from hetero.apps.generate.read_decoder import read_decoder
from hetero.apps.generate.tokenizer import Detokenizer, Tokenizer
from hetero.cli.help_sections import SectionedCommand
from hetero.cli.model_command import ModelCommand, is_blob
from hetero.cli.options import model_options, with_core
from hetero.cli.planning_options import (
    SHAPES,
    fits_memory,
    memory_options,
    plan_for_shapes,
    replicas_option,
)
from hetero.cli.terminal import print_note, print_result, wants_json
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.model.model import Model
from hetero.devices.model.reader import published_folder
from hetero.formatting import nbytes_text
from hetero.terminal_tables import Columns, table


def _ids(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    try:
        return None if value is None else [int(part) for part in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: expected numbers, for example 1,415,29") from error


@click.command(cls=SectionedCommand)
@model_options
@replicas_option
@memory_options
@click.option("--prompt", help="Text to complete; needs a tokenizer.")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, path_type=Path),
    help="Folder of tokenizer.json; by default the model's folder.",
)
@click.option(
    "--ids", metavar="ID,...", callback=_ids, help="Token ids of the prompt, for example 1,415,29."
)
@click.option("--max-new-tokens", "-n", type=int, default=100, show_default=True)
@click.option("--temperature", type=float, default=0.0, help="0 for greedy decoding.")
@click.option("--top-k", type=int, default=0, help="Draw from this many best tokens; 0 for all.")
@click.option(
    "--top-p",
    type=float,
    default=1.0,
    help="Draw from the best tokens with this total probability.",
)
@click.option(
    "--min-p", type=float, default=0.0, help="Minimum probability, relative to the best token."
)
@click.option(
    "--repetition-penalty", type=float, default=1.0, help="Penalty for repeated tokens; 1 for none."
)
@click.option("--seed", type=int, help="Seed of the draws; random by default.")
@with_core(runs_model=True)
def generate(
    command: ModelCommand,
    prompt: str | None,
    tokenizer: Path | None,
    ids: list[int] | None,
    max_new_tokens: int,
    **sampling: Any,
) -> None:
    """Complete a prompt with the decoder MODEL, on one or several devices.

    To plan the split by layers, use -c PERFORMANCE_HINT=LATENCY or
    -c MODEL_DISTRIBUTION_POLICY=PIPELINE_PARALLEL.
    """
    if (prompt is None) == (ids is None):
        raise click.UsageError("Give either --prompt TEXT or --ids 1,2,3.")
    command.model = str(decoder_file(command.model))
    source = None if is_blob(command.model) else read_decoder(command.model)
    words = None
    if prompt is not None or tokenizer is not None:
        words = Tokenizer(tokenizer or published_folder(command.model))
        ids = ids if prompt is None else words.encode(prompt)
    if source is not None:
        past = len(ids or []) + max_new_tokens
        command.config = plan_for_steps(command.config, source, past)
    command.start()
    compiled = command.compile(source)
    start = time.perf_counter()
    generation = compiled.generate(ids or [], max_new_tokens, **sampling)
    stream = None if words is None else Detokenizer(words)
    first_s = 0.0
    text = ""
    for token in generation:
        first_s = first_s or time.perf_counter() - start
        piece = f"{token} " if stream is None else stream.add(token)
        if stream is not None and generation.finish_reason:
            piece += stream.end()
        text += piece
        if not wants_json():
            click.echo(piece, nl=False)
    seconds = time.perf_counter() - start
    count = len(generation.tokens)
    rate = (count - 1) / (seconds - first_s) if count > 1 else None
    document: dict[str, Any] = {
        "model": compiled.name,
        **command.cache_fields(compiled),
        "prompt": list(generation.prompt),
        "tokens": generation.tokens,
        "text": None if words is None else text,
        "finish_reason": generation.finish_reason,
        "first_token_s": first_s,
        "tokens_per_s": rate,
        "layers": layer_rows(compiled),
    }
    columns: Columns = {
        "device": "device",
        "layers": "layers",
        "weights": ("weights_nbytes", nbytes_text),
    }
    # Subgraphs without weights, such as the sampling, are in the JSON document only.
    rows = [row for row in document["layers"] if row["weights_nbytes"]] or document["layers"]
    print_result("generate", document, ["", table(rows, columns)])
    if not wants_json():
        speed = f", then {rate:.1f} tokens/s" if rate else ""
        first = f"first after {first_s * 1e3:.1f} ms"
        print_note(f"{count} tokens ({generation.finish_reason}), {first}{speed}")


def plan_for_steps(
    config: dict[str, Any], source: Model, past: int | None = None
) -> dict[str, Any]:
    """Return a configuration with the shapes of a decode step, if its plan has to fit.

    `past`: number of tokens in the KV caches; see `step_shapes`.
    """
    if not fits_memory(config) or SHAPES in config:
        return config
    return plan_for_shapes(config, step_shapes(source, Decoder.of(source), past))


def layer_rows(compiled: CompiledModel) -> list[dict[str, Any]]:
    """Return the layers and the weight bytes of each subgraph, in execution order."""
    layers = find_layers(compiled.source)
    number = {name: i for i, names in enumerate(layers) for name in names}
    names = {len(layers) - 1: "head"} if len(layers) > 1 else {}
    return [
        {
            "device": s.device,
            "layers": _ranges(sorted({number[n] for n in s.node_names if n in number}), names),
            "weights_nbytes": s.model.weight_nbytes,
        }
        for s in compiled.subgraphs
    ]


def _ranges(numbers: list[int], names: Mapping[int, str]) -> str:
    """Return numbers as text: 0-3, 5, head."""
    plain = number_ranges(n for n in numbers if n not in names)
    return ", ".join(filter(None, [plain, *(names[n] for n in numbers if n in names)]))
