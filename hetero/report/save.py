"""Writes the report of a survey to a file, in the format of the file's suffix."""

from __future__ import annotations

import json
from pathlib import Path

from hetero.devices.errors import ArgumentError
from hetero.query.survey import Survey
from hetero.report.annotated_model import annotated_model
from hetero.report.document import build_report
from hetero.report.html_page import report_html
from hetero.scheduler.formats.publish import publish


def save_report(survey: Survey, path: str | Path) -> None:
    """Write the report of a survey as ``.html``, ``.json`` or ``.onnx``."""
    path = Path(path)
    document = build_report(survey)
    match path.suffix.lower():
        case ".html":
            publish(path, lambda file: file.write(report_html(document).encode()))
        case ".json":
            text = json.dumps(document, indent=2, ensure_ascii=False, default=str)
            publish(path, lambda file: file.write(text.encode()))
        case ".onnx":
            annotated_model(survey.model, document).save(path)
        case suffix:
            raise ArgumentError(
                f"save {str(path)!r}: expected a name that ends in .html, .json or .onnx, got "
                f"{suffix or 'no suffix'!r}."
            )
