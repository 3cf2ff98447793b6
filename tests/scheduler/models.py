"""Small models with manual plans."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.scheduler import Plan, Stage, StageSource
from hetero.scheduler.types.placement import Placement, share

Line = tuple[str, str, Sequence[str], str]


def build(
    nodes: Sequence[Line],
    outputs: Sequence[str],
    *,
    inputs: Sequence[str] = ("x",),
    weights: dict[str, np.ndarray] | None = None,
) -> Model:
    """Build a model from lines (operator, node name, inputs, output)."""
    proto = helper.make_model(
        helper.make_graph(
            [
                helper.make_node(op, list(sources), [output], name=name)
                for op, name, sources, output in nodes
            ],
            "toy",
            [helper.make_tensor_value_info(i, TensorProto.FLOAT, ["n"]) for i in inputs],
            [onnx.ValueInfoProto(name=o) for o in outputs],
            [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    return read_model(proto)


def cut(model: Model, *parts: tuple[str, Sequence[str]]) -> tuple[Plan, list[StageSource]]:
    """Cut a model into stages: (device, node names), in order."""
    stages, sources = [], []
    outputs = {spec.name for spec in model.outputs}
    for index, (device, names) in enumerate(parts):
        positions = [model.index_of[name] for name in names]
        values = [v for i in positions for v in model.nodes[i].writes]
        crossing = [
            v
            for v in values
            if v in outputs or any(r not in positions for r in model.consumers.get(v, ()))
        ]
        part = model.extract(positions, crossing)
        stages.append(
            Stage(
                index,
                device,
                tuple(spec.name for spec in part.inputs),
                tuple(spec.name for spec in part.outputs),
                tuple(names),
            )
        )
        sources.append(StageSource(part))
    inputs = {spec.name for spec in model.inputs}
    plan = Plan(
        model.name,
        model.inputs,
        model.outputs,
        tuple(stages),
        tuple(name for name in outputs if name in inputs),
        tuple(sorted(name for name in outputs if name in model.constants)),
    )
    return plan, sources


def replicate(plan: Plan, replicas: Mapping[int, Mapping[str, float]]) -> Placement:
    """Place a plan with some stages on several devices: stage -> device -> share."""
    choices = [replicas.get(s.index, {s.device: 1.0}).items() for s in plan.stages]
    ways = list(product(*choices))
    plans = [
        replace(
            plan,
            stages=tuple(replace(s, device=d) for s, (d, _) in zip(plan.stages, way, strict=True)),
        )
        for way in ways
    ]
    return share(plans, [math.prod(part for _, part in way) for way in ways])


def chain(
    *devices: str, name: str = "add", names: Sequence[str] = ()
) -> tuple[Plan, list[StageSource]]:
    """Return a plan that adds one on each device in turn."""
    names = names or [f"{name}{i}" for i in range(len(devices))]
    one = {"one": np.ones(1, np.float32)}
    lines = [
        ("Add", node, (f"t{i - 1}" if i else "x", "one"), f"t{i}") for i, node in enumerate(names)
    ]
    model = build(lines, [f"t{len(devices) - 1}"], weights=one)
    return cut(model, *((device, [node]) for device, node in zip(devices, names, strict=True)))


def diamond(
    devices: tuple[str, str, str, str], *, left: str = "left", right: str = "right"
) -> tuple[Plan, list[StageSource]]:
    """Return a plan for y = (-x + 2) + (3 * -x) = 2 - 4x with two branches."""
    weights = {"two": np.full(1, 2, np.float32), "three": np.full(1, 3, np.float32)}
    lines: list[Line] = [
        ("Neg", "top", ("x",), "a"),
        ("Add", left, ("a", "two"), "b"),
        ("Mul", right, ("a", "three"), "c"),
        ("Add", "join", ("b", "c"), "y"),
    ]
    names = ("top", left, right, "join")
    model = build(lines, ["y"], weights=weights)
    return cut(model, *((device, [name]) for device, name in zip(devices, names, strict=True)))
