"""Lints: what looks wrong with a placement, each with a code, a severity and the way out.

========================  ==========================================================
unsupported-nodes         no device takes them
unused-device             a device that was asked for gets nothing
fallback                  nodes that the most preferred device refuses
ping-pong                 a subgraph between two of another device: data goes and comes back
tiny-subgraph             a subgraph of few nodes, or of less work than its own overhead
transfer-above-compute    moving a subgraph's data takes longer than its work
dtype-fallback            nodes refused for their element type alone
wide-wire                 a tensor crosses in a wider type than one side of it needs
double-wire               64-bit floats cross
unknown-wire              a tensor crosses whose size is not known
slower-than-single        the choice is slower than one device alone
planned-shapes            the model has open dimensions: the shapes that it was planned at
not-cut                   the model cannot be cut
========================  ==========================================================
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from hetero.formatting import counted, nbytes_text, seconds_text, shapes_text
from hetero.report.support_matrix import general

TINY_NODES: Final = 3
#: Rows of one code before the rest are counted in one.
SHOWN: Final = 12
#: What `--strict` turns into an error.
STRICT: Final = frozenset({"unsupported-nodes", "unused-device", "fallback", "not-cut"})
#: Severities, the worst first; what is in no other is a warning.
_ERRORS: Final = ("unsupported-nodes", "not-cut")
_REMARKS: Final = ("double-wire", "unknown-wire", "planned-shapes")
_RANK: Final = {"error": 0, "warning": 1, "info": 2}
_plural: Final = partial(counted, noun="node")
#: Bytes of an element, for casts.
_WIDTHS: Final = {"float16": 2, "bfloat16": 2, "float": 4, "double": 8, "int8": 1, "uint8": 1}

_Document = Mapping[str, Any]
_Lints = Iterator[dict[str, Any]]


def lints(document: _Document) -> list[dict[str, Any]]:
    """Return what looks wrong, the worst first, of a report but for its lints and verdict."""
    checks = (_nodes, _fallen, _devices, _subgraphs, _casts, _wires, _times)
    found = [lint for check in checks for lint in check(document)]
    kept: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    for lint in sorted(found, key=lambda lint: _RANK[lint["severity"]]):
        counts[lint["code"]] += 1
        if counts[lint["code"]] <= SHOWN:
            kept.append(lint)
    for code, count in counts.items():
        if count > SHOWN:
            kept.append(_lint(code, f"{count - SHOWN} more of {code}.") | {"severity": "info"})
    return kept


def strict_problems(document: _Document) -> list[dict[str, Any]]:
    """Return the lints that `--strict` does not let pass."""
    return [lint for lint in document["lints"] if lint["code"] in STRICT]


def _lint(code: str, message: str, **about: list[Any]) -> dict[str, Any]:
    """`about`: the nodes, subgraphs and devices of which it is."""
    severity = "error" if code in _ERRORS else "info" if code in _REMARKS else "warning"
    nobody: dict[str, list[Any]] = {"nodes": [], "subgraphs": [], "devices": []}
    return {"code": code, "severity": severity, "message": message, **nobody, **about}


def _nodes(document: _Document) -> _Lints:
    if left := [node for node in document["nodes"] if node["device"] is None]:
        types = _some(Counter(node["op_type"] for node in left))
        text = f"no device takes {_plural(len(left))} ({types}): add a device that does."
        yield _lint("unsupported-nodes", text, nodes=[node["name"] for node in left])
    if document["uncut"]:
        yield _lint("not-cut", document["uncut"])


def _fallen(document: _Document) -> _Lints:
    fallen = document["fallback"]
    first = fallen["device"]
    refusals = {
        node["name"]: (refusal["code"], general(refusal["message"]))
        for node in document["nodes"]
        if node["device"] not in (None, first)
        and (refusal := node["refusals"].get(first)) is not None
    }
    for reason in fallen["reasons"]:
        code, why, left = reason["code"], reason["message"], _plural(reason["count"])
        about = [name for name, cause in refusals.items() if cause == (code, general(why))]
        text = f"{first} refuses {left} that another device runs: {why} [{code}]"
        yield _lint("fallback", text, nodes=about, devices=[first])
        if code == "dtype":
            text = (
                f"{left} left {first} for their element type alone: {why}. A cast, or an export in "
                "another type, would keep them."
            )
            yield _lint("dtype-fallback", text, nodes=about, devices=[first])


def _devices(document: _Document) -> _Lints:
    unmeasured = (document["plan"] or {}).get("unmeasured", {})
    for device in document["devices"]:
        if device["used"]:
            continue
        name, count = device["name"], _plural(device["supported"])
        if device["supported"] == 0:
            why = "it takes none of the nodes"
        elif name in unmeasured:
            why = f"it could not be measured ({unmeasured[name]})"
        elif document["request"]["policy"] == "PRIORITY":
            why = (
                f"devices before it in the list take what it could run ({count}); put it first, "
                "pin nodes to it, or plan by cost (policy AUTO)"
            )
        else:
            why = f"the plan is no faster with it, though it could run {count}"
        text = f"{name} was requested and is not used: {why}."
        yield _lint("unused-device", text, devices=[name])


def _subgraphs(document: _Document) -> _Lints:
    subgraphs = document["subgraphs"]
    device_of = {s["index"]: s["device"] for s in subgraphs}
    #: Subgraph -> device -> bytes that come from it, or go to it.
    into, out_of = defaultdict[int, Counter[str]](Counter), defaultdict[int, Counter[str]](Counter)
    for wire in document["wires"]:
        one, other, nbytes = wire["producer"], wire["consumer"], wire["nbytes"] or 0
        into[other][device_of[one]] += nbytes
        out_of[one][device_of[other]] += nbytes
    constant = {node["name"] for node in document["nodes"] if node["constant"]}
    main = max(document["devices"], key=lambda d: int(d["nodes"]), default={"name": None})["name"]
    for s in subgraphs:
        index, device = s["index"], s["device"]
        came, went = into[index], out_of[index]
        # Seen from the device with most of the nodes, each round trip would be listed twice.
        others = came.keys() & went.keys() if device != main else set()
        others = {d for d in others if d and d != device}
        where = f"subgraph {index} on {device or 'no device'}"
        for other in sorted(others):
            text = (
                f"{other} sends {nbytes_text(came[other])} to {where} ({_plural(len(s['nodes']))}) "
                f"and gets {nbytes_text(went[other])} back."
            )
            yield _lint("ping-pong", text, subgraphs=[index], devices=[other])
        run, moved = s["run_s"], s["transfer_s"]
        if len(subgraphs) > 1 and device is not None and not others:
            work = [name for name in s["nodes"] if name not in constant]
            if run is None and len(work) <= TINY_NODES:
                text = f"{where} has only {', '.join(work) or 'constants'} to run."
                yield _lint("tiny-subgraph", text, subgraphs=[index], nodes=work)
            elif run is not None and run < (s["overhead_s"] or 0.0):
                call = seconds_text(s["overhead_s"])
                text = f"{where} runs {seconds_text(run)}; calling it takes {call}."
                yield _lint("tiny-subgraph", text, subgraphs=[index])
        if run is not None and moved is not None and moved > run and (came or went):
            took = seconds_text(moved)
            text = f"{where} runs {seconds_text(run)} and its data takes {took} to move."
            yield _lint("transfer-above-compute", text, subgraphs=[index])


def _casts(document: _Document) -> _Lints:
    """Find casts on the wrong side of a cut: the narrower of both types should cross."""
    ports = [port for node in document["nodes"] for port in node["outputs"]]
    types = {port["name"]: _element(port["type"]) for port in ports + document["model"]["inputs"]}
    makers = {port["name"]: node for node in document["nodes"] for port in node["outputs"]}
    readers: dict[str, list[Mapping[str, Any]]] = {}
    for node in document["nodes"]:
        for value in node["inputs"]:
            readers.setdefault(value, []).append(node)
    for wire in document["wires"]:
        tensor, maker = wire["tensor"], makers.get(wire["tensor"])
        there = [n for n in readers.get(tensor, ()) if n["subgraph"] == wire["consumer"]]
        if maker is not None and maker["op_type"] == "Cast":
            cast, narrow, how = maker, types.get(maker["inputs"][0], ""), "made by"
        elif there and all(n["op_type"] == "Cast" for n in there):
            cast, narrow = there[0], types.get(there[0]["outputs"][0]["name"], "")
            how = "read only by"
        else:
            continue
        wide = types.get(tensor, "")
        if 0 < _WIDTHS.get(narrow, 0) < _WIDTHS.get(wide, 0):
            text = (
                f"{tensor} crosses as {wide}, {how} the Cast {cast['name']!r}: on the other side "
                f"of the cut it would cross as {narrow}."
            )
            ends = [wire["producer"], wire["consumer"]]
            yield _lint("wide-wire", text, nodes=[cast["name"]], subgraphs=ends)


def _wires(document: _Document) -> _Lints:
    for wire in document["wires"]:
        tensor, ends = wire["tensor"], [wire["producer"], wire["consumer"]]
        if wire["type"] == "tensor(double)":
            yield _lint("double-wire", f"{tensor} crosses in double precision.", subgraphs=ends)
        if wire["nbytes"] is None:
            text = f"{tensor} crosses and its size is not known before it runs."
            yield _lint("unknown-wire", text, subgraphs=ends)


def _times(document: _Document) -> _Lints:
    shapes = document["request"]["shapes"]
    if document["plan"] and shapes and "PLAN_SHAPES" not in document["request"]["config"]:
        text = (
            f"planned at {shapes_text(shapes)}, as it was measured. Name the shapes of requests "
            "with --shape (PLAN_SHAPES): other sizes may have another best plan."
        )
        yield _lint("planned-shapes", text)
    figure = "latency" if document["request"]["hint"] == "LATENCY" else "bottleneck"
    rows = document["counterfactuals"]
    chosen = next((row[f"{figure}_s"] for row in rows if row["chosen"]), None)
    for row in rows if chosen is not None else ():
        alone = row[f"{figure}_s"] if row["kind"] == "single" and row["possible"] else None
        if alone is not None and alone < chosen and not row["chosen"]:
            text = (
                f"{row['devices'][0]} alone takes {seconds_text(alone)}, the choice "
                f"{seconds_text(chosen)} ({figure})."
            )
            yield _lint("slower-than-single", text, devices=row["devices"])


def _element(text: str) -> str:
    return text[7:-1] if text.startswith("tensor(") else ""


def _some(counts: Counter[str], most: int = 6) -> str:
    shown = [f"{op} {count}" for op, count in counts.most_common(most)]
    return ", ".join(shown) + (", …" if len(counts) > most else "")
