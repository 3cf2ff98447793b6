"""``hetero serve``: models behind the Open Inference Protocol, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from hetero.apps.generate.decoder import read_decoder
from hetero.apps.generate.ports import published_folder
from hetero.apps.serve.options import ServerOptions
from hetero.apps.serve.server import Server, require_extra
from hetero.cli.model_command import Job, is_blob
from hetero.cli.option_types import Finite, together
from hetero.cli.options import model_options, with_core
from hetero.cli.terminal import progress, remark, tell, wants_json
from hetero.terminal_tables import Columns, table

#: Seconds between two looks at a repository's folder.
_WATCH_S = 1.0


def _read_tokens(
    context: click.Context, parameter: click.Parameter, value: Path | None
) -> tuple[str, ...]:
    if value is None:
        return ()
    tokens = tuple(value.read_text().split())
    if not tokens:
        raise click.BadParameter(f"{value} has no token.")
    return tokens


_PORT: Final = click.IntRange(0, 65535)
_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
#: Adds how the server listens and what it allows.
_server_options: Final = together(
    click.option(
        "--port",
        type=_PORT,
        default=8000,
        show_default=True,
        help="Where to listen for HTTP; 0 takes a free port.",
    ),
    click.option(
        "--grpc-port", type=_PORT, metavar="PORT", help="Where to listen for gRPC as well."
    ),
    click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        help="The address to listen on; 0.0.0.0 for all of this machine's.",
    ),
    click.option("--name", help="What clients call the model; its file's name by default."),
    click.option(
        "--check", is_flag=True, help="Load everything, say what would be served, and end."
    ),
    click.option(
        "--tokens",
        type=_FILE,
        metavar="FILE",
        callback=_read_tokens,
        help="A file with a token on each line: requests need one of them.",
    ),
    click.option("--tls-key", type=_FILE, metavar="FILE.pem", help="The key, for TLS."),
    click.option(
        "--tls-certificate", type=_FILE, metavar="FILE.pem", help="The certificate chain."
    ),
    click.option(
        "--max-body",
        "body_nbytes",
        type=click.IntRange(1),
        default=2**30,
        show_default=True,
        metavar="BYTES",
        help="Bytes that a request may have.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(1, 256),
        default=1,
        show_default=True,
        help="Server processes on the same ports. With --executor ray they share the devices "
        "of `hetero pool up`; else each has its own.",
    ),
    click.option("--shared-port", is_flag=True, hidden=True),
    click.option(
        "--shared-memory",
        is_flag=True,
        help="Let clients on this machine name their shared memory as tensors.",
    ),
    click.option(
        "--decoder",
        is_flag=True,
        help="Read models as decoders, to generate texts: /v1/completions and the like.",
    ),
    click.option("--access-log", is_flag=True, help="Print a line of JSON for each request."),
    click.option(
        "--drain-seconds",
        "drain_s",
        type=Finite(0.0),
        default=30.0,
        show_default=True,
        help="Seconds that requests have to end after Ctrl-C or SIGTERM.",
    ),
)


@click.command()
@model_options
@_server_options
@with_core
def serve(
    job: Job, name: str | None, check: bool, workers: int, decoder: bool, **listening: Any
) -> None:
    """Serve MODEL by HTTP: an ONNX model, a blob, or a folder of them.

    In a folder each model is a file, or a folder with a hetero.yaml (device, config, affinity,
    versions) and a folder for each version. What changes there is taken over within seconds.
    """
    require_extra()
    options = ServerOptions(**listening)
    if (options.tls_key is None) != (options.tls_certificate is None):
        raise click.UsageError("--tls-key and --tls-certificate go together.")
    from hetero.apps.serve.model_folder import ModelOptions, folder_sources
    from hetero.apps.serve.repository import ModelSource, Repository

    if workers > 1 and not check:
        _run_workers(options, workers)
        return
    if (folder := Path(job.model)).is_dir():
        if job.pins or name:
            raise click.UsageError("--affinity and --name are for one model; write hetero.yaml.")

        def compiled(path: Path, options: ModelOptions) -> Any:
            if is_blob(str(path)):
                return job.core.import_model(path, options.device or None, options.config)
            source: Any = read_decoder(path) if options.decoder else path
            return job.core.compile_model(
                source,
                options.device or job.device,
                options.config,
                affinity=options.affinity or None,
            )

        usual = ModelOptions(config=job.config, decoder=decoder)
        repository = Repository(lambda: folder_sources(folder, usual, compiled))
    else:
        read = read_decoder if decoder else job.core.read_model
        source = None if is_blob(job.model) else read(job.model)
        called = name or Path(job.model.rpartition(":")[2]).stem
        only = ModelSource(
            called, "1", lambda: job.compile(source), folder=published_folder(folder)
        )
        repository = Repository(lambda: [only])
    job.start()
    with progress("loading models"):
        repository.refresh()
    index = repository.index()
    broken = [row for row in index if row["state"] != "READY"]
    columns: Columns = {
        "model": "name",
        "version": "version",
        "state": ("state", str.lower),
        "reason": "reason",
    }
    shown = table(index, columns, wraps=("reason",))
    if check or (broken and not folder.is_dir()):
        tell("serve", {"models": index}, [shown])
        raise click.exceptions.Exit(1 if broken or not index else 0)
    if options.access_log:  # a line each on stderr
        log = logging.getLogger("hetero.serve.access")
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
    watched = replace(options, watch_s=_WATCH_S if folder.is_dir() else 0.0)
    with Server(repository, watched) as server:
        told = {"url": server.url, "grpc_port": server.grpc_port, "models": index}
        tell("serve", told, [shown])
        if not wants_json():
            by = f" and gRPC at {options.host}:{server.grpc_port}" if server.grpc_port else ""
            remark(f"serving at {server.url}{by}; Ctrl-C ends it")
        server.wait()


def _run_workers(options: ServerOptions, count: int) -> None:
    """Run this command in several processes on the same ports."""
    from hetero.apps.serve.workers import bind, run_workers

    context = click.get_current_context()
    on_ray = context.params.get("executor") == "ray"
    if on_ray and not context.params.get("address") and not os.environ.get("RAY_ADDRESS"):
        from hetero.scheduler.ray.own_head import find_head

        if find_head() is None:
            raise click.UsageError("workers share a pool's devices: start `hetero pool up` first.")
    with ExitStack() as stack:
        command = [sys.executable, "-m", "hetero", *sys.argv[1:], "--workers", "1", "--shared-port"]
        ports = []
        for option, port in (("--port", options.port), ("--grpc-port", options.grpc_port)):
            if port is not None:
                kept = stack.enter_context(bind(options.host, port, shared=True))
                ports.append(kept.getsockname()[1])
                command += [option, f"{ports[-1]}"]
        remark(f"serving at {options.host}:{ports[0]} with {count} workers; Ctrl-C ends them")
        run_workers(command, count, options.drain_s, lambda ids: remark(f"workers: {ids}"))
