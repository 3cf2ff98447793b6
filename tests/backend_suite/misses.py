"""Expected misses as data: one a line, ``kind/name  reason``."""

from __future__ import annotations

from pathlib import Path

_TESTS = Path(__file__).parents[1]


def read_misses(path: Path) -> dict[str, str]:
    """Return case name -> reason; blank lines and ``#`` lines are skipped."""
    found = {}
    for line in path.read_text().splitlines():
        name, _, reason = line.strip().partition("  ")
        if name and not name.startswith("#"):
            if not reason.strip():
                raise ValueError(f"{path.name}: {name} is listed without a reason")
            found[name] = reason.strip()
    return found


def may_pass(reason: str) -> bool:
    """Return whether chance or the machine decides about a listed case."""
    return reason.startswith("varies:")


#: Of models over OV, ORT and CPU: what the two others miss as well, OpenVINO alone, and one step of
#: float16 at one element of 576.
THREE_VENDORS = {
    *read_misses(_TESTS / "backend_suite" / "misses_hetero.txt"),
    *read_misses(_TESTS / "devices" / "misses_openvino.txt"),
    "node/test_attention_4d_gqa_with_past_and_present_fp16_expanded",
}
