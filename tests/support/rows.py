"""One test that checks every row of a table, and reports each row that fails.

A case of pytest takes a few milliseconds of its own in each process. Quick checks of many rows are
therefore one case.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from textwrap import shorten
from typing import Any

import pytest


def for_each_row(
    names: str, rows: Iterable[Any], name_of: Callable[..., str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that calls a test with each row.

    Parameters
    ----------
    names : str
        The parameters of the test that a row has values for, separated by commas. The test's other
        parameters are fixtures, which all rows share.
    rows : iterable
        The values of each row; of a single parameter, the value itself.
    name_of : callable, optional
        Returns the name of a row from its values; by default the name consists of the values.
    """
    parameters = [name.strip() for name in names.split(",")]
    table = [tuple(row) if len(parameters) > 1 else (row,) for row in rows]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def check_rows(**fixtures: Any) -> None:
            assert table, "the table is empty"
            failures: dict[str, BaseException] = {}
            for position, row in enumerate(table):
                try:
                    test(**fixtures, **dict(zip(parameters, row, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    name = name_of(*row) if name_of else _name(row)
                    error.add_note(f"row {position}: {name}")
                    failures[f"row {position} ({name})"] = error
            if failures:
                summary = f"{len(failures)} of {len(table)} rows fail: {'; '.join(failures)}"
                raise BaseExceptionGroup(summary, list(failures.values()))

        signature = inspect.signature(test)
        fixtures = [p for name, p in signature.parameters.items() if name not in parameters]
        check_rows.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return check_rows

    return decorate


def _name(row: tuple[Any, ...]) -> str:
    """Return the values in one line; of functions and classes, their names."""
    return shorten(", ".join(str(getattr(value, "__name__", value)) for value in row), 200)
