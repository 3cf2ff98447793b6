"""What to measure of a model: the parts that a device supports, chunks of them, single nodes.

Parts are run with the values that they get in the whole model where they are available, since times
depend on values (indices, masks, trip counts) as well as on shapes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from devices.errors import HeteroError
from devices.model.model import Model
from devices.model.tensor_spec import TensorSpec
from devices.plugin.program import Value
from hetero.affinity.requests import request_positions
from hetero.observe.sample_inputs import sample_value
from hetero.partition.partition import partition
from hetero.planning.cost.timing import deployed, run
from hetero.planning.cost.work import node_work
from scheduler.executor import Executor

#: Stands for every device but the one that is looked at.
_ELSEWHERE: Final = "elsewhere"


def regions(model: Model, supported: Iterable[str], device: str) -> list[Model]:
    """Return the parts of a model that a device can run, as large as they can be.

    Parts that no request runs (weights made by nodes) are left out: devices fold them.
    """
    mine = set(supported)
    affinity = {n: device if n in mine else _ELSEWHERE for n in model.node_names}
    alive = {model.nodes[p].name for p in request_positions(model)}
    return [
        s.model
        for s in partition(model, affinity).subgraphs
        if s.device == device and alive.intersection(s.node_names)
    ]


def chunks(model: Model, pieces: int) -> list[Model]:
    """Cut a model into runs of its nodes' order with about equal work.

    Raises AffinityError: a tensor that would cross is of unknown type.
    """
    positions = request_positions(model)
    work = [1.0 + node_work(model, model.nodes[p]).operations for p in positions]
    total, done = sum(work), 0.0
    label: dict[int, int] = {}
    for position, share in zip(positions, work, strict=True):
        label[position] = min(pieces - 1, int(done / total * pieces))
        done += share
    # What no request runs goes with its first reader, as weights do.
    for position in reversed(range(len(model.nodes))):
        if position not in label:
            readers = [r for v in model.nodes[position].writes for r in model.consumers.get(v, ())]
            label[position] = min((label[r] for r in readers), default=pieces - 1)
    affinity = {model.nodes[p].name: f"chunk {c}" for p, c in label.items()}
    return [s.model for s in partition(model, affinity).subgraphs]


def single_node(model: Model, position: int) -> Model:
    """Return one node as a model, with the literals and constants that it reads."""
    node = model.nodes[position]
    fixed = [
        p for v in node.reads if (p := model.producers.get(v, -1)) >= 0
        and model.nodes[p].is_constant
    ]  # fmt: skip
    return model.extract([*fixed, position], node.writes)


def node_key(model: Model, position: int) -> str:
    """Return what nodes that take the same time have in common.

    Operator, opset, attributes, types and shapes of all inputs and outputs, and which inputs are
    constants; contents of small integer constants too, as they are axes, sizes and indices.
    """
    node = model.nodes[position]
    state = hashlib.sha256()
    proto = node.proto.__class__()
    proto.CopyFrom(node.proto)
    for field in ("name", "input", "output", "doc_string", "metadata_props"):
        proto.ClearField(field)
    state.update(proto.SerializeToString(deterministic=True))
    state.update(str(model.opset_imports.get(node.domain)).encode())
    for name in (*node.inputs, *node.captures, *node.outputs):
        spec = model.spec(name) if name else TensorSpec("", "")
        state.update(repr((spec.type, spec.shape, name in model.constants)).encode())
        constant = model.constants.get(name)
        if constant is not None and constant.array.size <= 64 and constant.array.dtype.kind == "i":
            state.update(constant.digest)
    return state.hexdigest()


def capture(
    executor: Executor,
    model: Model,
    affinity: Mapping[str, str],
    configs: Mapping[str, Mapping[str, Any]],
    inputs: Mapping[str, Value],
    wanted: Iterable[str],
) -> dict[str, Value]:
    """Return inner values of a model by running it once with them as outputs.

    Values of unknown type, which cannot be outputs, are left out; so is everything where the model
    does not run that way.
    """
    known = dict.fromkeys(v for v in wanted if v in model.producers and model.spec(v).type)
    if not known:
        return {}
    outputs = [*dict.fromkeys(p.name for p in model.outputs), *known]
    whole = model.extract(range(len(model.nodes)), list(dict.fromkeys(outputs)))
    try:
        with deployed(executor, whole, affinity, configs) as deployment:
            ports = {port.name for port in deployment.plan.inputs}
            given = {name: value for name, value in inputs.items() if name in ports}
            made = run(deployment, given).outputs
    except HeteroError:
        return {}
    return {name: made[name] for name in known if name in made}


def feeds(model: Model, values: Mapping[str, Value]) -> dict[str, Value] | None:
    """Return an input for each port: the captured one, else one made to fit; None if impossible."""
    rng = np.random.default_rng(0)
    found: dict[str, Value] = {}
    for port in model.inputs:
        if port.name in values:
            found[port.name] = values[port.name]
            continue
        if port.dtype is None or port.shape is None:
            return None
        found[port.name] = sample_value(port, rng)
    return found


def needed(models: Iterable[Model]) -> list[str]:
    """Return the names of all inputs of several models, each once."""
    return list(dict.fromkeys(port.name for model in models for port in model.inputs))


def shapes_of(values: Mapping[str, Value], names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the named values that are arrays."""
    return {n: tuple(np.shape(values[n])) for n in names if isinstance(values.get(n), np.ndarray)}
