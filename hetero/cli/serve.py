"""``hetero serve``: models behind the Open Inference Protocol, until Ctrl-C or SIGTERM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hetero.cli.loading import is_blob, load
from hetero.cli.options import model_options, start, with_core
from hetero.cli.terminal import print_json, progress, remark, show
from hetero.core import Core
from hetero.report.text import Rows
from hetero.serve.server import Server, require_extra


@click.command()
@model_options
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Where to listen for HTTP; 0 takes a free port.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; 0.0.0.0 for all of this machine's.",
)
@click.option("--name", help="What clients call the model; its file's name by default.")
@click.option("--check", is_flag=True, help="Load everything, say what would be served, and end.")
@with_core
def serve(
    core: Core,
    model: str,
    device: str,
    pins: dict[str, str],
    config: dict[str, Any],
    port: int,
    host: str,
    name: str | None,
    check: bool,
    as_json: bool,
) -> None:
    """Serve MODEL by HTTP: an ONNX model, a blob, or a folder of them.

    In a folder each model is a file, or a folder with a hetero.yaml (device, config, affinity,
    versions) and a folder for each version. What changes there is taken over within seconds.
    """
    require_extra()
    from hetero.serve.repository import ModelSource, Repository
    from hetero.serve.sources import ModelOptions, folder_sources

    if (folder := Path(model)).is_dir():
        if pins or name:
            raise click.UsageError("--affinity and --name are for one model; write hetero.yaml.")

        def compiled(path: Path, options: ModelOptions) -> Any:
            if is_blob(str(path)):
                return core.import_model(path, options.device or None, options.config)
            return core.compile_model(
                path, options.device or device, options.config, affinity=options.affinity or None
            )

        usual = ModelOptions(config=config)
        repository = Repository(lambda: folder_sources(folder, usual, compiled))
    else:
        source = None if is_blob(model) else core.read_model(model)
        called = name or Path(model.rpartition(":")[2]).stem
        only = ModelSource(called, "1", lambda: load(core, model, source, device, config, pins, {}))
        repository = Repository(lambda: [only])
    start(core)
    with progress("loading models"):
        repository.refresh()
    index = repository.index()
    broken = [row for row in index if row["state"] != "READY"]
    if check or (broken and not folder.is_dir()):
        _tell(index, as_json)
        raise click.exceptions.Exit(1 if broken or not index else 0)
    with Server(repository, host, port).until_started() as server:
        if as_json:
            print_json("serve", {"url": server.url, "models": index})
        else:
            _tell(index, as_json=False)
            remark(f"serving at {server.url}; Ctrl-C ends it")
        server.wait()


def _tell(index: list[dict[str, str]], as_json: bool) -> None:
    if as_json:
        print_json("serve", {"models": index})
        return
    table = Rows("model", "version", "state", "reason", wraps=("reason",))
    for row in index:
        table.add(row["name"], row["version"], row["state"].lower(), row["reason"])
    show(table)
