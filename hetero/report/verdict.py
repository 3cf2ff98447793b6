"""The verdict: what was asked for, what is used, what fell back, what crosses, in one line."""

from __future__ import annotations

from typing import Any

from hetero.formatting import counted, nbytes_text, seconds_text, shapes_text
from hetero.report.support_matrix import causes


def fallback(document: dict[str, Any]) -> dict[str, Any]:
    """Count the nodes that the most preferred device refused and another one took, by reason."""
    devices = document["request"]["devices"]
    first = devices[0] if devices else None
    fallen = [
        node
        for node in document["nodes"]
        if node["device"] not in (None, first) and first not in node["supported_on"]
    ]
    refusals = [
        node["refusals"].get(first, {"code": "policy", "message": "no reason given"})
        for node in fallen
    ]
    return {
        "device": first,
        "nodes": [node["name"] for node in fallen],
        "reasons": causes((refusal["code"], refusal["message"]) for refusal in refusals),
    }


def verdict(document: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict in numbers and as a sentence."""
    used = {d["name"]: d["nodes"] for d in document["devices"] if d["used"]}
    nowhere = sum(node["device"] is None for node in document["nodes"])
    crossing = sum(wire["nbytes"] or 0 for wire in document["wires"])
    unknown = sum(wire["nbytes"] is None for wire in document["wires"])
    opened = any(wire["open_dims"] for wire in document["wires"])
    fallen = document["fallback"]
    plan = document["plan"]
    total = sum(d["load_s"] or 0.0 for d in document["devices"])
    loads = {d["name"]: d["load_s"] / total for d in document["devices"] if total and d["used"]}
    shares = [
        f"{name} ({counted(count, 'node')}"
        + (f", {loads[name] * 100:.0f} % of the time)" if name in loads else ")")
        for name, count in used.items()
    ]
    parts = [
        f"REQUESTED {','.join(document['request']['devices'])}",
        f"USED {' '.join(shares) or 'none'}",
    ]
    if nowhere:
        parts.append(f"UNSUPPORTED {counted(nowhere, 'node')}")
    reasons = len(fallen["reasons"])
    parts.append(
        f"FALLBACK {counted(len(fallen['nodes']), 'node')}"
        + (f", {counted(reasons, 'reason')}" if reasons else "")
    )
    if document["uncut"] is None:
        more = " and more for open dimensions" if opened else ""
        more += f" and {counted(unknown, 'tensor')} of unknown size" if unknown else ""
        parts.append(
            f"{counted(len(document['wires']), 'cut')}, {nbytes_text(crossing)} per request{more}"
        )
    else:
        parts.append("cannot be cut")
    if shapes := document["request"]["shapes"]:
        parts.append(f"at {shapes_text(shapes)}")
    if len(document["variants"]) > 1:
        shares = [f"{variant['share'] * 100:.0f} %" for variant in document["variants"]]
        parts.append(f"{len(shares)} variants share the requests: {', '.join(shares)}")
    if plan is not None:
        rate = plan["throughput_per_s"]
        parts.append(
            f"predicted {seconds_text(plan['latency_s'])}"
            + (f", {rate:.4g} requests/s" if rate else "")
            + f", bottleneck {plan['bottleneck']}"
        )
    return {
        "requested": list(document["request"]["devices"]),
        "used": used,
        "unused": [d["name"] for d in document["devices"] if not d["used"]],
        "unsupported": nowhere,
        "fallback_nodes": len(fallen["nodes"]),
        "fallback_reasons": reasons,
        "cuts": len(document["wires"]),
        "crossing_nbytes": crossing,
        "unknown_wires": unknown,
        "sentence": " | ".join(parts),
    }
