"""Predicted against measured: what `bench` says of a plan by cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rich.console import RenderableType

from hetero.cli.terminal import Columns, ms, table
from hetero.compile.compiled_model import CompiledModel
from hetero.report.units import nbytes_text

#: Stages and wires that are shown; ``--json`` has all.
SHOWN: Final = 40


def prediction(
    compiled: CompiledModel, alone: dict[str, Any], busy: dict[str, Any]
) -> dict[str, Any] | None:
    """Compare a plan's prediction with what was measured.

    `alone`, `busy`: what `hetero.cli.measuring.measure` gave for one request at a time, and for a
        full pipeline.
    Returns: predicted and measured seconds and their ratio (measured by predicted): of the time
        between answers, of one request, of each stage's run under load and of each wire; what the
        prediction rests on; whether the clock ended the search. None for a plan without a
        prediction.
    """
    report = compiled.plan_report
    if report is None:
        return None
    numbers = compiled.stage_numbers
    ran = {row["stage"]: row["run_s"] for row in busy["stages"]}
    # Waiting in queues is not a transfer: wires are looked at one request at a time.
    gaps = {(row["producer"], row["consumer"]): row["gap_s"] for row in alone["wires"]}
    wires: dict[tuple[int, int], list[Any]] = {}
    for wire in report.wires:
        mine = numbers[wire.variant]
        wires.setdefault((mine[wire.producer], mine[wire.consumer]), []).append(wire)
    return {
        "bound_s": report.bound_s,
        "period": _row(report.bottleneck_s, 1 / busy["throughput_per_s"]),
        "latency": _row(report.latency_s, alone["latency_s"]["50"]),
        "bottleneck": report.bottleneck,
        "cut_short": report.cut_short,
        "basis": report.basis,
        "stages": [
            {
                "stage": numbers[s.variant][s.index],
                "device": s.device,
                **_row(s.run_s, ran.get(numbers[s.variant][s.index])),
            }
            for s in report.stages
        ],
        "wires": [
            {
                "producer": pair[0],
                "consumer": pair[1],
                "tensors": [w.tensor for w in group],
                "nbytes": sum(w.nbytes or 0 for w in group),
                **_row(max(w.seconds for w in group), gaps.get(pair)),
            }
            for pair, group in sorted(wires.items())
        ],
    }


def prediction_parts(document: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield `prediction`'s comparison for people."""
    rows = {"between answers": document["period"], "one request": document["latency"]}
    for row in document["stages"][:SHOWN]:
        rows[f"stage {row['stage']} on {row['device']}"] = row
    for row in document["wires"][:SHOWN]:
        size = nbytes_text(row["nbytes"])
        rows[f"wire {row['producer']} to {row['consumer']}, {size}"] = row
    columns: Columns = {
        "": "name", "predicted ms": ms("predicted_s"), "measured ms": ms("measured_s"),
        "measured / predicted": lambda row: "" if row["ratio"] is None else f"{row['ratio']:.2f}",
    }  # fmt: skip
    yield table(({"name": name, **row} for name, row in rows.items()), columns)
    yield f"predicted by {document['basis']}"
    if document["cut_short"]:
        yield "the clock ended the search of this plan: another run may find another one"


def _row(predicted_s: float, measured_s: float | None) -> dict[str, float | None]:
    known = measured_s is not None and predicted_s > 0
    return {
        "predicted_s": predicted_s,
        "measured_s": measured_s,
        "ratio": measured_s / predicted_s if known and measured_s is not None else None,
    }
