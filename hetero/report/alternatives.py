"""What else could have been: each device alone, plain priority, the plan chosen, and the bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hetero.affinity.affinity import is_literal
from hetero.devices.errors import AffinityError
from hetero.partition.partition import partition
from hetero.planning.report import Alternative, PlanReport
from hetero.query.survey import Survey
from hetero.report.tensor_size import tensor_size

#: What an alternative that was judged says of itself.
_FIGURES: Final = ("bottleneck_s", "latency_s", "chosen", "subgraphs", "cuts", "nbytes")


def counterfactuals(
    survey: Survey, document: dict[str, Any], plan: PlanReport | None
) -> list[dict[str, Any]]:
    """Return a row for each way to run the model; without a plan there are no times in it.

    `document`: the report so far, with `subgraphs` and `wires` of the choice.
    """
    judged = {a.name: a for a in plan.alternatives} if plan else {}
    rows = [_single(survey, name, judged.pop(f"single {name}", None)) for name in survey.names]
    if len(survey.names) > 1:
        rows.append(_priority(survey, document, plan, judged.pop("priority", None)))
    rows += [
        _row(a.name, "runner-up", a, devices=list(a.devices))
        for a in judged.values()
        if not a.chosen
    ]
    # The choice has a row of its own unless it is one of those above.
    if not any(row["chosen"] for row in rows):
        rows.append(_chosen(document, plan, next((a for a in judged.values() if a.chosen), None)))
    figure = "latency_s" if plan is not None and plan.hint == "LATENCY" else "bottleneck_s"
    if plan is not None and plan.bound_s > 0:
        rows.append(_row(f"bound: {plan.bound_name}", "bound") | {figure: plan.bound_s})
    base = plan.figure_s if plan else None
    for row in rows:
        row["relative"] = row[figure] / base if base and row[figure] is not None else None
    return rows


def _row(name: str, kind: str, judged: Alternative | None = None, **fields: Any) -> dict[str, Any]:
    blank: dict[str, Any] = {"possible": True, "missing": 0, "devices": [], "chosen": False}
    figures = {} if judged is None else {key: getattr(judged, key) for key in _FIGURES}
    return {"name": name, "kind": kind, **dict.fromkeys(_FIGURES), **blank, **fields, **figures}


def _missing(survey: Survey, takers: Mapping[str, str]) -> dict[str, Any]:
    """Count the nodes that have no device among `takers`."""
    model = survey.model
    missing = sum(n.name not in takers and not is_literal(model, n) for n in model.nodes)
    return {"possible": not missing, "missing": missing}


def _single(survey: Survey, device: str, judged: Alternative | None) -> dict[str, Any]:
    fields = {"devices": [device], **_missing(survey, survey.results[device].devices)}
    if fields["possible"]:
        fields |= {"subgraphs": 1, "cuts": 0, "nbytes": 0}
    heeded = all(pinned == device for pinned in survey.pins.devices.values())
    name = f"single {device}" if judged or heeded else f"single {device}, unpinned"
    return _row(name, "single", judged, **fields)


def _priority(
    survey: Survey, document: dict[str, Any], plan: PlanReport | None, judged: Alternative | None
) -> dict[str, Any]:
    """Give each node to the first device that takes it; pins hold where the plan judged it."""
    if judged is not None:
        return _row("priority", "priority", judged, devices=list(judged.devices))
    placed: dict[str, str] = {}
    for name, answer in survey.results.items():
        placed = dict.fromkeys(answer.devices, name) | placed
    used = set(placed.values())
    fields = {"devices": [n for n in survey.names if n in used], **_missing(survey, placed)}
    if fields["possible"] and plan is None and placed == survey.affinity.devices:
        fields |= _cut_of(document)
    elif fields["possible"]:
        fields |= _cut_size(survey, placed)
    heeded = survey.pins.devices.items() <= placed.items()
    return _row("priority" if heeded else "priority, unpinned", "priority", **fields)


def _cut_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of the document's own cut."""
    return {
        "subgraphs": len(document["subgraphs"]),
        "cuts": len(document["wires"]),
        "nbytes": sum(wire["nbytes"] or 0 for wire in document["wires"]),
    }


def _cut_size(survey: Survey, placed: Mapping[str, str]) -> dict[str, Any]:
    try:
        cut = partition(survey.model, placed)
    except AffinityError:
        return {}
    wires = [tensor_size(cut.source.spec(wire.tensor)) for wire in cut.wires]
    return _cut_of({"subgraphs": cut.subgraphs, "wires": wires})


def _chosen(
    document: dict[str, Any], plan: PlanReport | None, judged: Alternative | None
) -> dict[str, Any]:
    missing = sum(node["device"] is None for node in document["nodes"])
    return _row(
        f"chosen: {judged.name}" if judged else "chosen",
        "chosen",
        possible=not missing,
        missing=missing,
        devices=[d["name"] for d in document["devices"] if d["used"]],
        **(_cut_of(document) | ({"subgraphs": judged.subgraphs} if judged else {})),
        bottleneck_s=plan.bottleneck_s if plan else None,
        latency_s=plan.latency_s if plan else None,
        chosen=True,
    )
