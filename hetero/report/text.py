"""Text for terminals and pipes: others' names cannot steer a terminal, and tables cut nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text


def visible(text: str, keep: str = "") -> str:
    r"""Return text with its control characters written out, as ``\x1b``; those in `keep` stay."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def styled(text: str, style: str = "") -> Text:
    """Return text as it is, no markup read in it."""
    return Text(visible(text), style)


#: Columns of text that may wrap keep at least this many characters.
NARROWEST: Final = 8


class Rows(Table):
    """A table that cuts nothing: long texts wrap, the rest is as wide as it is.

    Print it with ``crop=False``.

    `wraps`: heads of the columns that wrap on a narrow terminal.
    """

    def __init__(self, *heads: str, wraps: Collection[str] = ()) -> None:
        columns = [
            Column(styled(head), overflow="fold", no_wrap=head not in wraps) for head in heads
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
