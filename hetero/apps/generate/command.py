"""``hetero generate``: go on with a prompt, token by token, and say how fast and where."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from hetero.apps.generate.decoder import read_decoder
from hetero.apps.generate.ports import published_folder
from hetero.apps.generate.text import TextStream, Tokenizer
from hetero.cli.model_command import Job, is_blob
from hetero.cli.options import model_options, with_core
from hetero.cli.terminal import remark, tell, wants_json
from hetero.compile.compiled_model import CompiledModel
from hetero.formatting import nbytes_text
from hetero.planning.layers import find_layers
from hetero.terminal_tables import Columns, table


def _ids(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    try:
        return None if value is None else [int(part) for part in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: wanted numbers, as 1,415,29") from error


@click.command()
@model_options
@click.option("--prompt", help="The text to go on with; needs a tokenizer.")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, path_type=Path),
    help="Folder of tokenizer.json; by default the model's own.",
)
@click.option("--ids", metavar="ID,...", callback=_ids, help="The prompt's token ids, as 1,415,29.")
@click.option("--max-new-tokens", "-n", type=int, default=100, show_default=True)
@click.option("--temperature", type=float, default=0.0, help="0 takes the best token each time.")
@click.option("--top-k", type=int, default=0, help="Draw from so many of the best; 0: from all.")
@click.option("--top-p", type=float, default=1.0, help="Draw from the best up to this probability.")
@click.option("--min-p", type=float, default=0.0, help="Least probability, in the best one's.")
@click.option("--repetition-penalty", type=float, default=1.0, help="1 is none.")
@click.option("--seed", type=int, help="What is drawn follows from it.")
@with_core(runs_model=True)
def generate(
    job: Job,
    prompt: str | None,
    tokenizer: Path | None,
    ids: list[int] | None,
    max_new_tokens: int,
    **sampling: Any,
) -> None:
    """Go on with a prompt by the decoder MODEL, over the devices.

    Devices are chosen by layers where a plan is wanted: -c PERFORMANCE_HINT=LATENCY, or
    -c MODEL_DISTRIBUTION_POLICY=PIPELINE_PARALLEL.
    """
    if (prompt is None) == (ids is None):
        raise click.UsageError("Give --prompt TEXT, or --ids 1,2,3.")
    words = None
    if prompt is not None or tokenizer is not None:
        words = Tokenizer(tokenizer or published_folder(job.model))
        ids = ids if prompt is None else words.encode(prompt)
    source = None if is_blob(job.model) else read_decoder(job.model)
    job.start()
    compiled = job.compile(source)
    began = time.perf_counter()
    generation = compiled.generate(ids or [], max_new_tokens, **sampling)
    stream = None if words is None else TextStream(words)
    first_s = 0.0
    text = ""
    for token in generation:
        first_s = first_s or time.perf_counter() - began
        piece = f"{token} " if stream is None else stream.add(token)
        if stream is not None and generation.finish_reason:
            piece += stream.end()
        text += piece
        if not wants_json():
            click.echo(piece, nl=False)
    seconds = time.perf_counter() - began
    count = len(generation.tokens)
    rate = (count - 1) / (seconds - first_s) if count > 1 else None
    document: dict[str, Any] = {
        "model": compiled.name,
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
    tell("generate", document, ["", table(document["layers"], columns)])
    if not wants_json():
        after = f"the first after {first_s * 1e3:.1f} ms"
        then = f", then {rate:.1f} a second" if rate else ""
        remark(f"{count} tokens ({generation.finish_reason}), {after}{then}")


def layer_rows(compiled: CompiledModel) -> list[dict[str, Any]]:
    """Return which layers each subgraph has, in running order, and the bytes of its weights."""
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
    plain = [n for n in numbers if n not in names]
    # In a run numbers are as far apart as their places.
    by_run = groupby(enumerate(plain), lambda place: place[1] - place[0])
    runs = [[n for _, n in run] for _, run in by_run]
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return ", ".join([*parts, *(names[n] for n in numbers if n in names)])
