"""What to measure of a model: the parts that a device supports, and the values to feed them.

Parts are run with the values that they get in the whole model where they are available, since times
depend on values (indices, masks, trip counts) as well as on shapes.
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
from hetero.planning.cost.timing import deployed, run
from hetero.scheduler.executor import Executor

#: Stands for every device but the one that is looked at.
_ELSEWHERE: Final = "elsewhere"


def regions(model: Model, supported: Iterable[str], device: str) -> list[Model]:
    """Return the parts of a model that a device can run, as large as they can be.

    Parts that no request runs (weights made by nodes) are left out: devices fold them.
    """
    mine = set(supported)
    affinity = {n: device if n in mine else _ELSEWHERE for n in model.node_names}
    alive = {model.nodes[p].name for p in request_dependent_positions(model)}
    return [
        s.model
        for s in partition(model, affinity).subgraphs
        if s.device == device and alive.intersection(s.node_names)
    ]


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
    missing = [port for port in model.inputs if port.name not in values]
    if not missing:
        return {port.name: values[port.name] for port in model.inputs}
    if any(port.shape is None for port in missing):
        return None
    try:
        return sample_inputs(model, values)
    except HeteroError:
        return None
