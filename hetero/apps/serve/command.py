"""``hetero serve``: models behind the Open Inference Protocol, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import hetero
from hetero.apps.serve.options import ServerOptions
from hetero.apps.serve.server import Server, prepare_process, require_extra
from hetero.apps.serve.worker_link import WorkerLink
from hetero.cli.help_sections import SectionedCommand
from hetero.cli.model_command import ModelCommand, cache_fields, is_blob
from hetero.cli.option_types import FiniteFloat, combine_options
from hetero.cli.options import model_options, opentelemetry_option, with_core
from hetero.cli.planning_options import memory_options, replicas_option
from hetero.cli.terminal import print_note, print_result, progress, wants_json
from hetero.devices.errors import ArgumentError
from hetero.devices.file_reader import FileReader
from hetero.devices.model.model import Model
from hetero.devices.model.reader import published_folder
from hetero.terminal_tables import Columns, table

if TYPE_CHECKING:
    from hetero.apps.serve.repository import Repository

#: Seconds between two searches of a model folder for changes.
_WATCH_S: Final = 1.0


def _read_tokens(
    context: click.Context, parameter: click.Parameter, value: Path | None
) -> tuple[str, ...]:
    if value is None:
        return ()
    reader = FileReader("tokens", ArgumentError, "Write one on each line.", max_nbytes=2**20)
    tokens = tuple(reader.read_text(value).split())
    if not tokens:
        raise reader.problem(value, "the file has no token")
    return tokens


_PORT: Final = click.IntRange(0, 65535)
_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
#: Adds the options of `ServerOptions`, and those of the command alone.
_server_options: Final = combine_options(
    click.option(
        "--port",
        type=_PORT,
        default=8000,
        show_default=True,
        help="The port for HTTP; 0 takes a free one.",
    ),
    click.option("--grpc-port", type=_PORT, metavar="PORT", help="The port for gRPC."),
    click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        help="The address to listen on; 0.0.0.0 for all addresses of this machine.",
    ),
    click.option("--name", help="The model's name for clients; its file's name by default."),
    click.option("--check", is_flag=True, help="Load everything, print the models, and end."),
    click.option(
        "--tokens",
        type=_FILE,
        metavar="FILE",
        callback=_read_tokens,
        help="A file with a token on each line: requests need one of them.",
    ),
    click.option("--tls-key", type=_FILE, metavar="FILE.pem", help="The private key, for TLS."),
    click.option(
        "--tls-certificate", type=_FILE, metavar="FILE.pem", help="The certificate chain."
    ),
    click.option(
        "--allow-host",
        "allowed_hosts",
        multiple=True,
        metavar="NAME",
        help="A name of this server that clients, or pages in browsers, use; * allows all.",
    ),
    click.option(
        "--model-control",
        type=click.Choice(["none", "explicit"]),
        default="none",
        show_default=True,
        help="Whether clients may load and unload models.",
    ),
    click.option(
        "--max-body",
        "body_nbytes",
        type=click.IntRange(1),
        default=ServerOptions.body_nbytes,
        show_default=True,
        metavar="BYTES",
        help="Maximum bytes of a request.",
    ),
    click.option(
        "--max-json",
        "json_nbytes",
        type=click.IntRange(1),
        default=ServerOptions.json_nbytes,
        show_default=True,
        metavar="BYTES",
        help="Maximum bytes of a request without its raw tensors.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(1, 256),
        default=1,
        show_default=True,
        help="Server processes on the same ports. With --executor ray they share the devices "
        "of `hetero pool up`; otherwise each has its own.",
    ),
    click.option("--worker-link", type=int, hidden=True),
    click.option(
        "--shared-memory",
        is_flag=True,
        help="Let clients on this machine name their shared memory as tensors.",
    ),
    click.option(
        "--decoder",
        is_flag=True,
        help="Read models as decoders, to generate text: /v1/completions and others.",
    ),
    click.option("--access-log", is_flag=True, help="Print a line of JSON for each request."),
    click.option(
        "--drain-seconds",
        "drain_s",
        type=FiniteFloat(0.0),
        default=30.0,
        show_default=True,
        help="Seconds that running requests have to end after Ctrl-C or SIGTERM.",
    ),
)


@click.command(cls=SectionedCommand)
@model_options
@replicas_option
@memory_options
@opentelemetry_option
@_server_options
@with_core
def serve(
    command: ModelCommand,
    name: str | None,
    check: bool,
    workers: int,
    worker_link: int | None,
    decoder: bool,
    **listening: Any,
) -> None:
    """Serve MODEL over HTTP: an ONNX model, a blob, or a folder of them.

    In a folder each model is a file, or a folder with a hetero.yaml (device, config, affinity,
    versions) and a folder for each version. Changes take effect within seconds.
    """
    require_extra()
    prepare_process()
    options = ServerOptions(**listening, shared_port=worker_link is not None)
    if (options.tls_key is None) != (options.tls_certificate is None):
        raise click.UsageError("--tls-key and --tls-certificate need each other.")
    if workers > 1 and not check:
        _run_workers(options, workers)
        return
    link = None if worker_link is None else WorkerLink(worker_link)
    repository = _repository(command, name, decoder)
    command.start()
    with progress("loading models"):
        repository.refresh()
    index = _with_cache_fields(repository)
    unavailable = [row for row in index if row["state"] != "READY"]
    columns: Columns = {
        "model": "name",
        "version": "version",
        "state": ("state", str.lower),
        "reason": "reason",
    }
    rows = table(index, columns, wraps=("reason",))
    is_folder = Path(command.model).is_dir()
    if check or (unavailable and not is_folder):
        print_result("serve", {"models": index}, [rows])
        raise click.exceptions.Exit(1 if unavailable or not index else 0)
    if options.access_log:
        log = logging.getLogger("hetero.serve.access")
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
    options = replace(options, watch_s=_WATCH_S if is_folder else 0.0)
    with Server(repository, options, link) as server:
        document = {"url": server.url, "grpc_port": server.grpc_port, "models": index}
        print_result("serve", document, [rows])
        if not wants_json():
            grpc = f" and gRPC at {options.host}:{server.grpc_port}" if server.grpc_port else ""
            print_note(f"serving at {server.url}{grpc}; Ctrl-C ends it")
        server.wait()


def _with_cache_fields(repository: Repository) -> list[dict[str, Any]]:
    """Return the models' states; those of loaded models with the entries about the cache."""
    loaded = {(model.name, model.version): model.compiled for model in repository.models()}
    rows: list[dict[str, Any]] = []
    for row in repository.index():
        compiled = loaded.get((row["name"], row["version"]))
        rows.append({**row, **({} if compiled is None else cache_fields(compiled))})
    return rows


def _repository(command: ModelCommand, name: str | None, decoder: bool) -> Repository:
    """Return the repository of a model or a folder of models."""
    from hetero.apps.serve.model_folder import ModelOptions, folder_sources
    from hetero.apps.serve.repository import ModelSource, Repository

    path = Path(command.model)
    if not path.is_dir():
        read = hetero.read_decoder if decoder else command.core.read_model
        source = None if is_blob(command.model) else read(command.model)
        if decoder and source is not None:
            command.config = _plan_for_steps(command.config, source)
        model_name = name or Path(command.model.rpartition(":")[2]).stem
        folder = published_folder(path)
        only = ModelSource(model_name, "1", lambda: command.compile(source), folder=folder)
        return Repository(lambda: [only])
    if command.pins or name:
        raise click.UsageError("--affinity and --name are for one model; write hetero.yaml.")

    def load(file: Path, options: ModelOptions) -> Any:
        if not options.join and is_blob(str(file)):
            return command.core.import_model(file, options.device or None, options.config)
        model: Any = file
        config = options.config
        if options.decoder:
            model = hetero.read_decoder(file)
            config = _plan_for_steps(config, model)
        if options.join:
            files = [file / name for name in options.join]
            model = command.core.read_model(files, wires=options.wires)
        return command.core.compile_model(
            model,
            options.device or command.device,
            config,
            affinity=options.affinity or None,
        )

    defaults = ModelOptions(config=command.config, decoder=decoder)
    return Repository(lambda: folder_sources(path, defaults, load))


def _plan_for_steps(config: dict[str, Any], model: Model) -> dict[str, Any]:
    """Return a configuration with the shapes of a decode step, if its plan has to fit."""
    from hetero.apps.generate.command import plan_for_steps

    return plan_for_steps(config, model)


def _run_workers(options: ServerOptions, count: int) -> None:
    """Run this command in several processes on the same ports."""
    from hetero.apps.serve.workers import bind, run_workers

    context = click.get_current_context()
    on_ray = context.params.get("executor") == "ray"
    if on_ray and not context.params.get("address") and not os.environ.get("RAY_ADDRESS"):
        from hetero.scheduler.ray.local_cluster import find_head

        if find_head() is None:
            raise click.UsageError("workers share a pool's devices: start `hetero pool up` first.")
    with ExitStack() as stack:
        command = [sys.executable, "-m", "hetero", *sys.argv[1:], "--workers", "1"]
        ports = []
        for option, port in (("--port", options.port), ("--grpc-port", options.grpc_port)):
            if port is not None:
                bound = stack.enter_context(bind(options.host, port, shared=True))
                ports.append(bound.getsockname()[1])
                command += [option, f"{ports[-1]}"]
        print_note(f"serving at {options.host}:{ports[0]} with {count} workers; Ctrl-C ends them")
        command.append("--worker-link")
        run_workers(command, count, options.drain_s, lambda ids: print_note(f"workers: {ids}"))
