"""Skips for want of a vendor's package: one line for each vendor in the summary of a run."""

from __future__ import annotations

import re
from typing import Any

#: Vendor's package -> pattern in the reasons of its skips.
_VENDORS = {
    "openvino": r"openvino",
    "onnxruntime-ggml": r"onnxruntime.ggml",
    "cupy and a GPU": r"cupy|hetero\[gpu\]",
    "tritonclient": r"tritonclient",
}


def group_by_vendor(report: Any) -> Any:
    """Give skips of one vendor the same place and reason, which pytest's summary then counts."""
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        for vendor, pattern in _VENDORS.items():
            if re.search(pattern, reason, re.IGNORECASE):
                report.longrepr = ("tests", None, f"Skipped: needs {vendor}")
                break
    return report
