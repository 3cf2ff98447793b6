"""Support matrix: nodes of each operator that each device supports, with refusals by cause."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Support
from hetero.query.priority import refusal_of


def support_matrix(model: Model, answers: Mapping[str, Support]) -> list[dict[str, Any]]:
    """Return a row for each operator, the most frequent first; refusals are sorted likewise."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for node in model.nodes:
        nodes.setdefault((node.domain, node.op_type), []).append(node.name)
    ranked = sorted(nodes.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        {
            "op_type": op_type,
            "domain": domain,
            "total": len(names),
            "devices": {device: _cell(names, device, answers[device]) for device in answers},
        }
        for (domain, op_type), names in ranked
    ]


def count_causes(refusals: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Count refusals (code, message) by cause, the most frequent first.

    Messages that differ only in quoted names have one cause; its message has … for the names.
    """
    counts: dict[tuple[str, str], Counter[str]] = {}
    for code, message in refusals:
        counts.setdefault((code, without_names(message)), Counter())[message] += 1
    rows = [
        {
            "code": code,
            "message": min(messages) if len(messages) == 1 else cause,
            "count": messages.total(),
        }
        for (code, cause), messages in counts.items()
    ]
    return sorted(rows, key=lambda row: (-row["count"], row["code"], row["message"]))


def without_names(message: str) -> str:
    """Return a message with … for each quoted name."""
    return re.sub(r"'[^']*'", "…", message)


def _cell(names: list[str], device: str, answer: Support) -> dict[str, Any]:
    refused_names = [name for name in names if name not in answer.devices]
    reasons = (refusal_of(answer, name, device) for name in refused_names)
    return {
        "supported": len(names) - len(refused_names),
        "refusals": count_causes((refusal.code, refusal.message) for refusal in reasons),
    }
