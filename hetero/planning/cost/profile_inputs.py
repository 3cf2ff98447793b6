"""Parts of a model to profile on a device, and the inputs of the parts.

Parts run with the values that they receive in the whole model if these are available, because run
times depend on values (indices, masks, trip counts) as well as on shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from hetero.affinity.request_dependence import request_dependent_positions
from hetero.devices.errors import HeteroError
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Value
from hetero.measure.sample_inputs import sample_inputs
from hetero.partition.partition import partition
from hetero.planning.cost.timing import run_request, temporary_deployment
from hetero.scheduler.executor import Executor

#: Device name of the nodes that the profiled device does not support.
_ELSEWHERE: Final = "elsewhere"


def supported_parts(model: Model, supported: Iterable[str], device: str) -> list[Model]:
    """Return the largest possible parts of a model that a device supports.

    Parts that no request runs (computed weights) are omitted: devices fold them.
    """
    supported_names = set(supported)
    affinity = {n: device if n in supported_names else _ELSEWHERE for n in model.node_names}
    request_nodes = {model.nodes[p].name for p in request_dependent_positions(model)}
    return [
        s.model
        for s in partition(model, affinity).subgraphs
        if s.device == device and request_nodes.intersection(s.node_names)
    ]


def capture_inner_values(
    executor: Executor,
    model: Model,
    affinity: Mapping[str, str],
    configs: Mapping[str, Mapping[str, Any]],
    inputs: Mapping[str, Value],
    names: Iterable[str],
) -> dict[str, Value]:
    """Return inner values of a model, captured by running it once with them as outputs.

    Values of unknown type are omitted because they cannot be outputs. Returns nothing if the
    model fails to run.
    """
    capturable = dict.fromkeys(v for v in names if v in model.producers and model.spec(v).type)
    if not capturable:
        return {}
    outputs = [*dict.fromkeys(p.name for p in model.outputs), *capturable]
    model_with_outputs = model.extract(range(len(model.nodes)), list(dict.fromkeys(outputs)))
    try:
        with temporary_deployment(executor, model_with_outputs, affinity, configs) as deployment:
            ports = {port.name for port in deployment.plan.inputs}
            model_inputs = {name: value for name, value in inputs.items() if name in ports}
            outputs_by_name = run_request(deployment, model_inputs).outputs
    except HeteroError:
        return {}
    return {name: outputs_by_name[name] for name in capturable if name in outputs_by_name}


def part_inputs(model: Model, values: Mapping[str, Value]) -> dict[str, Value] | None:
    """Return an input for each port: the captured value, or a generated one.

    Returns None if a value cannot be generated.
    """
    missing = [port for port in model.inputs if port.name not in values]
    if not missing:
        return {port.name: values[port.name] for port in model.inputs}
    if any(port.shape is None for port in missing):
        return None
    try:
        return sample_inputs(model, values)
    except HeteroError:
        return None
