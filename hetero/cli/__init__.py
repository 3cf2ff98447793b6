"""The command line: ``hetero devices | query | profile | plan | compile | run | bench | ...``."""

from __future__ import annotations

import sys

import click

from devices.errors import HeteroError
from hetero.cli.bench import bench
from hetero.cli.blob import blob
from hetero.cli.cache import cache
from hetero.cli.compare import compare
from hetero.cli.compile import compile_command
from hetero.cli.devices import devices
from hetero.cli.examples import add_examples
from hetero.cli.plan import plan
from hetero.cli.probe import probe
from hetero.cli.profile import profile_command
from hetero.cli.query import query
from hetero.cli.run import run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hetero")
def cli() -> None:
    """One ONNX model, cut across unlike devices.

    Exit codes: 0 done, 1 an error or a wrong answer, 2 wrong usage.
    """


for command in (
    devices, query, profile_command, plan, compile_command, run, bench, compare, blob, cache,
    probe,
):  # fmt: skip
    cli.add_command(command)
add_examples(cli.commands.values())


def main() -> None:
    """Run the command line; errors of ours are one message on stderr and exit code 1."""
    try:
        # Out of standalone mode click returns the code of `ctx.exit`, which commands use for 1.
        code = cli.main(standalone_mode=False, prog_name="hetero")
        sys.exit(code if isinstance(code, int) else 0)
    except HeteroError as error:
        click.echo(f"hetero: {type(error).__name__}: {error}", err=True)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("hetero: interrupted", err=True)
        sys.exit(1)
    except OSError as error:
        click.echo(f"hetero: {error.strerror or error}: {error.filename or ''}", err=True)
        sys.exit(1)
