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

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from hetero.report.matrix import general
from hetero.report.units import counted, nbytes_text, seconds_text, shapes_text

#: A subgraph with no more nodes than this, constants not counted, is tiny unless its time is known.
TINY_NODES: Final = 3
#: Rows of one code before the rest are counted in one.
SHOWN: Final = 12
#: What `--strict` turns into an error.
STRICT: Final = frozenset({"unsupported-nodes", "unused-device", "fallback", "not-cut"})
_plural: Final = partial(counted, noun="node")
_RANK: Final = {"error": 0, "warning": 1, "info": 2}
#: Bytes of an element, for casts.
_WIDTHS: Final = {"float16": 2, "bfloat16": 2, "float": 4, "double": 8, "int8": 1, "uint8": 1}


def lints(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what looks wrong, the worst first.

    `document`: the report but for its lints and verdict.
    Returns: ``code``, ``severity`` (error, warning, info), ``message``, and the ``nodes``,
        ``subgraphs`` and ``devices`` that it is about.
    """
    found: list[dict[str, Any]] = []
    for check in (_nodes, _devices, _subgraphs, _casts, _wires, _times):
        found += check(document)
    kept: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    for lint in sorted(found, key=lambda lint: _RANK[lint["severity"]]):
        counts[lint["code"]] += 1
        if counts[lint["code"]] <= SHOWN:
            kept.append(lint)
    for code, count in counts.items():
        if count > SHOWN:
            kept.append(_lint(code, "info", f"{count - SHOWN} more of {code}."))
    return kept


def strict_problems(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the lints that `--strict` does not let pass."""
    return [lint for lint in document["lints"] if lint["code"] in STRICT]


def _lint(
    code: str,
    severity: str,
    message: str,
    *,
    nodes: Iterable[str] = (),
    subgraphs: Iterable[int] = (),
    devices: Iterable[str] = (),
) -> dict[str, Any]:
    return {
        "code": code,
        "severity": severity,
        "message": message,
        "nodes": list(nodes),
        "subgraphs": list(subgraphs),
        "devices": list(devices),
    }


def _nodes(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    left = [node for node in document["nodes"] if node["device"] is None]
    if left:
        types = Counter(node["op_type"] for node in left)
        yield _lint(
            "unsupported-nodes", "error",
            f"no device takes {_plural(len(left))} ({_some(types)}): add a device that does.",
            nodes=[node["name"] for node in left],
        )  # fmt: skip
    if document["uncut"]:
        yield _lint("not-cut", "error", document["uncut"])
    fallen = document["fallback"]
    for reason in fallen["reasons"]:
        cause = reason["code"], general(reason["message"])
        about = [
            node["name"]
            for node in document["nodes"]
            if node["device"] not in (None, fallen["device"])
            and (refusal := node["refusals"].get(fallen["device"])) is not None
            and (refusal["code"], general(refusal["message"])) == cause
        ]
        yield _lint(
            "fallback", "warning",
            f"{fallen['device']} refuses {_plural(reason['count'])} that another device runs: "
            f"{reason['message']} [{reason['code']}]",
            nodes=about, devices=[fallen["device"]],
        )  # fmt: skip
        if reason["code"] == "dtype":
            yield _lint(
                "dtype-fallback", "warning",
                f"{_plural(reason['count'])} left {fallen['device']} for their element type alone: "
                f"{reason['message']}. A cast, or an export in another type, would keep them.",
                nodes=about, devices=[fallen["device"]],
            )  # fmt: skip


def _devices(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for device in document["devices"]:
        if device["used"]:
            continue
        name = device["name"]
        if device["supported"] == 0:
            why = "it takes none of the nodes"
        elif (reason := (document["plan"] or {}).get("unmeasured", {}).get(name)) is not None:
            why = f"it could not be measured ({reason})"
        elif document["request"]["policy"] == "PRIORITY":
            why = (
                f"devices before it in the list take what it could run "
                f"({_plural(device['supported'])}); put it first, pin nodes to it, or plan by cost "
                "(policy AUTO)"
            )
        else:
            why = (
                f"the plan is no faster with it, though it could run {_plural(device['supported'])}"
            )
        yield _lint(
            "unused-device", "warning", f"{name} was requested and is not used: {why}.",
            devices=[name],
        )  # fmt: skip


def _subgraphs(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    subgraphs = document["subgraphs"]
    device_of = {s["index"]: s["device"] for s in subgraphs}
    into: dict[int, list[dict[str, Any]]] = {}
    out_of: dict[int, list[dict[str, Any]]] = {}
    for wire in document["wires"]:
        into.setdefault(wire["consumer"], []).append(wire)
        out_of.setdefault(wire["producer"], []).append(wire)
    constant = {node["name"] for node in document["nodes"] if node["constant"]}
    main = max(document["devices"], key=lambda d: int(d["nodes"]), default={"name": None})["name"]
    for s in subgraphs:
        came, went = into.get(s["index"], []), out_of.get(s["index"], [])
        sources = {device_of[w["producer"]] for w in came}
        targets = {device_of[w["consumer"]] for w in went}
        # Seen from the device with most of the nodes, each round trip would be listed twice.
        others = sources & targets if s["device"] != main else set()
        for other in sorted(d for d in others if d and d != s["device"]):
            sizes = [w["nbytes"] for w in came if device_of[w["producer"]] == other]
            back = [w["nbytes"] for w in went if device_of[w["consumer"]] == other]
            yield _lint(
                "ping-pong", "warning",
                f"{other} sends {nbytes_text(sum(n or 0 for n in sizes))} to subgraph "
                f"{s['index']} on {s['device'] or 'no device'} ({_plural(len(s['nodes']))}) "
                f"and gets {nbytes_text(sum(n or 0 for n in back))} back.",
                subgraphs=[s["index"]], devices=[other],
            )  # fmt: skip
        run, moved = s["run_s"], s["transfer_s"]
        alone = len(subgraphs) > 1 and s["device"] is not None and not others
        work = [name for name in s["nodes"] if name not in constant]
        if alone:
            if run is None and len(work) <= TINY_NODES:
                names = ", ".join(work[:TINY_NODES])
                yield _lint(
                    "tiny-subgraph", "warning",
                    f"subgraph {s['index']} on {s['device'] or 'no device'} has only "
                    f"{names or 'constants'} to run.",
                    subgraphs=[s["index"]], nodes=work,
                )  # fmt: skip
            elif run is not None and run < (s["overhead_s"] or 0.0):
                yield _lint(
                    "tiny-subgraph", "warning",
                    f"subgraph {s['index']} on {s['device']} runs {seconds_text(run)}; calling it "
                    f"takes {seconds_text(s['overhead_s'])}.",
                    subgraphs=[s["index"]],
                )  # fmt: skip
        if run is not None and moved is not None and moved > run and (came or went):
            yield _lint(
                "transfer-above-compute", "warning",
                f"subgraph {s['index']} on {s['device']} runs {seconds_text(run)} and its data "
                f"takes {seconds_text(moved)} to move.",
                subgraphs=[s["index"]],
            )  # fmt: skip


def _casts(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Find casts on the wrong side of a cut: the narrower of both types should cross."""
    types = {
        port["name"]: _element(port["type"])
        for node in document["nodes"]
        for port in node["outputs"]
    } | {port["name"]: _element(port["type"]) for port in document["model"]["inputs"]}
    makers = {port["name"]: node for node in document["nodes"] for port in node["outputs"]}
    readers: dict[str, list[Mapping[str, Any]]] = {}
    for node in document["nodes"]:
        for value in node["inputs"]:
            readers.setdefault(value, []).append(node)
    for wire in document["wires"]:
        tensor = wire["tensor"]
        maker = makers.get(tensor)
        width = _WIDTHS.get(types.get(tensor, ""), 0)
        there = [n for n in readers.get(tensor, ()) if n["subgraph"] == wire["consumer"]]
        if maker is not None and maker["op_type"] == "Cast":
            before = types.get(maker["inputs"][0], "")
            if 0 < _WIDTHS.get(before, 0) < width:
                yield _wide(wire, maker, types[tensor], before, "made by")
        elif there and all(n["op_type"] == "Cast" for n in there):
            after = types.get(there[0]["outputs"][0]["name"], "")
            if 0 < _WIDTHS.get(after, 0) < width:
                yield _wide(wire, there[0], types[tensor], after, "read only by")


def _wide(
    wire: Mapping[str, Any], cast: Mapping[str, Any], wide: str, narrow: str, how: str
) -> dict[str, Any]:
    return _lint(
        "wide-wire", "warning",
        f"{wire['tensor']} crosses as {wide}, {how} the Cast {cast['name']!r}: on the other side "
        f"of the cut it would cross as {narrow}.",
        nodes=[cast["name"]], subgraphs=[wire["producer"], wire["consumer"]],
    )  # fmt: skip


def _wires(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for wire in document["wires"]:
        ends = [wire["producer"], wire["consumer"]]
        if wire["type"] == "tensor(double)":
            yield _lint(
                "double-wire", "info", f"{wire['tensor']} crosses in double precision.",
                subgraphs=ends,
            )  # fmt: skip
        if wire["nbytes"] is None:
            yield _lint(
                "unknown-wire", "info",
                f"{wire['tensor']} crosses and its size is not known before it runs.",
                subgraphs=ends,
            )  # fmt: skip


def _times(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    shapes = document["request"]["shapes"]
    if document["plan"] and shapes and "PLAN_SHAPES" not in document["request"]["config"]:
        yield _lint(
            "planned-shapes", "info",
            f"planned at {shapes_text(shapes)}, as it was measured. Name the shapes of requests "
            "with --shape (PLAN_SHAPES): other sizes may have another best plan.",
        )  # fmt: skip
    chosen = next((row for row in document["counterfactuals"] if row["chosen"]), None)
    if chosen is None:
        return
    latency = document["request"]["hint"] == "LATENCY"
    key = "latency_s" if latency else "bottleneck_s"
    for row in document["counterfactuals"]:
        better = row["kind"] == "single" and row["possible"] and row[key] is not None
        if better and chosen[key] is not None and row[key] < chosen[key] and not row["chosen"]:
            yield _lint(
                "slower-than-single", "warning",
                f"{row['devices'][0]} alone takes {seconds_text(row[key])}, the choice "
                f"{seconds_text(chosen[key])} ({'latency' if latency else 'bottleneck'}).",
                devices=row["devices"],
            )  # fmt: skip


def _element(text: str) -> str:
    return text[7:-1] if text.startswith("tensor(") else ""


def _some(counts: Counter[str], most: int = 6) -> str:
    shown = [f"{op} {count}" for op, count in counts.most_common(most)]
    return ", ".join(shown) + (", …" if len(counts) > most else "")
