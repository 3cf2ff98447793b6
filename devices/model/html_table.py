"""HTML tables for the display of objects in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

#: Maximum rows of a table; the rest is summarized as a count.
_MAX_ROWS: Final = 50


def html_table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table with a caption as HTML; all texts are escaped."""
    rows = list(rows)
    body = "".join(_row("td", row) for row in rows[:_MAX_ROWS])
    rest = f"<p>… and {len(rows) - _MAX_ROWS} more</p>" if len(rows) > _MAX_ROWS else ""
    head = _row("th", heads)
    return (
        f"<p>{escape(caption)}</p><table><thead>{head}</thead><tbody>{body}</tbody></table>{rest}"
    )


def _row(cell: str, values: Sequence[Any]) -> str:
    return f"<tr>{''.join(f'<{cell}>{escape(str(value))}</{cell}>' for value in values)}</tr>"
