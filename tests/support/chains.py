"""Models for planning tests: chains and random sums."""

from __future__ import annotations

import random

from hetero.devices.model.model import Model
from tests.support.graphs import build


def chain(length: int) -> Model:
    lines = "\n".join(f"n{i}: v{i + 1} = Neg(v{i})" for i in range(length))
    return build(lines, inputs="v0", outputs=f"v{length}")


def random_model(seed: int, count: int) -> Model:
    dice = random.Random(seed)
    values = ["x"]
    lines = []
    for i in range(count):
        a, b = dice.choice(values[-3:]), dice.choice(values)
        lines.append(f"n{i}: v{i} = Add({a}, {b})")
        values.append(f"v{i}")
    ends = " ".join(v for v in values[1:] if not any(f"({v}," in x or f" {v})" in x for x in lines))
    return build("\n".join(lines), outputs=ends)
