"""Lints of a placement: likely problems, each with a code, a severity and a remedy.

========================  ==========================================================
unsupported-nodes         nodes that no device supports
unused-device             a requested device that gets no node
single-device             a split model that one requested device runs alone
fallback                  nodes that the preferred device refuses
ping-pong                 a subgraph that gets data from a device and sends data back to it
tiny-subgraph             a subgraph with few nodes, or with less work than call overhead
transfer-above-compute    a subgraph whose transfers take longer than its work
dtype-fallback            nodes refused only because of their element type
wide-wire                 a tensor that crosses in a wider type than one of its ends needs
double-wire               64-bit floats that cross
unknown-wire              a tensor of unknown size that crosses
slower-than-single        a placement that is slower than one device alone
planned-shapes            the assumed shapes of a model with dynamic shapes
not-cut                   a model that cannot be partitioned
========================  ==========================================================
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from hetero.formatting import count_text, nbytes_text, seconds_text, shapes_text
from hetero.report.support_matrix import without_names

#: A subgraph is tiny up to this number of nodes.
TINY_NODES: Final = 3
#: Lints of one code that are listed; the last one counts the rest.
MAX_LISTED: Final = 12
#: Codes that `--strict` turns into an error.
STRICT: Final = frozenset({"unsupported-nodes", "unused-device", "fallback", "not-cut"})
#: Codes by severity; the others are warnings.
_ERROR_CODES: Final = ("unsupported-nodes", "not-cut")
_INFO_CODES: Final = ("double-wire", "unknown-wire", "planned-shapes", "single-device")
_RANK: Final = {"error": 0, "warning": 1, "info": 2}
_count_nodes: Final = partial(count_text, noun="node")
#: Bytes of an element, for casts.
_WIDTHS: Final = {"float16": 2, "bfloat16": 2, "float": 4, "double": 8, "int8": 1, "uint8": 1}

_Document = Mapping[str, Any]
_Lints = Iterator[dict[str, Any]]


def lints(document: _Document) -> list[dict[str, Any]]:
    """Return the lints of a document that lacks only its lints and verdict, the worst first."""
    checks = (_nodes, _fallbacks, _devices, _subgraphs, _casts, _wires, _plan_basis)
    every_lint = [lint for check in checks for lint in check(document)]
    listed: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    for lint in sorted(every_lint, key=lambda lint: _RANK[lint["severity"]]):
        counts[lint["code"]] += 1
        if counts[lint["code"]] <= MAX_LISTED:
            listed.append(lint)
    for code, count in counts.items():
        if count > MAX_LISTED:
            rest = count - MAX_LISTED
            text = f"{rest} more of {code}."
            listed.append(_lint(code, text) | {"severity": "info", "count": rest})
    return listed


def strict_problems(document: _Document) -> list[dict[str, Any]]:
    """Return the lints that are errors with `--strict`."""
    return [lint for lint in document["lints"] if lint["code"] in STRICT]


def _lint(code: str, message: str, **places: list[Any]) -> dict[str, Any]:
    """`places`: the nodes, subgraphs and devices that have the problem."""
    severity = "error" if code in _ERROR_CODES else "info" if code in _INFO_CODES else "warning"
    no_places: dict[str, list[Any]] = {"nodes": [], "subgraphs": [], "devices": []}
    return {
        "code": code,
        "severity": severity,
        "message": message,
        "count": 1,
        **no_places,
        **places,
    }


def _nodes(document: _Document) -> _Lints:
    if unsupported := [node for node in document["nodes"] if node["device"] is None]:
        types = _most_common(Counter(node["op_type"] for node in unsupported))
        nodes = _count_nodes(len(unsupported))
        text = f"no device supports {nodes} ({types}): add a device that does."
        yield _lint("unsupported-nodes", text, nodes=[node["name"] for node in unsupported])
    if document["uncut"]:
        yield _lint("not-cut", document["uncut"])


def _fallbacks(document: _Document) -> _Lints:
    fallback = document["fallback"]
    first = fallback["device"]
    refusals = {
        node["name"]: (refusal["code"], without_names(refusal["message"]))
        for node in document["nodes"]
        if node["device"] not in (None, first)
        and (refusal := node["refusals"].get(first)) is not None
    }
    for reason in fallback["reasons"]:
        code, message, nodes = reason["code"], reason["message"], _count_nodes(reason["count"])
        names = [n for n, cause in refusals.items() if cause == (code, without_names(message))]
        text = f"{first} refuses {nodes} that another device runs: {message} [{code}]"
        yield _lint("fallback", text, nodes=names, devices=[first])
        if code == "dtype":
            text = (
                f"{first} refuses {nodes} only because of the element type: {message}. Insert a "
                "cast, or export the model in another type."
            )
            yield _lint("dtype-fallback", text, nodes=names, devices=[first])


def _devices(document: _Document) -> _Lints:
    unmeasured = (document["plan"] or {}).get("unmeasured", {})
    devices = document["devices"]
    for device in devices:
        if device["used"]:
            continue
        name, count = device["name"], _count_nodes(device["supported"])
        if device["supported"] == 0:
            why = "it supports none of the nodes"
        elif name in unmeasured:
            why = f"it could not be measured ({unmeasured[name]})"
        elif document.get("memory") and document["request"]["policy"] == "PRIORITY":
            # A plan that fits fills the devices in their order until no node is left.
            later = devices[devices.index(device) + 1 :]
            if any(other["used"] for other in later):
                why = (
                    f"its memory is too small for any of the {count} that it supports; allow more "
                    f"(--memory {name}=SIZE)"
                )
            else:
                why = "the model fits the memory of the devices before it in the list"
        elif document["request"]["policy"] == "PRIORITY":
            why = (
                f"devices before it in the list get the {count} that it supports; put it first, "
                "pin nodes to it, or plan by cost (`hetero plan`)"
            )
        else:
            why = f"it supports {count}, but using it makes the plan no faster"
        text = f"{name} was requested but is not used: {why}."
        lint = _lint("unused-device", text, devices=[name])
        # The end of a priority list is a fallback, which is not used if all goes well.
        yield lint | {"severity": "info"} if device["supported"] else lint
    yield from _single_device(document)


def _single_device(document: _Document) -> _Lints:
    """Name a device that supports every node, if no cost says whether the split is better."""
    total = document["model"]["nodes"]
    used = [device for device in document["devices"] if device["used"]]
    if document["plan"] or len(used) < 2 or document["request"]["pins"]:
        return
    for device in used:
        if device["supported"] == total:
            text = (
                f"{device['name']} runs all {_count_nodes(total)}. Unless the split is faster, put "
                f"{device['name']} first; `hetero plan` compares them."
            )
            yield _lint("single-device", text, devices=[device["name"]])
            return


def _subgraphs(document: _Document) -> _Lints:
    subgraphs = document["subgraphs"]
    device_of = {s["index"]: s["device"] for s in subgraphs}
    #: Subgraph -> device -> bytes that the subgraph gets from it, or sends to it.
    sources = defaultdict[int, Counter[str]](Counter)
    targets = defaultdict[int, Counter[str]](Counter)
    for wire in document["wires"]:
        producer, consumer, nbytes = wire["producer"], wire["consumer"], wire["nbytes"] or 0
        sources[consumer][device_of[producer]] += nbytes
        targets[producer][device_of[consumer]] += nbytes
    constant = {node["name"] for node in document["nodes"] if node["constant"]}
    main = max(document["devices"], key=lambda d: int(d["nodes"]), default={"name": None})["name"]
    for s in subgraphs:
        index, device = s["index"], s["device"]
        source_nbytes, target_nbytes = sources[index], targets[index]
        # The device with most nodes is skipped: its round trips are listed for the other device.
        others = source_nbytes.keys() & target_nbytes.keys() if device != main else set()
        others = {d for d in others if d and d != device}
        name = f"subgraph {index} on {device or 'no device'}"
        for other in sorted(others):
            text = (
                f"{other} sends {nbytes_text(source_nbytes[other])} to {name} "
                f"({_count_nodes(len(s['nodes']))}) and gets {nbytes_text(target_nbytes[other])} "
                "back."
            )
            yield _lint("ping-pong", text, subgraphs=[index], devices=[other])
        run_s, transfer_s = s["run_s"], s["transfer_s"]
        if len(subgraphs) > 1 and device is not None and not others:
            work = [node for node in s["nodes"] if node not in constant]
            if run_s is None and len(work) <= TINY_NODES:
                text = f"{name} runs only {', '.join(work) or 'constants'}."
                yield _lint("tiny-subgraph", text, subgraphs=[index], nodes=work)
            elif run_s is not None and run_s < (s["overhead_s"] or 0.0):
                overhead = seconds_text(s["overhead_s"])
                text = f"{name} runs for {seconds_text(run_s)}; calling it takes {overhead}."
                yield _lint("tiny-subgraph", text, subgraphs=[index])
        has_wires = source_nbytes or target_nbytes
        if run_s is not None and transfer_s is not None and transfer_s > run_s and has_wires:
            text = (
                f"{name} runs for {seconds_text(run_s)}; moving its data takes "
                f"{seconds_text(transfer_s)}."
            )
            yield _lint("transfer-above-compute", text, subgraphs=[index])


def _casts(document: _Document) -> _Lints:
    """Find casts on the wrong side of a cut: the narrower type should cross."""
    ports = [port for node in document["nodes"] for port in node["outputs"]]
    types = {port["name"]: _element(port["type"]) for port in ports + document["model"]["inputs"]}
    makers = {port["name"]: node for node in document["nodes"] for port in node["outputs"]}
    readers: dict[str, list[Mapping[str, Any]]] = {}
    for node in document["nodes"]:
        for value in node["inputs"]:
            readers.setdefault(value, []).append(node)
    for wire in document["wires"]:
        tensor, maker = wire["tensor"], makers.get(wire["tensor"])
        consumers = [n for n in readers.get(tensor, ()) if n["subgraph"] == wire["consumer"]]
        if maker is not None and maker["op_type"] == "Cast":
            cast, narrow, role = maker, types.get(maker["inputs"][0], ""), "produced by"
        elif consumers and all(n["op_type"] == "Cast" for n in consumers):
            cast, narrow = consumers[0], types.get(consumers[0]["outputs"][0]["name"], "")
            role = "read only by"
        else:
            continue
        wide = types.get(tensor, "")
        if 0 < _WIDTHS.get(narrow, 0) < _WIDTHS.get(wide, 0):
            text = (
                f"{tensor} crosses as {wide}, {role} the Cast {cast['name']!r}: with the Cast on "
                f"the other side of the cut it would cross as {narrow}."
            )
            ends = [wire["producer"], wire["consumer"]]
            yield _lint("wide-wire", text, nodes=[cast["name"]], subgraphs=ends)


def _wires(document: _Document) -> _Lints:
    for wire in document["wires"]:
        tensor, ends = wire["tensor"], [wire["producer"], wire["consumer"]]
        if wire["type"] == "tensor(double)":
            yield _lint("double-wire", f"{tensor} crosses in double precision.", subgraphs=ends)
        if wire["nbytes"] is None:
            text = f"{tensor} crosses; its size is unknown until it runs."
            yield _lint("unknown-wire", text, subgraphs=ends)


def _plan_basis(document: _Document) -> _Lints:
    shapes = document["request"]["shapes"]
    if document["plan"] and shapes and "PLAN_SHAPES" not in document["request"]["config"]:
        text = (
            f"planned for the measured shapes {shapes_text(shapes)}. Another plan may be better "
            "for other shapes: set those of your requests with --shape (PLAN_SHAPES)."
        )
        yield _lint("planned-shapes", text)
    figure = "latency" if document["request"]["hint"] == "LATENCY" else "bottleneck"
    rows = document["counterfactuals"]
    chosen_s = next((row[f"{figure}_s"] for row in rows if row["chosen"]), None)
    for row in rows if chosen_s is not None else ():
        is_usable = row["possible"] and row.get("fits", True)
        single_s = row[f"{figure}_s"] if row["kind"] == "single" and is_usable else None
        if single_s is not None and single_s < chosen_s and not row["chosen"]:
            text = (
                f"{row['devices'][0]} alone takes {seconds_text(single_s)}, the chosen placement "
                f"{seconds_text(chosen_s)} ({figure})."
            )
            yield _lint("slower-than-single", text, devices=row["devices"])


def _element(tensor_type: str) -> str:
    return tensor_type[7:-1] if tensor_type.startswith("tensor(") else ""


def _most_common(counts: Counter[str], limit: int = 6) -> str:
    listed = [f"{op} {count}" for op, count in counts.most_common(limit)]
    return ", ".join(listed) + (", …" if len(counts) > limit else "")
