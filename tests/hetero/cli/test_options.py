"""Options of commands."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from hetero.cli.main import cli
from tests.support.rows import for_each_row


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


@for_each_row("name, command", commands(cli), name_of=lambda name, command: name)
def test_command_accepts_its_options(name, command):
    """A shared group of options that grows reaches each command that uses it."""
    assert command.callback is not None
    signature = inspect.signature(command.callback, follow_wrapped=False)
    signature.bind(
        **{parameter.name: None for parameter in command.params if parameter.expose_value}
    )
