"""The report on a terminal: verdict, devices, support matrix, subgraphs, alternatives, lints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from hetero.report.text import Rows, styled, visible
from hetero.report.units import counted, nbytes_text, port_text, seconds_text

#: Rows of a table before the rest is counted; the HTML and JSON have all of them.
SHOWN: Final = 20
#: Remarks of one kind before the rest is counted.
REMARKS: Final = 2
NOBODY: Final = Text("none", "red")
_STYLES: Final = {"error": "bold red", "warning": "yellow", "info": "dim"}


def report_table(document: dict[str, Any], *, nodes: bool = False) -> Group:
    """Return what a terminal shows.

    `document`: as `hetero.report.build_report` makes it.
    """
    return Group(*_parts(document, nodes))


def model_line(model: dict[str, Any]) -> Text:
    """Return a document's model in a line."""
    opsets = ", ".join(f"{domain} {version}" for domain, version in model["opsets"].items())
    return Text.assemble(
        (visible(model["name"]), "bold"),
        f": {counted(model['nodes'], 'node')}, {counted(model['parameters'], 'parameter')} "
        f"({nbytes_text(model['weight_nbytes'])}), opset {visible(opsets)}, {model['hash'][:12]}",
    )


def port_lines(model: dict[str, Any]) -> Iterator[Text]:
    """Yield a line for each input and output of a document's model."""
    for kind in ("input", "output"):
        for port in model[f"{kind}s"]:
            yield styled(f"{kind} {port['name']}: {port_text(port)}")


def _parts(document: dict[str, Any], nodes: bool) -> Iterator[RenderableType]:
    model = document["model"]
    yield model_line(model)
    yield from port_lines(model)
    yield styled(document["verdict"]["sentence"])
    yield _devices(document)
    yield _matrix(document)
    if nodes:
        yield _nodes(document)
    if document["subgraphs"]:
        yield subgraph_table(document["subgraphs"], timed=document["plan"] is not None)
    if len(document["counterfactuals"]) > 1:
        yield _counterfactuals(document)
    if document["plan"]:
        yield styled(document["plan"]["sentence"])
        yield styled(document["plan"]["basis"])
    for variant in document["variants"] if len(document["variants"]) > 1 else ():
        places = ", ".join(f"{name} {count}" for name, count in variant["devices"].items())
        yield styled(f"{variant['share'] * 100:.1f} % of the requests: {places}")
    for advice in document["advice"]:
        yield styled(f"would help: {advice}")
    by_code: dict[str, list[dict[str, Any]]] = {}
    for lint in document["lints"]:
        by_code.setdefault(lint["code"], []).append(lint)
    for code, lints in by_code.items():
        for lint in lints[:REMARKS]:
            yield Text.assemble(
                (f"{lint['severity']} [{code}] ", _STYLES[lint["severity"]]),
                visible(lint["message"]),
            )
        if len(lints) > REMARKS:
            yield styled(f"and {len(lints) - REMARKS} more of {code}", style="dim")


def _devices(document: dict[str, Any]) -> Rows:
    timed = document["plan"] is not None
    heads = ["device", "plugin", "version", "on", "threads", "supports", "gets"]
    table = Rows(*heads, *(["load"] if timed else []), wraps=("version", "on"))
    total = document["model"]["nodes"]
    for d in document["devices"]:
        table.add(
            d["name"],
            d["plugin"],
            d["version"],
            d["node"],
            d["num_threads"],
            f"{d['supported']}/{total}",
            counted(d["nodes"], "node") if d["used"] else Text("nothing", "yellow"),
            *([seconds_text(d["load_s"])] if timed else []),
        )
    return table


def _matrix(document: dict[str, Any]) -> Rows:
    names = document["request"]["devices"]
    refused = any(
        c["refusals"] for row in document["support_matrix"] for c in row["devices"].values()
    )
    table = Rows("operator", "nodes", *names, *(["why not"] if refused else []), wraps=("why not",))
    rows = document["support_matrix"]
    # What some device refuses comes first: it is what the reader looks for.
    ranked = sorted(rows, key=lambda row: not any(c["refusals"] for c in row["devices"].values()))
    for row in ranked[:SHOWN]:
        cells, reasons = [], []
        for name in names:
            cell = row["devices"][name]
            full = cell["supported"] == row["total"]
            cells.append("all" if full else f"{cell['supported']} of {row['total']}")
            reasons += [f"{name}: {r['message']} [{r['code']}]" for r in cell["refusals"][:2]]
        operator = f"{row['domain']}.{row['op_type']}" if row["domain"] else row["op_type"]
        table.add(
            operator,
            str(row["total"]),
            *cells,
            *(["; ".join(reasons)] if refused else []),
        )
    if len(rows) > SHOWN:
        table.caption = f"{len(rows) - SHOWN} more operators"
    return table


def _nodes(document: dict[str, Any]) -> Rows:
    heads = ("node", "operator", "device", "subgraph", "supported on", "why")
    table = Rows(*heads, wraps=("node", "supported on", "why"))
    for node in document["nodes"]:
        refusals = [f"{name}: {r['message']} [{r['code']}]" for name, r in node["refusals"].items()]
        table.add(
            node["name"],
            node["op_type"],
            node["device"] or NOBODY,
            "" if node["subgraph"] is None else str(node["subgraph"]),
            ", ".join(node["supported_on"]),
            "; ".join([node["why"], *(refusals if node["device"] is None else [])]),
        )
    return table


def subgraph_table(rows: Sequence[Mapping[str, Any]], *, timed: bool = False) -> Rows:
    """Return a row for each subgraph: bytes in and out, and times of a plan."""
    columns = ["subgraph", "device", "nodes", "first … last", "in", "out"]
    parts = ("runs", "transfers", "overhead") if timed else ()
    table = Rows(*columns, *parts, wraps=("first … last",))
    for s in rows[:SHOWN]:
        names = s["nodes"]
        row = [
            str(s["index"]),
            s["device"] or NOBODY,
            str(len(names)),
            " … ".join(dict.fromkeys((names[0], names[-1]))) if names else "",
            nbytes_text(s["in_nbytes"]),
            nbytes_text(s["out_nbytes"]),
        ]
        if timed:
            row += [seconds_text(s[part]) for part in ("run_s", "transfer_s", "overhead_s")]
        table.add(*row)
    if len(rows) > SHOWN:
        table.caption = f"{len(rows) - SHOWN} more subgraphs; --json lists all"
    return table


def _counterfactuals(document: dict[str, Any]) -> Rows:
    timed = document["plan"] is not None
    # Where there are times they say more than counts, and lines are short.
    columns = ["bottleneck", "latency", "to the choice"] if timed else ["cuts", "crossing"]
    table = Rows("alternative", "devices", "subgraphs", *columns, wraps=("alternative", "devices"))
    for row in document["counterfactuals"]:
        cells = [
            row["name"],
            ", ".join(row["devices"]) if len(row["devices"]) > 1 else "",
            _known(row["subgraphs"]),
        ]
        if not row["possible"]:
            cells[2] = f"{row['missing']} unsupported"
        if timed:
            relative = row["relative"]
            cells += [
                "" if row["bottleneck_s"] is None else seconds_text(row["bottleneck_s"]),
                "" if row["latency_s"] is None else seconds_text(row["latency_s"]),
                "" if relative is None else f"{relative:.3g}×",
            ]
        else:
            cells += [
                _known(row["cuts"]),
                "" if row["nbytes"] is None else nbytes_text(row["nbytes"]),
            ]
        table.add(*cells, style="bold" if row["chosen"] else None)
    return table


def _known(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
