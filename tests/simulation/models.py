"""Models of histories: the outputs of stages depend on every input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from zlib import crc32

import numpy as np

from hetero.devices.model.tensor_spec import TensorSpec
from hetero.scheduler.types.placement import Placement, alone, share
from hetero.scheduler.types.plan import Plan, Stage

#: Shape of a model -> its stages: inputs and outputs.
SHAPES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "one": (("x", "y"),),
    "two": (("x", "t"), ("t", "y")),
    "four": (("x", "t"), ("t", "u"), ("u", "v"), ("v", "y")),
    "diamond": (("x", "t"), ("t", "u"), ("t", "v"), ("uv", "y")),
    "fork": (("x", "ty"), ("t", "z")),
    "wide": (("x", "t"), ("x", "u"), ("tu", "y"), ("u", "z")),
    "state": (("xs", "tr"), ("t", "y")),
    "states": (("x", "t"), ("ts", "yr")),
}
_PRIME = np.int64(1_000_003)


def stage_output(name: str, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Return a value; each of its rows depends on the same rows of all inputs."""
    value = np.full_like(inputs[0], crc32(name.encode()))
    for array in inputs:
        value = value * _PRIME + array
    value.flags.writeable = False
    return value


def expected_values(shape: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return all values of a model by name."""
    values = dict(inputs)
    for takes, gives in SHAPES[shape]:
        for name in gives:
            values[name] = stage_output(name, [values[i] for i in takes])
    return values


def plan(shape: str, devices: Sequence[str], width: int) -> Plan:
    """Return a plan of a model with its stages on these devices in turn."""
    stages = SHAPES[shape]
    inside = {name for takes, _ in stages for name in takes}
    inputs = dict.fromkeys(n for takes, _ in stages for n in takes if n in "xs")
    outputs = [n for _, gives in stages for n in gives if n in "yzr" or n not in inside]
    return Plan(
        shape,
        tuple(TensorSpec(n, "i64", (None, width)) for n in inputs),
        tuple(TensorSpec(n, "i64", (None, width)) for n in dict.fromkeys(outputs)),
        tuple(
            Stage(i, devices[i % len(devices)], tuple(takes), tuple(gives), (f"n{i}",))
            for i, (takes, gives) in enumerate(stages)
        ),
    )


def placement(random: Random, shape: str, names: Sequence[str], width: int) -> Placement:
    """Return a random placement of one plan, or of several that share the requests."""

    def random_plan() -> Plan:
        return plan(shape, [random.choice(names) for _ in SHAPES[shape]], width)

    num_routes = random.choice((1, 1, 2, 3))
    if num_routes == 1:
        return alone(random_plan())
    plans = [random_plan() for _ in range(num_routes)]
    shares = [random.choice((1.0, 1.0, 2.0)) for _ in plans]
    return share(plans, shares)
