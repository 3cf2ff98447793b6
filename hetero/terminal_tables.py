"""Tables for terminals and pipes: no cell is cut, no name can control the terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from rich import box
from rich import table as rich_table
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from hetero.formatting import visible

#: What a column shows of a row: a field, a format of fields as ``{seconds:.1f}``, a field and how
#: its value is written where there is one, or a function of the row.
Column = str | tuple[str, Callable[[Any], str]] | Callable[[Any], object]
#: Columns by their heads.
Columns = dict[str, Column]


def styled(text: str, style: str = "") -> Text:
    """Return text as it is, no markup read in it."""
    return Text(visible(text), style)


#: Columns of text that may wrap keep at least this many characters.
NARROWEST: Final = 8


class Rows(rich_table.Table):
    """A table that cuts nothing: columns in `wraps` wrap, the rest is as wide as it is.

    Print it with ``crop=False``.
    """

    def __init__(self, *heads: str, wraps: Collection[str] = ()) -> None:
        columns = [
            rich_table.Column(styled(head), overflow="fold", no_wrap=head not in wraps)
            for head in heads
        ]
        super().__init__(*columns, box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        self._widen(map(styled, heads))

    def add(self, *cells: object, style: str | None = None) -> None:
        """Add a row; None is an empty cell."""
        shown = [c if isinstance(c, Text) else styled("" if c is None else str(c)) for c in cells]
        self._widen(shown)
        self.add_row(*shown, style=style)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Of a table that is squeezed further rich leaves out whole columns.
        least = sum((column.min_width or 0) + 3 for column in self.columns) + 1
        wide = options.update_width(max(options.max_width, least))
        yield from super().__rich_console__(console, wide)

    def _widen(self, cells: Iterable[Text]) -> None:
        """Keep columns at least so wide that no word of a number or name is cut."""
        for column, cell in zip(self.columns, cells, strict=True):
            least = cell.cell_len if column.no_wrap else min(cell.cell_len, NARROWEST)
            column.min_width = max(column.min_width or 0, least)


def table(
    rows: Iterable[Any],
    columns: Columns,
    wraps: Collection[str] = (),
    style: Callable[[Any], str | None] = lambda row: None,
) -> Rows:
    """Return a table of rows, which are mappings or dataclasses, with these columns."""
    made = Rows(*columns, wraps=wraps)
    for row in rows:
        named = isinstance(row, Mapping)
        values = row if named else {f.name: getattr(row, f.name) for f in fields(row)}
        made.add(*(_cell(row, values, column) for column in columns.values()), style=style(row))
    return made


def _cell(row: Any, values: Mapping[str, Any], column: Column) -> object:
    if isinstance(column, tuple):
        field, write = column
        return None if values[field] is None else write(values[field])
    if not isinstance(column, str):
        return column(row)
    return column.format_map(values) if "{" in column else values[column]


def ms(field: str, digits: int = 3) -> Column:
    """Return a column of a field's seconds in milliseconds."""
    return field, lambda seconds: f"{seconds * 1e3:.{digits}f}"
