"""The command line: ``hetero devices | query | profile | plan | compile | run | bench | ...``."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from importlib.metadata import entry_points

import click

from hetero.cli.bench import bench
from hetero.cli.cache import cache
from hetero.cli.check_device import check_device_command
from hetero.cli.compare import compare
from hetero.cli.compile import compile_command
from hetero.cli.devices import devices, probe
from hetero.cli.doctor import doctor
from hetero.cli.help_examples import add_examples
from hetero.cli.inspect import inspect_command
from hetero.cli.plan import plan
from hetero.cli.pool import pool
from hetero.cli.profile import profile_command
from hetero.cli.query import query
from hetero.cli.run import run
from hetero.cli.signals import INTERRUPTED, with_signal
from hetero.cli.terminal import print_json
from hetero.cli.top import top
from hetero.devices.errors import HeteroError
from hetero.formatting import visible


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hetero")
def cli() -> None:
    """One ONNX model, cut across unlike devices.

    Exit codes: 0 done, 1 an error or a wrong answer, 2 wrong usage,
    130 after Ctrl-C, 143 after SIGTERM.
    """


for command in (
    doctor,
    devices,
    inspect_command,
    query,
    profile_command,
    plan,
    compile_command,
    run,
    bench,
    compare,
    cache,
    pool,
    top,
    probe,
    check_device_command,
):
    cli.add_command(command)
for entry_point in entry_points(group="hetero.commands"):
    cli.add_command(entry_point.load())
add_examples(cli)


def main() -> None:
    """Run the command line; an error is one message, or with ``--json`` one document."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A locale without a character shows its escape.
            stream.reconfigure(errors="backslashreplace")
    try:
        # Out of standalone mode click returns the code of `ctx.exit`, which commands use for 1.
        code = cli.main(standalone_mode=False, prog_name="hetero")
    except BrokenPipeError:
        # The reader has gone; what Python still has to write at its end goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (Exception, KeyboardInterrupt) as error:
        code = _tell(error)
    sys.exit(with_signal(code if isinstance(code, int) else 0))


def _tell(error: BaseException) -> int:
    """Print an error and return the exit code; raise one that no command expects again."""
    kind, code, data, expected = type(error).__name__, 1, {}, True
    if isinstance(error, HeteroError):
        message, data = f"{error}", error.data
    elif isinstance(error, click.Abort | KeyboardInterrupt):
        kind, message, code = "Interrupted", "interrupted", INTERRUPTED
    elif isinstance(error, click.ClickException):
        message, code = error.format_message(), error.exit_code
    elif isinstance(error, MemoryError):
        message = f"not enough memory: {error}"
    elif isinstance(error, OSError):
        message = f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
    else:
        message, expected = f"{error}", False
    message = visible(message, keep="\n")
    if "--json" in sys.argv:
        with contextlib.suppress(OSError):  # where it is to go may be what is full
            print_json("error", {"error": {**data, "type": kind, "message": message}})
    if not expected:
        raise error
    if "--json" in sys.argv:
        return code
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(message, err=True)
    elif isinstance(error, click.ClickException):
        if isinstance(error, click.UsageError) and error.ctx:
            click.echo(f"{error.ctx.get_usage()}\n", err=True)
        click.echo(f"Error: {message}", err=True)
    elif kind == "Interrupted":
        click.echo("hetero: interrupted", err=True)
    else:
        where = f"{kind}: " if isinstance(error, HeteroError) else ""
        click.echo(f"hetero: {where}{message}", err=True)
    return code
