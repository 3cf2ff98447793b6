"""Reports: one JSON document about a model on its devices, and what is drawn from it.

`build_report` makes the document from a `Survey` and maybe a `PlanReport`; the other functions
draw from the document alone.
"""

from hetero.query.survey import Survey
from hetero.report.annotated import annotated_model, model_explorer_overlay
from hetero.report.contract import VERSION, build_report
from hetero.report.dot import report_dot
from hetero.report.html import report_html
from hetero.report.lints import strict_problems
from hetero.report.table import report_table

__all__ = [
    "VERSION",
    "Survey",
    "annotated_model",
    "build_report",
    "model_explorer_overlay",
    "report_dot",
    "report_html",
    "report_table",
    "strict_problems",
]
