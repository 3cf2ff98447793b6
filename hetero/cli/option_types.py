"""Kinds of options: NAME=VALUE pairs, finite numbers, and several that come together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import click

#: Adds one or more options to a command's function.
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

#: Where a command keeps that its ``--json`` was given, for `hetero.cli.terminal.tell`.
WANTS_JSON: Final = "hetero.wants_json"


def _keep_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[WANTS_JSON] = value


#: Adds ``--json``, which is no argument of the command.
json_option: Final = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_keep_json,
    help="Print JSON for programs.",
)


class Finite(click.FloatRange):
    """A range of numbers; click's own lets ``nan`` through, and without an end ``inf``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; a usage error says what it cannot be."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return found


def together(*decorators: Decorator) -> Decorator:
    """Return several decorators as one; the first one's option comes first in the help."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def pairs(
    wanted: str,
    read: Callable[[str], Any] = str,
    *,
    of_input: bool = False,
    bare: bool = False,
    listed: bool = False,
) -> Callable[[click.Context, click.Parameter, Any], dict[str, Any]]:
    """Return the callback of an option that may be given several times, as NAME=VALUE.

    `wanted`: how to write one, for the message.
    `read`: makes a value of its text; raises ValueError if it cannot.
    `of_input`: whether names are those of inputs, which may have a ``=`` in them.
    `bare`: whether a value may stand alone; its name is empty then.
    `listed`: whether the option is given once, with commas between its pairs.
    """

    def parse(context: click.Context, parameter: click.Parameter, value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        given = filter(str.strip, (value or "").split(",")) if listed else value
        for part in given:
            split = part.rpartition("=") if of_input else part.partition("=")
            name, equals, text = (word.strip() for word in split)
            try:
                item = read(text)
                if not bare and not (name and equals):
                    raise ValueError("no name")
            except ValueError as error:
                raise click.BadParameter(f"{part!r}: wanted {wanted}") from error
            if name in found:
                raise click.BadParameter(f"{name or 'it'} is given twice; keep one.")
            found[name] = item
        return found

    return parse
