"""The support matrix: how many nodes of each operator each device takes, and why not all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from devices.model.model import Model
from devices.plugin.support import Support
from hetero.query.query import reason


def support_matrix(model: Model, answers: Mapping[str, Support]) -> list[dict[str, Any]]:
    """Return a row for each operator of the model, the most frequent first.

    `answers`: device name -> its answer about the whole model.
    Returns: ``op_type``, ``domain``, ``total`` and, by device, ``supported`` and ``refusals``:
        code, message and count, the most frequent first.
    """
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


def supporters(name: str, answers: Mapping[str, Support]) -> list[str]:
    """Return the devices that take a node, in order of preference."""
    return [device for device, answer in answers.items() if name in answer.devices]


def _cell(names: list[str], device: str, answer: Support) -> dict[str, Any]:
    refused = [name for name in names if name not in answer.devices]
    reasons = Counter(reason(answer, name, device) for name in refused)
    return {
        "supported": len(names) - len(refused),
        "refusals": [
            {"code": refusal.code, "message": refusal.message, "count": count}
            for refusal, count in reasons.most_common()
        ],
    }
