"""Models of histories: the outputs of stages depend on every input and on the order of the inputs.

Stages pass several tensors to each other, which each stage lists in an order of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from zlib import crc32

import numpy as np

from hetero.devices.model.tensor_spec import TensorSpec
from hetero.scheduler.types.placement import Placement, share, single_placement
from hetero.scheduler.types.plan import Plan, Stage

#: Shape of a model -> its stages: inputs and outputs. Each letter is one or several tensors.
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
#: Inputs and outputs of each stage, in its order.
Stages = Sequence[tuple[tuple[str, ...], tuple[str, ...]]]
#: Letters of a state and its next value, which are always one tensor.
_STATES = "sr"
_MAX_TENSORS = 3
_PRIME = np.int64(1_000_003)


def random_stages(random: Random, shape: str) -> Stages:
    """Return the stages of a shape with random tensors, which each stage lists in another order."""
    most = random.choice((1, _MAX_TENSORS))
    tensors: dict[str, list[str]] = {}
    for letter in dict.fromkeys("".join(takes + gives for takes, gives in SHAPES[shape])):
        count = 1 if letter in _STATES else random.randint(1, most)
        tensors[letter] = [letter, *(f"{letter}{i}" for i in range(1, count))]

    def listed(letters: str) -> tuple[str, ...]:
        names = [name for letter in letters for name in tensors[letter]]
        return tuple(random.sample(names, len(names)))

    return [(listed(takes), listed(gives)) for takes, gives in SHAPES[shape]]


def stage_output(name: str, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Return a value; each of its rows depends on the same rows of all inputs."""
    value = np.full_like(inputs[0], crc32(name.encode()))
    for array in inputs:
        value = value * _PRIME + array
    value.flags.writeable = False
    return value


def expected_values(
    stages: Sequence[Stage], inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return all values of a model by name."""
    values = dict(inputs)
    for stage in stages:
        for name in stage.outputs:
            values[name] = stage_output(name, [values[source] for source in stage.inputs])
    return values


def plan(name: str, stages: Stages, devices: Sequence[str], width: int) -> Plan:
    """Return a plan of a model with its stages on these devices in turn."""
    inside = {tensor for takes, _ in stages for tensor in takes}
    inputs = dict.fromkeys(n for takes, _ in stages for n in takes if n[0] in "xs")
    outputs = [n for _, gives in stages for n in gives if n[0] in "yzr" or n not in inside]
    return Plan(
        name,
        tuple(TensorSpec(n, "i64", (None, width)) for n in inputs),
        tuple(TensorSpec(n, "i64", (None, width)) for n in dict.fromkeys(outputs)),
        tuple(
            Stage(i, devices[i % len(devices)], takes, gives, (f"n{i}",))
            for i, (takes, gives) in enumerate(stages)
        ),
    )


def placement(random: Random, shape: str, names: Sequence[str], width: int) -> Placement:
    """Return a random placement of one plan, or of several that share the requests."""
    stages = random_stages(random, shape)

    def random_plan() -> Plan:
        return plan(shape, stages, [random.choice(names) for _ in stages], width)

    num_routes = random.choice((1, 1, 2, 3))
    if num_routes == 1:
        return single_placement(random_plan())
    plans = [random_plan() for _ in range(num_routes)]
    shares = [random.choice((1.0, 1.0, 2.0)) for _ in plans]
    return share(plans, shares)


def request_inputs(plan: Plan, number: int, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """Return the inputs of a call except states; x contains its number, the others differ."""
    names = sorted(spec.name for spec in plan.inputs if spec.name not in _STATES)
    return {
        name: np.full(shape, number + position * 10**6, np.int64)
        for position, name in enumerate(names)
    }
