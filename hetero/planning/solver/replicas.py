"""Replicas: copies of one plan on several devices, which share the requests.

A replica runs the same subgraphs as the plan, each on a device of its own. There are two kinds of
candidates: the whole model on each of several devices, fast or slow, and copies of a cut on
devices of the same class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hetero.planning.solver.problem import Assignment, Problem, device_seconds, is_feasible


@dataclass(frozen=True, slots=True, order=True)
class Replica:
    """The devices of one replica of a plan, with its share of the requests."""

    assignment: Assignment
    share: float = 1.0


#: A plan: one replica, or several that share the requests. All have the same subgraphs.
Replicas = tuple[Replica, ...]


def whole_model_replicas(problem: Problem) -> Iterator[Replicas]:
    """Yield replicas of the whole model on the fastest two devices, the fastest three, and so on.

    Each device gets requests in proportion to its speed, so all are equally busy.
    """
    n, k = problem.times.shape
    seconds = {(d,) * n: float(device_seconds(problem, (d,) * n).max()) for d in range(k)}
    fastest = sorted(
        (p for p in seconds if seconds[p] > 0 and is_feasible(problem, p)), key=seconds.__getitem__
    )
    for count in range(2, len(fastest) + 1):
        rates = [1 / seconds[plan] for plan in fastest[:count]]
        yield tuple(
            Replica(plan, rate / sum(rates)) for plan, rate in zip(fastest, rates, strict=False)
        )


def replicate_cuts(problem: Problem, plans: Sequence[Assignment]) -> Iterator[Replicas]:
    """Yield each plan that uses several devices, copied to the other devices of their classes.

    Devices of one class have equal costs and memory, so the copies have equal shares.
    """
    members: dict[int, list[int]] = {}
    for device, class_number in enumerate(problem.classes):
        members.setdefault(class_number, []).append(device)
    for plan in plans:
        used: dict[int, list[int]] = {}
        for device in sorted(set(plan)):
            used.setdefault(problem.classes[device], []).append(device)
        count = min(len(members[c]) // len(devices) for c, devices in used.items())
        if count < 2 or len(set(plan)) == 1:
            continue
        replicas = []
        for copy in range(count):
            device_of = {
                device: members[c][copy * len(devices) + position]
                for c, devices in used.items()
                for position, device in enumerate(devices)
            }
            replicas.append(Replica(tuple(device_of[d] for d in plan), 1 / count))
        yield tuple(replicas)
