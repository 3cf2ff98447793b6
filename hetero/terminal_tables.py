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

#: A column's cell: a field's name, a format such as ``{seconds:.1f}``, a field and the function
#: that formats its value unless it is None, or a function of the row.
Column = str | tuple[str, Callable[[Any], str]] | Callable[[Any], object]
#: Columns by their heads.
Columns = dict[str, Column]


def styled_text(text: str, style: str = "") -> Text:
    """Return text in which markup has no effect and control characters are visible."""
    return Text(visible(text), style)


#: Least width of a column that wraps, in characters.
MIN_WRAPPED_WIDTH: Final = 8


class Rows(rich_table.Table):
    """Table that truncates no cell: the columns in `wraps` wrap, the others keep their full width.

    Print it with ``crop=False``.
    """

    def __init__(self, *heads: str, wraps: Collection[str] = ()) -> None:
        columns = [
            rich_table.Column(styled_text(head), overflow="fold", no_wrap=head not in wraps)
            for head in heads
        ]
        super().__init__(*columns, box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        self._widen(map(styled_text, heads))

    def add(self, *cells: object, style: str | None = None) -> None:
        """Add a row; None is an empty cell."""
        texts = [
            c if isinstance(c, Text) else styled_text("" if c is None else str(c)) for c in cells
        ]
        self._widen(texts)
        self.add_row(*texts, style=style)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # rich omits whole columns of a narrower table.
        min_width = sum((column.min_width or 0) + 3 for column in self.columns) + 1
        wide_options = options.update_width(max(options.max_width, min_width))
        yield from super().__rich_console__(console, wide_options)

    def _widen(self, cells: Iterable[Text]) -> None:
        """Set the columns' least widths such that no number or name is truncated."""
        for column, cell in zip(self.columns, cells, strict=True):
            width = cell.cell_len if column.no_wrap else min(cell.cell_len, MIN_WRAPPED_WIDTH)
            column.min_width = max(column.min_width or 0, width)


def table(
    rows: Iterable[Any],
    columns: Columns,
    wraps: Collection[str] = (),
    style: Callable[[Any], str | None] = lambda row: None,
) -> Rows:
    """Return a table of rows, which are mappings or dataclasses."""
    result = Rows(*columns, wraps=wraps)
    for row in rows:
        is_mapping = isinstance(row, Mapping)
        values = row if is_mapping else {f.name: getattr(row, f.name) for f in fields(row)}
        result.add(*(_cell(row, values, column) for column in columns.values()), style=style(row))
    return result


def _cell(row: Any, values: Mapping[str, Any], column: Column) -> object:
    if isinstance(column, tuple):
        field, formatter = column
        return None if values[field] is None else formatter(values[field])
    if not isinstance(column, str):
        return column(row)
    return column.format_map(values) if "{" in column else values[column]


def ms(field: str, digits: int = 3) -> Column:
    """Return a column that shows a field's seconds in milliseconds."""
    return field, lambda seconds: f"{seconds * 1e3:.{digits}f}"
