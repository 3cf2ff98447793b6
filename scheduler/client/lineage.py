"""Lineage of states: the runs and joins that produced them, for recomputation. No I/O.

A run that produces states has its inputs copied here, and its devices retain the tensors that they
sent to each other. If a device is lost, its stages run again, alone and in order, on the same
inputs. The same runs with the same shapes give the same bits, whatever the element type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

import numpy as np

from hetero.devices.errors import TensorLostError
from hetero.devices.plugin.program import Value, nbytes_of
from hetero.devices.plugin.remote_memory import ResidentTensor
from hetero.devices.request.batch_rows import RowLayout
from hetero.devices.request.response import StageTiming
from hetero.scheduler.client.device_tensors import DeviceBundle, LineageNode
from hetero.scheduler.types.placement import Route
from hetero.scheduler.types.plan import Plan

#: Maximum size of a request's lineage in bytes, on the client and on devices; a larger lineage is
#: dropped. It holds 2,000 tokens of width 4,096 over two cuts; KV caches are far larger.
MOST_NBYTES: Final = 2**26
#: Approximate bytes that the record of a run takes, without its tensors.
_RUN_NBYTES: Final = 2**11
#: Overhead of a recomputed run in seconds: the messages to the device and back.
_TURN_S: Final = 0.0005


class Origin(NamedTuple):
    """Reference to a state: the lineage node that produced it, and its name there."""

    lineage: LineageNode
    name: str


class RunNode(LineageNode):
    """Lineage node of a request's run.

    `inputs`: the inputs by name; states refer to their own lineage.
    `transfers`: the tensors that devices sent to each other, by name.
    `route`, `runs`: the route of the run, and the timings of its stages.
    """

    __slots__ = ("inputs", "route", "runs", "transfers")

    def __init__(
        self,
        inputs: Mapping[str, Value | Origin],
        transfers: dict[str, ResidentTensor[DeviceBundle]],
        transfer_nbytes: int,
        route: Route,
        runs: Sequence[StageTiming],
        restore: Callable[[Sequence[DeviceBundle]], None],
    ) -> None:
        parents = [value.lineage for value in inputs.values() if isinstance(value, Origin)]
        own_nbytes = nbytes_of([v for v in inputs.values() if not isinstance(v, Origin)])
        super().__init__(parents, _RUN_NBYTES + own_nbytes + transfer_nbytes, restore)
        self.inputs: Final = inputs
        self.transfers: Final = transfers
        self.route: Final = route
        self.runs: Final = runs

    def took_s(self, plan: Plan, stages: Collection[int]) -> float:
        """Return the run time of stages; of all stages if the plan is cut differently."""
        numbered_stages = zip(self.route.plan.stages, self.route.stages, strict=True)
        number_of = {stage.node_names: place for stage, place in numbered_stages}
        numbers = {number_of.get(plan.stages[stage].node_names) for stage in stages}
        return sum(run.run_s for run in self.runs if None in numbers or run.stage in numbers)


class JoinNode(LineageNode):
    """Lineage node of a join: by state, the rows of other states that form it, and their layout."""

    __slots__ = ("parts",)

    def __init__(
        self, parts: Mapping[str, tuple[Sequence[tuple[Origin, Sequence[int]]], RowLayout]]
    ) -> None:
        parents = [origin.lineage for rows, _ in parts.values() for origin, _ in rows]
        super().__init__(parents, _RUN_NBYTES, parents[0].restore)
        self.parts: Final = parts

    @classmethod
    def of(
        cls,
        parts: Mapping[
            str, tuple[list[tuple[ResidentTensor[DeviceBundle], Sequence[int]]], RowLayout]
        ],
    ) -> JoinNode | None:
        """Return the lineage node of a join; None if one state cannot be recomputed."""
        origins = {
            name: (
                [
                    (Origin(tensor.bundle.lineage, tensor.name), indices)
                    for tensor, indices in rows
                    if tensor.bundle.lineage is not None
                ],
                layout,
            )
            for name, (rows, layout) in parts.items()
        }
        is_whole = all(len(rows) == len(parts[name][0]) for name, (rows, _) in origins.items())
        return cls(origins) if origins and is_whole else None


class Step(NamedTuple):
    """Recomputation step: a run or a join to repeat.

    `names`: the values that the step has to produce.
    `stages`: the plan's stages to run, in order; none for a join.
    """

    lineage: LineageNode
    names: frozenset[str]
    stages: tuple[int, ...] = ()


def copy_value(value: Value) -> Value:
    """Return a value whose arrays are read-only copies."""
    if isinstance(value, np.ndarray):
        copy = value.copy(order="K")
        copy.flags.writeable = False
        return copy
    if isinstance(value, Mapping):
        return {key: copy_value(item) for key, item in value.items()}
    return [copy_value(item) for item in value] if isinstance(value, list | tuple) else value


def lineage_nbytes(inputs: Mapping[str, Value]) -> int | None:
    """Return the size of the lineage of input states; None if one cannot be recomputed."""
    nodes: set[LineageNode] = set()
    pending_nbytes = 0
    for value in inputs.values():
        if type(value) is ResidentTensor:
            bundle: DeviceBundle = value.bundle
            if bundle.lineage is not None:
                nodes.add(bundle.lineage)
            elif bundle.lineage_nbytes is not None:
                pending_nbytes = max(pending_nbytes, bundle.lineage_nbytes)
            else:
                return None
    return pending_nbytes + sum(node.nbytes for node in nodes)


def steps(
    lost_bundles: Collection[DeviceBundle],
    plan: Plan,
    is_given: Callable[[int, str], bool],
    is_lost: Callable[[str], bool],
    most_s: float,
) -> tuple[list[Step], Counter[Origin]]:
    """Return the steps that recompute lost states, in order, and the number of uses of each state.

    `plan`: the plan whose stages run.
    `is_given`: whether an input of a stage is a constant that was loaded with the stage.
    `is_lost`: whether the process at an address is unreachable.
    `most_s`: maximum run time of all steps in seconds.
    Raises TensorLostError: recomputation is impossible or exceeds `most_s`.
    """
    required_names: dict[LineageNode, set[str]] = {}
    uses: Counter[Origin] = Counter()
    queue: list[tuple[int, LineageNode]] = []

    def require(origin: Origin) -> None:
        uses[origin] += 1
        if origin.lineage not in required_names:
            required_names[origin.lineage] = set()
            heappush(queue, (-origin.lineage.number, origin.lineage))
        required_names[origin.lineage].add(origin.name)

    for bundle in lost_bundles:
        if bundle.lineage is None:
            raise _recompute_error(bundle.device, "they have no lineage")
        for name in bundle.specs:
            require(Origin(bundle.lineage, name))
    replay_steps: list[Step] = []
    duration_s = 0.0
    while queue:
        _, node = heappop(queue)
        names = frozenset(required_names[node])
        if isinstance(node, JoinNode):
            for name in names:
                for origin, _ in node.parts[name][0]:
                    require(origin)
            replay_steps.append(Step(node, names))
            continue
        assert isinstance(node, RunNode)
        stages: set[int] = set()
        input_origins: set[Origin] = set()
        pending_names = list(names)
        while pending_names:
            name = pending_names.pop()
            if (value := node.inputs.get(name)) is not None:
                if isinstance(value, Origin):
                    input_origins.add(value)
            # States are computed, even if a device still has what it sent: it may evict that.
            elif (
                name in names
                or name not in node.transfers
                or is_lost(node.transfers[name].bundle.address)
            ):
                stage = plan.producers.get(name)
                if stage is None:
                    raise _recompute_error("", f"no stage of the current plan produces {name!r}")
                if stage not in stages:
                    stages.add(stage)
                    pending_names += [
                        n for n in plan.stages[stage].inputs if not is_given(stage, n)
                    ]
        duration_s += len(stages) * _TURN_S + node.took_s(plan, stages)
        for origin in input_origins:
            require(origin)
        replay_steps.append(Step(node, names, tuple(sorted(stages))))
        if duration_s > most_s:
            raise _recompute_error(
                "", f"their runs take {duration_s:.3f} s, more than the limit of {most_s:.3f} s"
            )
    return replay_steps[::-1], uses


def _recompute_error(device: str, why: str) -> TensorLostError:
    return TensorLostError(
        f"states were lost with their device and cannot be recomputed: {why}. Call "
        "reset_state() and start again.",
        port="",
        device=device,
    )
