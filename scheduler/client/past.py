"""What states were made by: the runs and joins before, of which they can be made again. Pure.

A run that keeps its states has its inputs copied here, and its devices keep what they sent to each
other. So the stages of a device that is lost can run again, alone and in order, on what they had:
the same runs of the same shapes give the same bits, however an element type rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import numpy as np

from hetero.devices.errors import TensorLostError
from hetero.devices.plugin.program import Value, nbytes_of
from hetero.devices.plugin.remote_memory import ResidentTensor
from hetero.devices.request.batch_rows import RowLayout
from hetero.devices.request.response import StageTiming
from hetero.scheduler.client.kept import DeviceBundle, Past
from hetero.scheduler.vocabulary.placement import Route
from hetero.scheduler.vocabulary.plan import Plan

#: Bytes that a request's past may have, here and on devices, before it is forgotten: what 2,000
#: tokens' values of width 4,096 take over two cuts; their caches are far larger.
MOST_NBYTES: Final = 2**26
#: What is kept of a run beside its tensors takes about so much.
_RUN_NBYTES: Final = 2**11
#: Seconds that a run which is made again takes beside its stage's own: messages there and back.
_TURN_S: Final = 0.0005


class Origin(NamedTuple):
    """What made a state, and the state's name there."""

    past: Past
    name: str


class PastRun(Past):
    """A run of a request: what it was given and what its devices sent to each other, by name.

    `route`, `runs`: which way it took, and how its stages went.
    """

    __slots__ = ("inputs", "route", "runs", "sent")

    def __init__(
        self,
        inputs: Mapping[str, Value | Origin],
        sent: dict[str, ResidentTensor[DeviceBundle]],
        sent_nbytes: int,
        route: Route,
        runs: Sequence[StageTiming],
        restore: Callable[[Sequence[DeviceBundle]], None],
    ) -> None:
        before = [value.past for value in inputs.values() if isinstance(value, Origin)]
        own = nbytes_of([v for v in inputs.values() if not isinstance(v, Origin)])
        super().__init__(before, _RUN_NBYTES + own + sent_nbytes, restore)
        self.inputs: Final = inputs
        self.sent: Final = sent
        self.route: Final = route
        self.runs: Final = runs

    def took_s(self, plan: Plan, stages: Collection[int]) -> float:
        """Return how long stages of a plan ran; all stages, where it is cut otherwise."""
        own = zip(self.route.plan.stages, self.route.stages, strict=True)
        place_of = {stage.node_names: place for stage, place in own}
        places = {place_of.get(plan.stages[stage].node_names) for stage in stages}
        return sum(run.run_s for run in self.runs if None in places or run.stage in places)


class PastJoin(Past):
    """States made of rows of others: of each, rows of what, and how they lie."""

    __slots__ = ("parts",)

    def __init__(
        self, parts: Mapping[str, tuple[Sequence[tuple[Origin, Sequence[int]]], RowLayout]]
    ) -> None:
        before = [origin.past for rows, _ in parts.values() for origin, _ in rows]
        super().__init__(before, _RUN_NBYTES, before[0].restore)
        self.parts: Final = parts

    @classmethod
    def of(
        cls,
        parts: Mapping[
            str, tuple[list[tuple[ResidentTensor[DeviceBundle], Sequence[int]]], RowLayout]
        ],
    ) -> PastJoin | None:
        """Return the join of states, None if one of them cannot be made again."""
        known = {
            name: (
                [
                    (Origin(kept.bundle.past, kept.name), which)
                    for kept, which in rows
                    if kept.bundle.past is not None
                ],
                layout,
            )
            for name, (rows, layout) in parts.items()
        }
        is_whole = all(len(rows) == len(parts[name][0]) for name, (rows, _) in known.items())
        return cls(known) if known and is_whole else None


class Step(NamedTuple):
    """A run or a join that is made again: which values of it are wanted, by which stages.

    `stages`: of the plan's, in order; none for a join.
    """

    past: Past
    names: frozenset[str]
    stages: tuple[int, ...] = ()


def copied(value: Value) -> Value:
    """Return a value whose arrays are read-only copies."""
    if isinstance(value, np.ndarray):
        made = value.copy(order="K")
        made.flags.writeable = False
        return made
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list | tuple) else value


def past_nbytes(inputs: Mapping[str, Value]) -> int | None:
    """Return how much is kept for the states among inputs; None if one cannot be made again."""
    pasts: set[Past] = set()
    pending_nbytes = 0
    for value in inputs.values():
        if type(value) is ResidentTensor:
            bundle: DeviceBundle = value.bundle
            if bundle.past is not None:
                pasts.add(bundle.past)
            elif bundle.past_nbytes is not None:
                pending_nbytes = max(pending_nbytes, bundle.past_nbytes)
            else:
                return None
    return pending_nbytes + sum(past.nbytes for past in pasts)


def steps(
    lost: Collection[DeviceBundle],
    plan: Plan,
    is_given: Callable[[int, str], bool],
    is_lost: Callable[[str], bool],
    most_s: float,
) -> tuple[list[Step], Counter[Origin]]:
    """Return what has to be made again, in order, for states that are lost; and what uses what.

    `plan`: whose stages run; `is_given` says of one's inputs whether it was loaded with it.
    `is_lost`: whether nothing is heard of an address.
    `most_s`: seconds that the runs may take.
    Raises TensorLostError: it cannot be done, or not in that time.
    """
    wanted: dict[Past, set[str]] = {}
    uses: Counter[Origin] = Counter()
    due: list[tuple[int, Past]] = []

    def want(origin: Origin) -> None:
        uses[origin] += 1
        if origin.past not in wanted:
            wanted[origin.past] = set()
            heappush(due, (-origin.past.number, origin.past))
        wanted[origin.past].add(origin.name)

    for bundle in lost:
        if bundle.past is None:
            raise _gone(bundle.device, "its past was not kept")
        for name in bundle.specs:
            want(Origin(bundle.past, name))
    heapify(due)
    found: list[Step] = []
    took_s = 0.0
    while due:
        _, past = heappop(due)
        names = frozenset(wanted[past])
        if isinstance(past, PastJoin):
            for name in names:
                for origin, _ in past.parts[name][0]:
                    want(origin)
            found.append(Step(past, names))
            continue
        assert isinstance(past, PastRun)
        stages: set[int] = set()
        read: set[Origin] = set()
        left = list(names)
        while left:
            name = left.pop()
            if (value := past.inputs.get(name)) is not None:
                if isinstance(value, Origin):
                    read.add(value)
            elif name not in past.sent or is_lost(past.sent[name].bundle.address):
                stage = plan.producers.get(name)
                if stage is None:
                    raise _gone("", f"{name!r} is not made any more")
                if stage not in stages:
                    stages.add(stage)
                    left += [n for n in plan.stages[stage].inputs if not is_given(stage, n)]
        took_s += len(stages) * _TURN_S + past.took_s(plan, stages)
        for origin in read:
            want(origin)
        found.append(Step(past, names, tuple(sorted(stages))))
        if took_s > most_s:
            raise _gone("", f"its runs would take {took_s:.3f} s again, of {most_s:.3f} s")
    return found[::-1], uses


def _gone(device: str, why: str) -> TensorLostError:
    return TensorLostError(
        f"states were lost with their device, and cannot be had back: {why}. Begin anew with "
        "reset_state().",
        port="",
        device=device,
    )
