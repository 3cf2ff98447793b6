"""How objects show themselves in a notebook: a caption and a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

#: Rows of a table before the rest is counted.
_SHOWN: Final = 50


def html_table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as HTML; what is in it is escaped."""
    listed = list(rows)
    body = "".join(_row("td", row) for row in listed[:_SHOWN])
    more = f"<p>… and {len(listed) - _SHOWN} more</p>" if len(listed) > _SHOWN else ""
    head = _row("th", heads)
    return (
        f"<p>{escape(caption)}</p><table><thead>{head}</thead><tbody>{body}</tbody></table>{more}"
    )


def _row(cell: str, values: Sequence[Any]) -> str:
    return f"<tr>{''.join(f'<{cell}>{escape(str(value))}</{cell}>' for value in values)}</tr>"
