"""Command line: ``hetero devices | query | profile | plan | compile | run | bench | ...``."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from importlib.metadata import entry_points

import click

from hetero.cli.bench import bench
from hetero.cli.cache import cache
from hetero.cli.check import check
from hetero.cli.check_device import check_device_command
from hetero.cli.compare import compare
from hetero.cli.compile import compile_command
from hetero.cli.devices import devices, probe
from hetero.cli.doctor import doctor
from hetero.cli.help_examples import add_examples
from hetero.cli.inspect import inspect_command
from hetero.cli.output_files import fix_of_file_error
from hetero.cli.plan import plan
from hetero.cli.pool import pool
from hetero.cli.profile import profile_command
from hetero.cli.query import query
from hetero.cli.run import run
from hetero.cli.signals import INTERRUPTED, exit_code_for
from hetero.cli.terminal import print_json
from hetero.cli.top import top
from hetero.devices.errors import HeteroError
from hetero.formatting import visible


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hetero")
def cli() -> None:
    """Run one ONNX model across several devices and runtimes.

    Exit codes: 0 success, 1 error or wrong result, 2 wrong usage,
    130 after Ctrl-C, 143 after SIGTERM.
    """


for command in (
    doctor,
    devices,
    inspect_command,
    check,
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


def _broken_command(name: str, error: ImportError) -> click.Command:
    """Return a command that reports why it cannot be loaded; the other commands still work."""

    def fail(**_: object) -> None:
        raise click.ClickException(f"the command {name} cannot be loaded: {error}.")

    return click.Command(name, callback=fail, help=f"Cannot be loaded: {error}.")


for entry_point in entry_points(group="hetero.commands"):
    try:
        application_command = entry_point.load()
    except ImportError as import_error:
        application_command = _broken_command(entry_point.name, import_error)
    cli.add_command(application_command)
add_examples(cli)


def main() -> None:
    """Run the command line; print an error as a message, or with ``--json`` as a document."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the locale lacks are escaped.
            stream.reconfigure(errors="backslashreplace")
    try:
        # With standalone_mode=False click returns the code that a command passes to `ctx.exit`.
        code = cli.main(standalone_mode=False, prog_name="hetero")
    except BrokenPipeError:
        # The reader has closed the pipe; discard the rest of Python's output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (Exception, KeyboardInterrupt) as error:
        code = _print_error(error)
    sys.exit(exit_code_for(code if isinstance(code, int) else 0))


def _print_error(error: BaseException) -> int:
    """Print an error and return the exit code; raise an unexpected error again."""
    kind, code, data, is_expected = type(error).__name__, 1, {}, True
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
        if fix := fix_of_file_error(error):
            message += f"; {fix}."
    else:
        message, is_expected = f"{error}", False
    message = visible(message, keep="\n")
    if "--json" in sys.argv:
        with contextlib.suppress(OSError):  # the error may be a full disk behind stdout
            print_json("error", {"error": {**data, "type": kind, "message": message}})
    if not is_expected:
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
        prefix = f"{kind}: " if isinstance(error, HeteroError) else ""
        click.echo(f"hetero: {prefix}{message}", err=True)
    return code
