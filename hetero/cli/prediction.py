"""Predicted against measured: what `bench` says of a plan by cost."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from hetero.cli.options import OUT
from hetero.compiled_model import CompiledModel
from hetero.planning.cost.feedback import StageMeasurement
from hetero.routed_model import RoutedModel


def wire_links(compiled: CompiledModel) -> list[tuple[int, int]]:
    """Return the pairs of stages that tensors go between, each once, numbered as subgraphs are."""
    variants = compiled.variants if isinstance(compiled, RoutedModel) else (compiled,)
    found: dict[tuple[int, int], None] = {}
    offset = 0
    for variant in variants:
        for wire in variant.partition.wires:
            found[wire.producer + offset, wire.consumer + offset] = None
        offset += len(variant.subgraphs)
    return list(found)


def stage_measurements(
    compiled: CompiledModel, alone: dict[str, Any], busy: dict[str, Any]
) -> list[StageMeasurement]:
    """Return what the measured stages teach about costs."""
    loaded = {row["stage"]: row["run_ms"] / 1e3 for row in busy["stages"]}
    subgraphs = compiled.subgraphs
    return [
        StageMeasurement(
            row["device"],
            subgraphs[row["stage"]].node_names,
            row["run_ms"] / 1e3,
            loaded[row["stage"]],
        )
        for row in alone["stages"]
        if row["stage"] in loaded
    ]


def prediction(
    compiled: CompiledModel, alone: dict[str, Any], busy: dict[str, Any]
) -> dict[str, Any] | None:
    """Compare a plan's prediction with what was measured.

    Parameters
    ----------
    compiled : CompiledModel
        The model.
    alone, busy : dict
        What `hetero.cli.bench.measure` gave for one request at a time, and for a full pipeline.

    Returns
    -------
    dict or None
        Predicted and measured milliseconds and their ratio (measured by predicted): of the time
        between answers, of one request, of each stage's run under load and of each wire. None for
        a plan without a prediction.
    """
    report = compiled.plan_report
    if report is None:
        return None
    offsets: dict[int, int] = {}
    for stage in report.stages:
        offsets.setdefault(stage.variant, 0)
    for variant in offsets:
        offsets[variant] = sum(s.variant < variant for s in report.stages)
    ran = {row["stage"]: row["run_ms"] for row in busy["stages"]}
    # Waiting in queues is no transfer: wires are looked at one request at a time.
    gaps = {(row["producer"], row["consumer"]): row["gap_ms"] for row in alone["wires"]}
    wires: dict[tuple[int, int], list[Any]] = {}
    for wire in report.wires:
        offset = offsets[wire.variant]
        wires.setdefault((wire.producer + offset, wire.consumer + offset), []).append(wire)
    return {
        "bound_ms": report.bound_s * 1e3,
        "period": _row(report.bottleneck_s * 1e3, 1e3 / busy["throughput_per_s"]),
        "latency": _row(report.latency_s * 1e3, alone["latency_ms"]["50"]),
        "bottleneck": report.bottleneck,
        "stages": [
            {
                "stage": s.index + offsets[s.variant],
                "device": s.device,
                **_row(s.run_s * 1e3, ran.get(s.index + offsets[s.variant])),
            }
            for s in report.stages
        ],
        "wires": [
            {
                "producer": pair[0],
                "consumer": pair[1],
                "tensors": [w.tensor for w in group],
                "nbytes": sum(w.nbytes or 0 for w in group),
                **_row(max(w.seconds for w in group) * 1e3, gaps.get(pair)),
            }
            for pair, group in sorted(wires.items())
        ],
    }


def print_prediction(document: dict[str, Any] | None) -> None:
    """Print `prediction`'s comparison."""
    if document is None:
        return
    table = Table("", "predicted ms", "measured ms", "measured / predicted")
    rows = [("between answers", document["period"]), ("one request", document["latency"])]
    rows += [(f"stage {r['stage']} on {r['device']}", r) for r in document["stages"][:40]]
    rows += [
        (f"wire {r['producer']} to {r['consumer']}, {r['nbytes']} bytes", r)
        for r in document["wires"][:40]
    ]
    for name, row in rows:
        measured = "" if row["measured_ms"] is None else f"{row['measured_ms']:.3f}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        table.add_row(name, f"{row['predicted_ms']:.3f}", measured, ratio)
    OUT.print(table)


def _row(predicted_ms: float, measured_ms: float | None) -> dict[str, float | None]:
    known = measured_ms is not None and predicted_ms > 0
    return {
        "predicted_ms": predicted_ms,
        "measured_ms": measured_ms,
        "ratio": measured_ms / predicted_ms if known and measured_ms is not None else None,
    }
