"""The report as a self-contained HTML page, with its data, drawing, style and script inline."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from importlib import resources
from typing import Any, Final

from hetero.report.layout import chains, drawing

_TEMPLATE: Final = "report.html"
_DATA: Final = "__REPORT_DATA__"
_TITLE: Final = "__REPORT_TITLE__"


def report_html(document: dict[str, Any]) -> str:
    """Return the page; it embeds the whole document, which other programs can read from it."""
    data = {"report": document, "drawing": drawing(document), "chains": chains(document)}
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    # Inside a script element only "</" and "<!--" could end or change it.
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    title = escape(f"{document['model']['name']} on {document['request']['device']}")
    return _template().replace(_TITLE, title).replace(_DATA, text)


@cache
def report_style() -> str:
    """Return the report's style sheet, for other pages."""
    return _template().partition("<style>")[2].partition("</style>")[0]


@cache
def _template() -> str:
    return resources.files("hetero.report").joinpath(_TEMPLATE).read_text(encoding="utf-8")
