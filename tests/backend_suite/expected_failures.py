"""Lists of cases that are expected to fail: one per line, ``kind/name  reason``."""

from __future__ import annotations

from pathlib import Path

_TESTS = Path(__file__).parents[1]


def read_expected_failures(path: Path) -> dict[str, str]:
    """Read a list as case name -> reason; skip blank lines and comments."""
    reasons = {}
    for line in path.read_text().splitlines():
        name, _, reason = line.strip().partition("  ")
        if name and not name.startswith("#"):
            if not reason.strip():
                raise ValueError(f"{path.name}: {name} has no reason")
            reasons[name] = reason.strip()
    return reasons


def may_pass(reason: str) -> bool:
    """Return whether a listed case may also pass, by chance or on other machines."""
    return reason.startswith("varies:")


#: Cases that may fail if models are split over OV, ORT and CPU: those of the single devices, and
#: one that differs by one step of float16 in one of 576 elements.
EXPECTED_FAILURES_OF_THREE_VENDORS = {
    *read_expected_failures(_TESTS / "backend_suite" / "expected_failures_hetero.txt"),
    *read_expected_failures(_TESTS / "devices" / "expected_failures_openvino.txt"),
    "node/test_attention_4d_gqa_with_past_and_present_fp16_expanded",
}
