"""Affinities of nodes: pins set by the user, and devices assigned by the query for the rest."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

from hetero.affinity.layer_pins import layer_pins
from hetero.affinity.request_dependence import computed_weight_positions
from hetero.devices.errors import AffinityError
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.support import Support
from hetero.scheduler.types.device_names import match_name

#: Characters that make a pattern a glob.
_GLOB_CHARACTERS: Final = frozenset("*?[")
#: Kinds of patterns, in ascending order of precedence.
_PATTERN_KINDS: Final = ("layer", "op", "glob", "name")


@dataclass(frozen=True, slots=True)
class Affinity(Mapping[str, str]):
    """Node name -> device name, with reasons; of a whole model, or of its pinned nodes only.

    Attributes
    ----------
    devices : mapping of str to str
        Node name -> device name.
    reasons : mapping of str to str
        Node name -> reason, such as ``pin: glob conv*``, ``priority`` or ``follows conv1``.
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

    def with_fallback(self, fallback: Affinity) -> Affinity:
        """Return the union of two affinities; this one takes precedence over `fallback`."""
        return Affinity({**fallback.devices, **self.devices}, {**fallback.reasons, **self.reasons})


#: The empty affinity.
NO_PINS: Final = Affinity(MappingProxyType({}), MappingProxyType({}))


def resolve_pins(
    model: Model, pins: Mapping[str, str], devices: Sequence[str] | None = None, *, source: str = ""
) -> Affinity:
    """Match patterns to nodes and return the pinned nodes with their devices.

    A pattern is a node name, a glob over node names (``*``, ``?``, ``[...]``), ``op:TYPE`` for an
    operator type, or ``layer:NUMBERS`` for layers of a decoder or encoder. The type may be a glob
    and may include its domain (``op:com.microsoft.Gelu``). The prefixes ``name:`` and ``glob:``
    resolve ambiguous patterns. Names take precedence over globs, globs over types, and types over
    layers; within a kind the later pattern wins. Pins of layers must cover all layers, each once:
    see `hetero.affinity.layer_pins`.

    `pins`: pattern -> device name.
    `devices`: the devices that a pin may name; any by default.
    `source`: the origin of the pins, for reasons and messages.
    Returns: the pinned nodes in the model's order, without literals, which follow their readers.
    Raises AffinityError: with every pattern that matches nothing and every unknown device.
    """
    origin = f" in {source}" if source else ""
    problems: list[str] = []
    layers: dict[str, str] = {}
    matches_by_kind: dict[str, dict[str, tuple[str, str]]] = {kind: {} for kind in _PATTERN_KINDS}
    for pattern, device in pins.items():
        if not isinstance(device, str) or not device:
            problems.append(f"pin {pattern!r}{origin}: {device!r} is not a device name")
            continue
        if devices is not None:
            device_name = match_name(device, devices)
            if device_name is None:
                suggestions = difflib.get_close_matches(device.upper(), devices, 1, 0.7)
                problems.append(
                    f"pin {pattern!r}{origin}: no device {device!r} in the list "
                    f"({', '.join(devices)})"
                    + (f"; did you mean {suggestions[0]!r}?" if suggestions else "")
                )
            device = device_name or device
        kind, text = _split_pattern(pattern, model)
        if kind == "layer":
            layers[text] = device
            continue
        matches = _matching_nodes(model, kind, text)
        if not matches:
            problems.append(f"pin {pattern!r}{origin}: {_explain_no_match(model, kind, text)}")
        label = f"pin: {'op:' if kind == 'op' else kind + ' '}{text}" + origin
        matches_by_kind[kind] |= dict.fromkeys(matches, (device, label))
    layer_matches, layer_problems = layer_pins(model, layers)
    for name, (number, device) in layer_matches.items():
        matches_by_kind["layer"][name] = device, f"pin: layer {number}{origin}"
    problems += [f"pins of layers{origin}: {problem}" for problem in layer_problems]
    raise_problems(model, problems)
    pins_by_node: dict[str, tuple[str, str]] = {}
    for kind in _PATTERN_KINDS:
        pins_by_node |= matches_by_kind[kind]
    names = [n.name for n in model.nodes if n.name in pins_by_node and not is_literal(model, n)]
    return Affinity(
        {name: pins_by_node[name][0] for name in names},
        {name: pins_by_node[name][1] for name in names},
    )


def assign(model: Model, support: Support, pins: Affinity = NO_PINS) -> Affinity:
    """Return the affinity of every supported node: pins first, the query's devices for the rest.

    `support`: the result of `hetero.query.priority.query_priority` with the same pins.
    Raises AffinityError: with every pinned node that its device does not support.
    """
    problems = []
    for name, device in pins.items():
        if support.get(name) != device:
            refusal = support.refusals.get(name, {}).get(device)
            complaint = f"does not support it: {refusal}" if refusal else "was not queried about it"
            node = model.nodes[model.index_of[name]]
            reason = pins.reasons.get(name, "pin")
            problems.append(f"node {name!r} ({node.op_type}): {device} {complaint} ({reason})")
    raise_problems(model, problems)
    devices: dict[str, str] = {}
    reasons: dict[str, str] = {}
    weights = computed_weight_positions(model)
    for position, node in enumerate(model.nodes):
        name = node.name
        if is_literal(model, node):
            reader = next((r.name for r in model.readers(node) if r.name in support.devices), None)
            if reader is not None:
                devices[name] = pins.get(reader) or support[reader]
                reasons[name] = f"follows {reader}"
        elif name in pins:
            devices[name] = pins[name]
            reasons[name] = pins.reasons.get(name, "pin")
        elif name in support.devices:
            devices[name] = support[name]
            readers = model.readers(node) if position in weights else ()
            reader = next((r.name for r in readers if support.get(r.name) == support[name]), None)
            refusals = support.refusals.get(name, {}).items()
            explanation = "; ".join(f"{device}: {refusal}" for device, refusal in refusals)
            if reader:
                reasons[name] = f"follows {reader}"
            else:
                reasons[name] = f"priority, after {explanation}" if explanation else "priority"
    return Affinity(devices, reasons)


def is_literal(model: Model, node: Node) -> bool:
    """Return whether a node is a literal: a `Constant` node with readers, copied to each reader."""
    return node.is_constant and any(value in model.consumers for value in node.writes)


def _split_pattern(pattern: str, model: Model) -> tuple[str, str]:
    """Return the kind of a pattern, and its text without the prefix."""
    if pattern in model.index_of:
        return "name", pattern
    prefix, colon, text = pattern.partition(":")
    if colon and prefix in _PATTERN_KINDS:
        return prefix, text
    return ("glob" if _GLOB_CHARACTERS & set(pattern) else "name"), pattern


def _matching_nodes(model: Model, kind: str, text: str) -> list[str]:
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


def _explain_no_match(model: Model, kind: str, text: str) -> str:
    candidates: Iterable[str] = model.node_names
    problem = "no node has that name"
    if kind == "op":
        candidates = dict.fromkeys(node.op_type for node in model.nodes)
        problem = f"no node is of type {text!r}"
    elif kind == "glob":
        return f"no node name matches; the model has {abbreviate(model.node_names)}"
    suggestions = difflib.get_close_matches(text, list(candidates), 3, 0.4)
    if suggestions:
        return f"{problem}; close matches: {', '.join(map(repr, suggestions))}"
    return f"{problem}; the model has {abbreviate(list(candidates))}"


def abbreviate(names: Sequence[str], limit: int = 10) -> str:
    """Return the first names of a list for a message, and the number of the others."""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(repr, names[:limit])) + rest


def raise_problems(model: Model, problems: Sequence[str]) -> None:
    """Raise one AffinityError that lists all problems; return if there are none."""
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise AffinityError(
            f"model {model.name!r}: invalid pins ({len(problems)}):{lines}\n"
            "Pin existing nodes to listed devices that support them, or remove these pins.",
            problems=tuple(problems),
        )
