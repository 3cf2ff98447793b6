"""Report about a model on its devices: one JSON document, rendered as table, HTML or ONNX.

`build_report` makes the document from a `Survey` and an optional `PlanReport`. The other functions
render the document and read nothing else.
"""

from hetero.report.annotated_model import annotated_model
from hetero.report.document import build_report
from hetero.report.html_page import report_html
from hetero.report.lints import strict_problems
from hetero.report.terminal_report import report_table

__all__ = ["annotated_model", "build_report", "report_html", "report_table", "strict_problems"]
