"""Verdict of a report: requested and used devices, fallbacks and cut tensors, in one line."""

from __future__ import annotations

from typing import Any

from hetero.formatting import count_text, nbytes_text, seconds_text, shapes_text
from hetero.report.support_matrix import count_causes


def fallback(document: dict[str, Any]) -> dict[str, Any]:
    """Return the nodes that the preferred device refused and another one runs, and the reasons."""
    devices = document["request"]["devices"]
    first = devices[0] if devices else None
    fallback_nodes = [
        node
        for node in document["nodes"]
        if node["device"] not in (None, first) and first not in node["supported_on"]
    ]
    refusals = [
        node["refusals"].get(first, {"code": "policy", "message": "no reason given"})
        for node in fallback_nodes
    ]
    return {
        "device": first,
        "nodes": [node["name"] for node in fallback_nodes],
        "reasons": count_causes((refusal["code"], refusal["message"]) for refusal in refusals),
    }


def verdict(document: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict as numbers and as a sentence."""
    used = {d["name"]: d["nodes"] for d in document["devices"] if d["used"]}
    num_unsupported = sum(node["device"] is None for node in document["nodes"])
    crossing_nbytes = sum(wire["nbytes"] or 0 for wire in document["wires"])
    num_unknown = sum(wire["nbytes"] is None for wire in document["wires"])
    has_open_dimensions = any(wire["open_dims"] for wire in document["wires"])
    fallback_nodes = document["fallback"]["nodes"]
    plan = document["plan"]
    total = sum(d["load_s"] or 0.0 for d in document["devices"])
    loads = {d["name"]: d["load_s"] / total for d in document["devices"] if total and d["used"]}
    shares = [
        f"{name} ({count_text(count, 'node')}"
        + (f", {loads[name] * 100:.0f} % of the time)" if name in loads else ")")
        for name, count in used.items()
    ]
    parts = [
        f"REQUESTED {','.join(document['request']['devices'])}",
        f"USED {' '.join(shares) or 'none'}",
    ]
    if num_unsupported:
        parts.append(f"UNSUPPORTED {count_text(num_unsupported, 'node')}")
    reasons = len(document["fallback"]["reasons"])
    parts.append(
        f"FALLBACK {count_text(len(fallback_nodes), 'node')}"
        + (f", {count_text(reasons, 'reason')}" if reasons else "")
    )
    if document["uncut"] is None:
        more = " plus open dimensions" if has_open_dimensions else ""
        more += f" plus {count_text(num_unknown, 'tensor')} of unknown size" if num_unknown else ""
        cuts = count_text(len(document["wires"]), "cut")
        parts.append(f"{cuts}, {nbytes_text(crossing_nbytes)} per request{more}")
    else:
        parts.append("cannot be partitioned")
    if shapes := document["request"]["shapes"]:
        parts.append(f"at {shapes_text(shapes)}")
    if len(document["replicas"]) > 1:
        shares = [f"{replica['share'] * 100:.0f} %" for replica in document["replicas"]]
        parts.append(f"{len(shares)} replicas share the requests: {', '.join(shares)}")
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
        "unsupported": num_unsupported,
        "fallback_nodes": len(fallback_nodes),
        "fallback_reasons": reasons,
        "cuts": len(document["wires"]),
        "crossing_nbytes": crossing_nbytes,
        "unknown_wires": num_unknown,
        "sentence": " | ".join(parts),
    }
