"""The report as one HTML page that needs nothing else: data, drawings, style and script inline."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from importlib import resources
from typing import Any, Final

from hetero.report.blocks import visible_nodes
from hetero.report.layout import drawings

_TEMPLATE: Final = "report.html"
_DATA: Final = "__REPORT_DATA__"
_TITLE: Final = "__REPORT_TITLE__"


def report_html(document: dict[str, Any]) -> str:
    """Return the page; the document is embedded whole: the page is the report's JSON as well."""
    data = {
        "report": document,
        "drawings": drawings(document),
        "owners": list(visible_nodes(document)[1].items()),
    }
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    # Inside a script element only "</" and "<!--" could end or change it.
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    title = escape(f"{document['model']['name']} on {document['request']['device']}")
    return _template().replace(_TITLE, title).replace(_DATA, text)


@cache
def _template() -> str:
    return resources.files("hetero.report").joinpath(_TEMPLATE).read_text(encoding="utf-8")
