"""Which device each node goes to, and why: pins by hand, the rest as the query assigned it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

from hetero.affinity.request_dependence import weight_positions
from hetero.devices.errors import AffinityError
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.support import Support
from hetero.scheduler.vocabulary.names import match_name

#: Characters that make a pattern a glob.
_WILD: Final = frozenset("*?[")
#: Kinds of patterns, the stronger last.
_KINDS: Final = ("op", "glob", "name")


@dataclass(frozen=True, slots=True)
class Affinity(Mapping[str, str]):
    """Node name -> device name, and why; a whole model's, or only what is pinned.

    Attributes
    ----------
    devices : mapping of str to str
        Each node's device.
    reasons : mapping of str to str
        Why: ``pin: glob conv*``, ``priority``, ``follows conv1``.
    """

    devices: Mapping[str, str]
    reasons: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> str:
        return self.devices[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.devices)

    def __len__(self) -> int:
        return len(self.devices)

    def __hash__(self) -> int:
        return hash(tuple(self.devices.items()))

    def over(self, weaker: Affinity) -> Affinity:
        """Return both together; where they differ, this one holds."""
        return Affinity({**weaker.devices, **self.devices}, {**weaker.reasons, **self.reasons})


#: No pins at all.
NO_PINS: Final = Affinity(MappingProxyType({}), MappingProxyType({}))


def resolve_pins(
    model: Model, pins: Mapping[str, str], devices: Sequence[str] | None = None, *, source: str = ""
) -> Affinity:
    """Find the nodes that patterns name.

    A pattern is a node's name, a glob over names (``*``, ``?``, ``[...]``), or ``op:TYPE`` for an
    operator type (a glob too; with its domain, ``op:com.microsoft.Gelu``, if wanted). ``name:`` or
    ``glob:`` in front says which is meant. Names win over globs, globs over types, and within a
    kind the later one wins.

    `pins`: pattern -> device name.
    `devices`: the devices that a pin may name; any by default.
    `source`: where the pins come from, for reasons and messages.
    Returns: the pinned nodes in the model's order. `Constant` nodes that others read are left out:
        they follow their readers.
    Raises AffinityError: patterns that match nothing, devices that are not in the list: all of them
        at once.
    """
    where = f" in {source}" if source else ""
    problems: list[str] = []
    found: dict[str, dict[str, tuple[str, str]]] = {kind: {} for kind in _KINDS}
    for pattern, device in pins.items():
        if not isinstance(device, str) or not device:
            problems.append(f"pin {pattern!r}{where}: {device!r} is not a device name")
            continue
        if devices is not None:
            listed = match_name(device, devices)
            if listed is None:
                near = difflib.get_close_matches(device.upper(), devices, 1, 0.7)
                problems.append(
                    f"pin {pattern!r}{where}: no device {device!r} in the list "
                    f"({', '.join(devices)})" + (f"; did you mean {near[0]!r}?" if near else "")
                )
            device = listed or device
        kind, text = _kind(pattern, model)
        names = _matching(model, kind, text)
        if not names:
            problems.append(f"pin {pattern!r}{where}: {_no_match(model, kind, text)}")
        label = f"pin: {'op:' if kind == 'op' else kind + ' '}{text}" + where
        found[kind] |= dict.fromkeys(names, (device, label))
    refuse(model, problems)
    merged: dict[str, tuple[str, str]] = {}
    for kind in _KINDS:
        merged |= found[kind]
    chosen = [n.name for n in model.nodes if n.name in merged and not follows(model, n)]
    return Affinity(
        {name: merged[name][0] for name in chosen}, {name: merged[name][1] for name in chosen}
    )


def assign(model: Model, support: Support, pins: Affinity = NO_PINS) -> Affinity:
    """Return the affinity of every node that has a device: pins as they are, the rest by priority.

    `support`: the query's answer, asked with the same pins (`hetero.query.query_priority`).
    """
    problems = []
    for name, device in pins.items():
        if support.get(name) != device:
            refusal = support.refusals.get(name, {}).get(device)
            why = f"does not take it: {refusal}" if refusal else "was not asked about it"
            node = model.nodes[model.index_of[name]]
            reason = pins.reasons.get(name, "pin")
            problems.append(f"node {name!r} ({node.op_type}): {device} {why} ({reason})")
    refuse(model, problems)
    placed: dict[str, str] = {}
    reasons: dict[str, str] = {}
    weights = weight_positions(model)
    for position, node in enumerate(model.nodes):
        name = node.name
        if follows(model, node):
            reader = next((r.name for r in model.readers(node) if r.name in support.devices), None)
            if reader is not None:
                placed[name] = pins.get(reader) or support[reader]
                reasons[name] = f"follows {reader}"
        elif name in pins:
            placed[name] = pins[name]
            reasons[name] = pins.reasons.get(name, "pin")
        elif name in support.devices:
            placed[name] = support[name]
            near = model.readers(node) if position in weights else ()
            reader = next((r.name for r in near if support.get(r.name) == support[name]), None)
            heard = support.refusals.get(name, {})
            refused = "; ".join(f"{device}: {refusal}" for device, refusal in heard.items())
            reasons[name] = (
                f"follows {reader}" if reader else "priority" + f", after {refused}" * bool(refused)
            )
    return Affinity(placed, reasons)


def follows(model: Model, node: Node) -> bool:
    """Whether the node is a literal that others read: it goes wherever they go."""
    return node.is_constant and any(value in model.consumers for value in node.writes)


def _kind(pattern: str, model: Model) -> tuple[str, str]:
    """Return a pattern's kind and its text without the prefix."""
    if pattern in model.index_of:
        return "name", pattern
    prefix, colon, text = pattern.partition(":")
    if colon and prefix in _KINDS:
        return prefix, text
    return ("glob" if _WILD & set(pattern) else "name"), pattern


def _matching(model: Model, kind: str, text: str) -> list[str]:
    if kind == "name":
        return [text] if text in model.index_of else []
    if kind == "glob":
        return [name for name in model.node_names if fnmatchcase(name, text)]
    return [
        node.name
        for node in model.nodes
        if fnmatchcase(node.op_type, text)
        or fnmatchcase(f"{node.domain or 'ai.onnx'}.{node.op_type}", text)
    ]


def _no_match(model: Model, kind: str, text: str) -> str:
    known: Iterable[str] = model.node_names
    what = "no node has that name"
    if kind == "op":
        known = dict.fromkeys(node.op_type for node in model.nodes)
        what = f"no node is of type {text!r}"
    elif kind == "glob":
        return f"no node's name fits it; the model has {some(model.node_names)}"
    near = difflib.get_close_matches(text, list(known), 3, 0.4)
    if near:
        return f"{what}; close: {', '.join(map(repr, near))}"
    return f"{what}; the model has {some(list(known))}"


def some(names: Sequence[str], most: int = 10) -> str:
    """Return the first of some names for a message, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def refuse(model: Model, problems: Sequence[str]) -> None:
    """Raise one AffinityError with all problems, if there are any."""
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise AffinityError(
            f"model {model.name!r}: problems with its affinities ({len(problems)}):{lines}\n"
            "Name nodes of the model and devices of the list that take them, or leave the pin out.",
            problems=tuple(problems),
        )
