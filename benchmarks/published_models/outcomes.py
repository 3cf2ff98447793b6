"""Outcomes of trials, each in a process of its own, and a summary of all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, Final

#: Time limit of one trial.
_TRIAL_S: Final = 120


def outcome(module: str, *arguments: str) -> dict[str, Any]:
    """Return the last line that ``python -m MODULE`` prints, or how the process ended."""
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TRIAL_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"outcome": "too long", "why": f"over {_TRIAL_S} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return {"outcome": "crashed", "why": last[0]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def closing(rows: Collection[dict[str, Any]], ways: Iterable[str]) -> str:
    """Return a line for each placement: the number of trials with each outcome."""
    lines = []
    for way in ways:
        counts = Counter(row["outcome"] for row in rows if row["way"] == way)
        if counts:
            summary = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items()))
            lines.append(f"{way}: {summary}")
    return "\n".join(lines)
