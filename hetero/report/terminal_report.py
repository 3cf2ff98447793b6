"""Report as tables for a terminal: verdict, devices, support, subgraphs, alternatives, lints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from hetero.formatting import count_text, nbytes_text, port_text, seconds_text, visible
from hetero.terminal_tables import Column, Columns, Rows, styled_text, table

#: Rows of a table before the rest is counted; HTML and JSON list all.
MAX_ROWS: Final = 20
#: Lints of one code before the rest is counted.
MAX_LINTS: Final = 2
_NO_DEVICE: Final = Text("none", "red")
_STYLES: Final = {"error": "bold red", "warning": "yellow", "info": "dim"}


def report_table(document: dict[str, Any], *, nodes: bool = False) -> Group:
    """Return the report's lines and tables; `nodes` adds a table of every node."""
    return Group(*_parts(document, nodes))


def model_line(model: dict[str, Any]) -> Text:
    """Return one line about a document's model: name, size, operator sets, hash."""
    opsets = ", ".join(f"{domain} {version}" for domain, version in model["opsets"].items())
    return Text.assemble(
        (visible(model["name"]), "bold"),
        f": {count_text(model['nodes'], 'node')}, {count_text(model['parameters'], 'parameter')} "
        f"({nbytes_text(model['weight_nbytes'])}), opset {visible(opsets)}, {model['hash'][:12]}",
    )


def port_lines(model: dict[str, Any]) -> Iterator[Text]:
    """Yield a line for each input and output of a document's model."""
    for kind in ("input", "output"):
        for port in model[f"{kind}s"]:
            yield styled_text(f"{kind} {port['name']}: {port_text(port)}")


def _parts(document: dict[str, Any], nodes: bool) -> Iterator[RenderableType]:
    model = document["model"]
    yield model_line(model)
    yield from port_lines(model)
    yield styled_text(document["verdict"]["sentence"])
    yield _devices(document)
    yield _matrix(document)
    if nodes:
        yield _nodes(document)
    if document["subgraphs"]:
        yield subgraph_table(document["subgraphs"], timed=document["plan"] is not None)
    if document.get("memory"):
        yield memory_table(document["memory"])
    if len(document["counterfactuals"]) > 1:
        yield _alternatives(document)
    if document["plan"]:
        yield styled_text(document["plan"]["sentence"])
        yield styled_text(document["plan"]["basis"])
    for replica in document["replicas"] if len(document["replicas"]) > 1 else ():
        places = ", ".join(f"{name} {count}" for name, count in replica["devices"].items())
        yield styled_text(f"{replica['share'] * 100:.1f} % of the requests: {places}")
    for advice in document["advice"]:
        yield styled_text(f"advice: {advice}")
    by_code: dict[str, list[dict[str, Any]]] = {}
    for lint in document["lints"]:
        by_code.setdefault(lint["code"], []).append(lint)
    for code, lints in by_code.items():
        for lint in lints[:MAX_LINTS]:
            yield Text.assemble(
                (f"{lint['severity']} [{code}] ", _STYLES[lint["severity"]]),
                visible(lint["message"]),
            )
        if len(lints) > MAX_LINTS:
            rest = sum(lint["count"] for lint in lints[MAX_LINTS:])
            yield styled_text(f"and {rest} more of {code}", style="dim")


def _devices(document: dict[str, Any]) -> Rows:
    total = document["model"]["nodes"]
    columns: Columns = {
        "device": "name",
        "plugin": "plugin",
        "version": "version",
        "on": "node",
        "threads": "num_threads",
        "supports": lambda d: f"{d['supported']}/{total}",
        "gets": lambda d: (
            count_text(d["nodes"], "node") if d["used"] else Text("nothing", "yellow")
        ),
    }
    if document["plan"]:
        columns["load"] = ("load_s", seconds_text)
    if any("verification" in device for device in document["devices"]):
        columns["verified"] = lambda d: d.get("verification", "")
    return table(document["devices"], columns, wraps=("version", "on", "verified"))


def _matrix(document: dict[str, Any]) -> Rows:
    rows = document["support_matrix"]

    def refusals(row: dict[str, Any]) -> list[str]:
        return [_refusal_text(n, r) for n, c in row["devices"].items() for r in c["refusals"][:2]]

    def supported_column(name: str) -> Column:
        def cell(row: dict[str, Any]) -> str:
            count, total = row["devices"][name]["supported"], row["total"]
            return "all" if count == total else f"{count} of {total}"

        return cell

    columns: Columns = {
        "operator": lambda row: f"{row['domain']}.{row['op_type']}".lstrip("."),
        "nodes": "total",
        **{name: supported_column(name) for name in document["request"]["devices"]},
    }
    if any(map(refusals, rows)):
        columns["why not"] = lambda row: "; ".join(refusals(row))
    # Operators with refusals come first: the reader looks for them.
    ranked = sorted(rows, key=lambda row: not refusals(row))
    matrix = table(ranked[:MAX_ROWS], columns, wraps=("why not",))
    if len(rows) > MAX_ROWS:
        matrix.caption = f"{len(rows) - MAX_ROWS} more operators"
    return matrix


def _refusal_text(device: str, refusal: Mapping[str, Any]) -> str:
    return f"{device}: {refusal['message']} [{refusal['code']}]"


def _nodes(document: dict[str, Any]) -> Rows:
    def explain_refusal(node: dict[str, Any]) -> str:
        refusals = node["refusals"].items() if node["device"] is None else ()
        return "; ".join([node["why"], *(_refusal_text(name, r) for name, r in refusals)])

    columns: Columns = {
        "node": "name",
        "operator": "op_type",
        "device": _device,
        "subgraph": "subgraph",
        "supported on": ("supported_on", ", ".join),
        "why": explain_refusal,
    }
    return table(document["nodes"], columns, wraps=("node", "supported on", "why"))


def _device(row: Mapping[str, Any]) -> str | Text:
    return row["device"] or _NO_DEVICE


def subgraph_table(rows: Sequence[Mapping[str, Any]], *, timed: bool = False) -> Rows:
    """Return a table of subgraphs; `timed` adds the times that a plan predicts."""
    columns: Columns = {
        "subgraph": "index",
        "device": _device,
        "nodes": lambda s: len(s["nodes"]),
        "first … last": lambda s: " … ".join(dict.fromkeys((*s["nodes"][:1], *s["nodes"][-1:]))),
        "in": lambda s: nbytes_text(s["in_nbytes"]),
        "out": lambda s: nbytes_text(s["out_nbytes"]),
    }
    if timed:
        times = {"runs": "run_s", "transfers": "transfer_s", "overhead": "overhead_s"}
        columns |= {head: (field, seconds_text) for head, field in times.items()}
    subgraphs = table(rows[:MAX_ROWS], columns, wraps=("first … last",))
    if len(rows) > MAX_ROWS:
        subgraphs.caption = f"{len(rows) - MAX_ROWS} more subgraphs; --json lists all"
    return subgraphs


def memory_table(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Return a table of the memory that devices' processes are predicted to take."""

    def weights(row: Mapping[str, Any]) -> str:
        copies = f" + {nbytes_text(row['copies_nbytes'])} copies" if row["copies_nbytes"] else ""
        compact = ", compact" if row["compact"] else ""
        return f"{nbytes_text(row['weights_nbytes'])}{copies}{compact}"

    columns: Columns = {
        "memory of": "device",
        "runtime": ("runtime_nbytes", nbytes_text),
        "weights": weights,
        "values": lambda row: nbytes_text(row["values_nbytes"] + row["states_nbytes"]),
        "predicted peak": ("peak_nbytes", nbytes_text),
        "budget": ("budget_nbytes", nbytes_text),
        "left": ("free_nbytes", nbytes_text),
    }
    if any("measured_nbytes" in row for row in rows):
        columns["measured peak"] = lambda row: nbytes_text(row.get("measured_nbytes"))
    return table(rows, columns)


def _alternatives(document: dict[str, Any]) -> Rows:
    def subgraphs(row: dict[str, Any]) -> object:
        if not row["possible"]:
            return f"{row['missing']} unsupported"
        if row.get("fits", True):
            return row["subgraphs"]
        return "does not fit" if row["replicas"] == 1 else f"{row['replicas']} copies; --fit has 1"

    columns: Columns = {
        "alternative": "name",
        "devices": lambda row: ", ".join(row["devices"]) if len(row["devices"]) > 1 else "",
        "subgraphs": subgraphs,
    }
    # Times replace counts if there are any: together they would be too wide.
    if document["plan"]:
        columns["bottleneck"] = ("bottleneck_s", seconds_text)
        columns["latency"] = ("latency_s", seconds_text)
        columns["vs. chosen"] = ("relative", "{:.3g}×".format)
    else:
        columns |= {"cuts": ("cuts", "{:,}".format), "crossing": ("nbytes", nbytes_text)}
    return table(
        document["counterfactuals"],
        columns,
        wraps=("alternative", "devices"),
        style=lambda row: "bold" if row["chosen"] else None,
    )
