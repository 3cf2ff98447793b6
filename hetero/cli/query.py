"""``hetero query``: which node can run where, and why not elsewhere."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click
from rich.table import Table

from hetero.cli.options import (
    OUT,
    affinity_argument,
    model_options,
    print_json,
    progress,
    start,
    with_core,
)
from hetero.core import Core


@click.command()
@model_options
@click.option("--nodes", is_flag=True, help="List every node, not only counts.")
@with_core
def query(
    core: Core,
    model: str,
    device: str,
    pins: tuple[str, ...],
    config: dict[str, Any],
    nodes: bool,
    as_json: bool,
) -> None:
    """Ask every device what it can run of MODEL; exit code 1 if a node is left over."""
    source = core.read_model(model)
    start(core)
    with progress(core, "asking the devices"):
        support = core.query_model(source, device, config, affinity=affinity_argument(pins))
    operators = {node.name: node.op_type for node in source.nodes}
    if as_json:
        print_json(
            {
                "model": source.name,
                "device": device,
                "nodes": [
                    {
                        "name": name,
                        "op_type": op_type,
                        "device": support.get(name),
                        "note": support.notes.get(name),
                        "refusals": {
                            d: {"code": r.code, "message": r.message}
                            for d, r in support.refusals.get(name, {}).items()
                        },
                    }
                    for name, op_type in operators.items()
                ],
                "unsupported": list(support.unsupported),
            }
        )
    else:
        _print(source.name, operators, support, nodes)
    if support.unsupported:
        raise click.exceptions.Exit(1)


def _print(name: str, operators: dict[str, str], support: Any, nodes: bool) -> None:
    counts = Counter(support.values())
    shares = ", ".join(f"{device} {count}" for device, count in counts.items())
    OUT.print(f"{name}: {len(operators)} nodes; {shares or 'none supported'}")
    if nodes:
        table = Table("node", "operator", "device", "remark")
        for node, op_type in operators.items():
            reasons = [f"{d}: {r}" for d, r in support.refusals.get(node, {}).items()]
            remark = support.notes.get(node) or "; ".join(reasons)
            table.add_row(node, op_type, support.get(node, "none"), remark)
        OUT.print(table)
    grouped: Counter[tuple[str, str, str, bool]] = Counter()
    for node, reasons in support.refusals.items():
        for device, reason in reasons.items():
            grouped[operators[node], device, str(reason), node in support.unsupported] += 1
    if grouped:
        table = Table("operator", "nodes", "refused by", "reason", "taken elsewhere")
        for (op_type, device, reason, left), count in grouped.most_common():
            table.add_row(op_type, str(count), device, reason, "no" if left else "yes")
        OUT.print(table)
    if support.unsupported:
        OUT.print(f"[bold]{len(support.unsupported)} nodes have no device.[/bold] Add one.")
