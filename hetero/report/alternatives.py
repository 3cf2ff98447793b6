"""Alternatives to a placement: each device alone, priority, the best plans, and the lower bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hetero.affinity.affinity import is_literal
from hetero.devices.errors import AffinityError
from hetero.partition.partition import partition
from hetero.planning.plan_report import Alternative, PlanReport
from hetero.query.survey import Survey
from hetero.report.tensor_size import tensor_size

#: Fields of a row that the planner's alternative provides.
_PLANNED_FIELDS: Final = ("bottleneck_s", "latency_s", "chosen", "subgraphs", "cuts", "nbytes")


def alternatives(
    survey: Survey, document: dict[str, Any], plan: PlanReport | None
) -> list[dict[str, Any]]:
    """Return a row for each alternative; rows have times only if there is a plan.

    Rows of a plan that fits state whether the alternative keeps within the memory budgets, and its
    number of replicas: a plan that fits has one.

    `document`: the unfinished report, with the `subgraphs` and `wires` of the chosen placement.
    """
    by_name = {a.name: a for a in plan.alternatives} if plan else {}
    rows = [
        _single_device_row(survey, name, by_name.pop(f"single {name}", None))
        for name in survey.names
    ]
    if len(survey.names) > 1:
        rows.append(_priority_row(survey, document, plan, by_name.pop("priority", None)))
    rows += [
        _row(a.name, "runner-up", a, devices=list(a.devices))
        for a in by_name.values()
        if not a.chosen
    ]
    # The chosen placement gets its own row unless it is one of the rows above.
    if not any(row["chosen"] for row in rows):
        rows.append(
            _chosen_row(document, plan, next((a for a in by_name.values() if a.chosen), None))
        )
    figure = "latency_s" if plan is not None and plan.hint == "LATENCY" else "bottleneck_s"
    if plan is not None and plan.bound_s > 0:
        rows.append(_row(f"bound: {plan.bound_name}", "bound") | {figure: plan.bound_s})
    base = plan.figure_s if plan else None
    if plan is not None and plan.memory:
        unfit = {a.name: a.replicas for a in plan.alternatives if not a.fits}
        for row in rows:
            row["fits"] = row["name"] not in unfit
            row["replicas"] = unfit.get(row["name"], 1)
    for row in rows:
        row["relative"] = row[figure] / base if base and row[figure] is not None else None
    return rows


def _row(
    name: str, kind: str, alternative: Alternative | None = None, **fields: Any
) -> dict[str, Any]:
    defaults: dict[str, Any] = dict.fromkeys(_PLANNED_FIELDS)
    defaults |= {"possible": True, "missing": 0, "devices": [], "chosen": False}
    values = (
        {} if alternative is None else {key: getattr(alternative, key) for key in _PLANNED_FIELDS}
    )
    return {"name": name, "kind": kind, **defaults, **fields, **values}


def _count_missing(survey: Survey, devices: Mapping[str, str]) -> dict[str, Any]:
    """Count the nodes that have no device in `devices`."""
    model = survey.model
    missing = sum(n.name not in devices and not is_literal(model, n) for n in model.nodes)
    return {"possible": not missing, "missing": missing}


def _single_device_row(
    survey: Survey, device: str, alternative: Alternative | None
) -> dict[str, Any]:
    fields = {"devices": [device], **_count_missing(survey, survey.results[device].devices)}
    if fields["possible"]:
        fields |= {"subgraphs": 1, "cuts": 0, "nbytes": 0}
    keeps_pins = all(pin == device for pin in survey.pins.devices.values())
    name = f"single {device}" if alternative or keeps_pins else f"single {device}, unpinned"
    return _row(name, "single", alternative, **fields)


def _priority_row(
    survey: Survey,
    document: dict[str, Any],
    plan: PlanReport | None,
    alternative: Alternative | None,
) -> dict[str, Any]:
    """Give each node to the first device that supports it; only a plan's row respects pins."""
    if alternative is not None:
        return _row("priority", "priority", alternative, devices=list(alternative.devices))
    placement: dict[str, str] = {}
    for name, answer in survey.results.items():
        placement = dict.fromkeys(answer.devices, name) | placement
    used = set(placement.values())
    fields = {
        "devices": [n for n in survey.names if n in used],
        **_count_missing(survey, placement),
    }
    if fields["possible"] and plan is None and placement == survey.affinity.devices:
        fields |= _partition_counts(document)
    elif fields["possible"]:
        fields |= _counts_of_placement(survey, placement)
    keeps_pins = survey.pins.devices.items() <= placement.items()
    return _row("priority" if keeps_pins else "priority, unpinned", "priority", **fields)


def _partition_counts(document: dict[str, Any]) -> dict[str, Any]:
    """Count the subgraphs and cut tensors of a document, and the bytes that cross."""
    return {
        "subgraphs": len(document["subgraphs"]),
        "cuts": len(document["wires"]),
        "nbytes": sum(wire["nbytes"] or 0 for wire in document["wires"]),
    }


def _counts_of_placement(survey: Survey, placement: Mapping[str, str]) -> dict[str, Any]:
    try:
        cut = partition(survey.model, placement)
    except AffinityError:
        return {}
    wires = [tensor_size(cut.source.spec(wire.tensor)) for wire in cut.wires]
    return _partition_counts({"subgraphs": cut.subgraphs, "wires": wires})


def _chosen_row(
    document: dict[str, Any], plan: PlanReport | None, alternative: Alternative | None
) -> dict[str, Any]:
    missing = sum(node["device"] is None for node in document["nodes"])
    return _row(
        f"chosen: {alternative.name}" if alternative else "chosen",
        "chosen",
        possible=not missing,
        missing=missing,
        devices=[d["name"] for d in document["devices"] if d["used"]],
        **(
            _partition_counts(document)
            | ({"subgraphs": alternative.subgraphs} if alternative else {})
        ),
        bottleneck_s=plan.bottleneck_s if plan else None,
        latency_s=plan.latency_s if plan else None,
        chosen=True,
    )
