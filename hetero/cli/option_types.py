"""Types of command-line options: NAME=VALUE pairs, finite numbers, and groups of options."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

import click

#: Adds one or more options to a command's function.
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

#: Key of click's context under which ``--json`` is stored for `hetero.cli.terminal`.
WANTS_JSON: Final = "hetero.wants_json"


def _keep_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[WANTS_JSON] = value


#: Adds ``--json``; the command function gets no argument for it.
json_option: Final = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_keep_json,
    help="Print the result as JSON.",
)


class FiniteFloat(click.FloatRange):
    """Range of finite numbers; click's own range accepts ``nan`` and ``inf``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; a usage error if it is not finite or out of range."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def combine_options(*decorators: Decorator) -> Decorator:
    """Combine option decorators into one; the first one's option comes first in the help."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def name_value_pairs(
    syntax: str,
    read: Callable[[str], Any] = str,
    *,
    of_input: bool = False,
    bare: bool = False,
    listed: bool = False,
) -> Callable[[click.Context, click.Parameter, Any], dict[str, Any]]:
    """Return a click callback that parses NAME=VALUE options into a dictionary.

    `syntax`: the expected form, for the error message.
    `read`: parses a value; raises ValueError if it is invalid.
    `of_input`: whether names are those of model inputs, which may contain ``=``.
    `bare`: whether a value without a name is allowed; its name is empty.
    `listed`: whether one option holds all pairs, separated by commas.
    """

    def parse(context: click.Context, parameter: click.Parameter, value: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        parts = filter(str.strip, (value or "").split(",")) if listed else value
        for part in parts:
            split = part.rpartition("=") if of_input else part.partition("=")
            name, equals, text = (word.strip() for word in split)
            try:
                item = read(text)
                if not bare and not (name and equals):
                    raise ValueError("no name")
            except ValueError as error:
                message = f"got {part!r}, expected {syntax}"
                if listed and part != value:
                    message = f"got {part!r} in {value!r}, expected {syntax}"
                    if re.search(r"\d,\d", value):
                        message += "; commas separate the pairs, so write 1.5 with a point"
                raise click.BadParameter(f"{message}.") from error
            if name in values:
                raise click.BadParameter(f"{name or 'the value'} is set twice; keep one.")
            values[name] = item
        return values

    return parse
