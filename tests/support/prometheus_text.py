"""A strict parser of the Prometheus exposition format, by its specification."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(,|$)')
PLAIN = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}
Labels = frozenset[tuple[str, str]]


@dataclass
class Family:
    """A metric family: its type, and its values by name suffix and labels."""

    kind: str
    values: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, suffix: str = "", **labels: str) -> float:
        return self.values[suffix, frozenset(labels.items())]


def read(text: str) -> dict[str, Family]:
    """Parse an exposition; raise AssertionError if it breaks a rule."""
    assert text.endswith("\n"), "the last line ends in a line feed"
    families: dict[str, Family] = {}
    name, helped = "", ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            helped = line.split(" ", 3)[2]
            assert helped not in families, f"{helped}: one group of lines for each metric"
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert re.fullmatch(NAME, name)
            assert kind in ("counter", "gauge", "histogram", "summary", "untyped")
            assert name == helped, "HELP and TYPE come first, and belong together"
            assert kind != "counter" or name.endswith("_total")
            families[name] = Family(kind)
        else:
            _sample(line, name, families[name])
    for family in families.values():
        if family.kind == "histogram":
            _check_histogram(family)
    return families


def _sample(line: str, name: str, family: Family) -> None:
    match = re.fullmatch(rf"({NAME})(\{{.*\}})? (\S+)", line)
    assert match, line
    suffix = match[1].removeprefix(name)
    assert match[1].startswith(name), f"{line} stands below {name}"
    assert suffix in SUFFIXES.get(family.kind, ("",)), line
    labels: dict[str, str] = {}
    rest = (match[2] or "{}")[1:-1]
    while rest:
        label = LABEL.match(rest)
        assert label, line
        assert label[1] not in labels
        labels[label[1]] = re.sub(r"\\.", lambda m: PLAIN[m[0]], label[2])
        rest = rest[label.end() :]
    key = (suffix, frozenset(labels.items()))
    assert key not in family.values, f"{line}: twice"
    family.values[key] = float(match[3])
    assert family.kind == "gauge" or family.values[key] >= 0


def _check_histogram(family: Family) -> None:
    buckets: dict[Labels, list[tuple[float, float]]] = {}
    for (suffix, labels), value in family.values.items():
        if suffix == "_bucket":
            (bound,) = (text for key, text in labels if key == "le")
            rest = frozenset(pair for pair in labels if pair[0] != "le")
            buckets.setdefault(rest, []).append((float(bound), value))
    for rest, entries in buckets.items():
        assert entries == sorted(entries), "bounds ascend, and counts with them"
        assert [value for _, value in entries] == sorted(value for _, value in entries)
        assert entries[-1] == (math.inf, family.values["_count", rest])
        assert ("_sum", rest) in family.values
