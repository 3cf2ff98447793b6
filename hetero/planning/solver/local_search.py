"""Simulated annealing on the exact loads, by moves of a node, a connected chunk, or two nodes; and
undoing fragments: moves that spare transfers and do not raise the bottleneck.

A move of node v touches only the tensors at v: each keeps how many of its heads every device
holds, so that a send or a receive appears or disappears by a counter that reaches or leaves zero.
Effort is a number of proposals, never a time, so that a seed gives one answer on any machine.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

from hetero.planning.solver.problem import Assignment, Problem, allowed, is_feasible

#: Share of the start's bottleneck that the temperature starts and ends at.
HOT, COLD = 0.05, 0.0003
#: Order of the norm of the loads that is the energy: near the maximum, yet it feels every device.
NORM = 30
#: Times the start's bottleneck from which on one load is all that counts; its power overflows.
HUGE = 1e4
#: Share of proposals that exchange two nodes, as a node may only fit where another leaves; the rest
#: are one node or a chunk, equally often.
SWAP = 0.02
#: Largest connected chunk that moves at once.
CHUNK = 64
#: Share of the time after which a run that is by as much behind its steps goes by the clock.
BEHIND = 0.25
#: Passes of undoing fragments over all nodes and pieces at most.
PASSES = 8
#: A sum of loads must fall by this share to count; less is rounding.
LEAST_GAIN = 1e-9
#: Proposals between two looks at the clock and two coolings.
ROUND = 256


class State:
    """An assignment of a problem without groups; its loads are kept up to date move by move."""

    def __init__(self, problem: Problem, assignment: Sequence[int]) -> None:
        n, k = problem.times.shape
        self.where = list(assignment)
        self._times = problem.times.tolist()
        self.weights: list[float] = problem.weights.tolist()
        self._send = problem.send.tolist()
        self._receive = problem.receive.tolist()
        self._tails = problem.tails.tolist()
        self._heads = [len(hs) for hs in problem.heads]
        self._at_tail: list[list[int]] = [[] for _ in range(n)]
        self._at_head: list[list[int]] = [[] for _ in range(n)]
        mask = allowed(problem)
        self.options = [[d for d in range(k) if mask[v, d]] for v in range(n)]
        self.allowed = [frozenset(devices) for devices in self.options]
        near: list[set[int]] = [set() for _ in range(n)]
        self._counts = []
        for h, (tail, heads) in enumerate(zip(self._tails, problem.heads, strict=True)):
            self._at_tail[tail].append(h)
            count = [0] * k
            for v in heads:
                self._at_head[v].append(h)
                count[self.where[v]] += 1
                near[v].add(tail)
                near[tail].add(v)
            self._counts.append(count)
        self.near = [sorted(s) for s in near]
        self.loads = [0.0] * k
        self.free: list[float] = problem.memory.tolist()
        for v, d in enumerate(self.where):
            self.loads[d] += self._times[v][d]
            self.free[d] -= self.weights[v]
        for h, tail in enumerate(self._tails):
            on = self.where[tail]
            if self._counts[h][on] < self._heads[h]:
                self.loads[on] += self._send[h][on]
            for d in range(k):
                if d != on and self._counts[h][d]:
                    self.loads[d] += self._receive[h][d]

    def move(self, v: int, b: int) -> None:
        """Put node ``v`` on device ``b`` and update what that changes."""
        a = self.where[v]
        if a == b:
            return
        loads = self.loads
        loads[a] -= self._times[v][a]
        loads[b] += self._times[v][b]
        weight = self.weights[v]
        self.free[a] += weight
        self.free[b] -= weight
        self.where[v] = b
        where, tails, totals = self.where, self._tails, self._heads
        for h in self._at_tail[v]:
            count, total = self._counts[h], totals[h]
            if count[a]:
                loads[a] += self._receive[h][a]
            if count[b]:
                loads[b] -= self._receive[h][b]
            if count[a] < total:
                loads[a] -= self._send[h][a]
            if count[b] < total:
                loads[b] += self._send[h][b]
        for h in self._at_head[v]:
            count, on = self._counts[h], where[tails[h]]
            before = count[on] < totals[h]
            count[a] -= 1
            count[b] += 1
            if a != on and not count[a]:
                loads[a] -= self._receive[h][a]
            if b != on and count[b] == 1:
                loads[b] += self._receive[h][b]
            if (count[on] < totals[h]) != before:
                loads[on] += -self._send[h][on] if before else self._send[h][on]

    def chunk(self, v: int, size: int, rng: random.Random) -> list[int]:
        """Up to ``size`` nodes connected to ``v`` on its device, ``v`` first."""
        device = self.where[v]
        found = [v]
        seen = {v}
        for u in found:
            if len(found) >= size:
                break
            near = self.near[u]
            # Starting anywhere in the list makes chunks of other shapes from the same node.
            shift = int(rng.random() * len(near)) if near else 0
            for w in near[shift:] + near[:shift]:
                if w not in seen and self.where[w] == device:
                    seen.add(w)
                    found.append(w)
        return found[:size]


def anneal(
    problem: Problem, start: Assignment, *, proposals: int, seed: int, deadline: float = math.inf
) -> tuple[Assignment, bool]:
    """Improve a feasible assignment of a problem without groups by simulated annealing.

    `proposals`: moves to try.
    `deadline`: ``time.monotonic()`` at which the run stops early.
    Returns: the assignment of the least bottleneck seen, and whether the deadline came first.
    """
    rng = random.Random(seed)
    draw = rng.random
    state = State(problem, start)
    where, loads, options, near = state.where, state.loads, state.options, state.near
    free, move, weights, allowed_sets = state.free, state.move, state.weights, state.allowed
    finite_memory = bool((problem.memory < math.inf).any())
    movable = [v for v in range(problem.node_count) if len(options[v]) > 1]
    scale = best_value = max(loads)
    best = tuple(where)
    if not movable or scale <= 0.0:
        return best, False
    temperature = HOT
    begin_s = time.monotonic()
    energy = 1.0
    cut_short = False
    many = len(movable)
    for proposal in range(proposals):
        if proposal % ROUND == 0:
            done = proposal / proposals
            passed = (time.monotonic() - begin_s) / max(deadline - begin_s, 1e-9)
            # Steps that will not be over in time: it cools by the clock from here on.
            cut_short = cut_short or (passed > BEHIND and done < passed * (1 - BEHIND))
            if passed >= 1:
                cut_short = True
                break
            temperature = HOT * (COLD / HOT) ** (max(done, passed) if cut_short else done)
        v = movable[int(draw() * many)]
        a = where[v]
        kind = draw()
        if kind < SWAP:
            u = movable[int(draw() * many)]
            b = where[u]
            if a == b or b not in allowed_sets[v] or a not in allowed_sets[u]:
                continue
            nodes, back = [v], [u]
        else:
            if draw() < 0.8 and near[v]:
                b = where[near[v][int(draw() * len(near[v]))]]
            else:
                b = options[v][int(draw() * len(options[v]))]
            if a == b or b not in allowed_sets[v]:
                continue
            nodes, back = [v], []
            if kind < (1.0 + SWAP) / 2:
                # Sizes spread evenly over their logarithm: 2 is as likely as 32.
                size = int(2.0 ** (1.0 + 5.0 * draw()))
                nodes = [u for u in state.chunk(v, min(size, CHUNK), rng) if b in allowed_sets[u]]
        if finite_memory:
            grown = sum(weights[u] for u in nodes) - sum(weights[u] for u in back)
            if grown > free[b] or -grown > free[a]:
                continue
        for u in nodes:
            move(u, b)
        for u in back:
            move(u, a)
        after = _energy(loads, scale)
        if after > energy and draw() >= math.exp((energy - after) / temperature):
            for u in back:
                move(u, b)
            for u in reversed(nodes):
                move(u, a)
            continue
        energy = after
        if max(loads) < best_value * (1 - 1e-9):
            best_value, best = max(loads), tuple(where)
    if not is_feasible(problem, best):
        raise AssertionError("annealing left the feasible set")
    return best, cut_short


def _energy(loads: list[float], scale: float) -> float:
    total = 0.0
    for load in loads:
        ratio = load / scale
        if ratio > HUGE:
            return ratio
        # Below this share of the start a load adds nothing that a float keeps.
        if ratio > 0.3:
            total += ratio**NORM
    return float(total ** (1.0 / NORM))


def tidy(problem: Problem, assignment: Assignment) -> Assignment:
    """An assignment with no larger bottleneck, no larger sum of loads, and fewer fragments.

    Annealing looks at the busiest devices; elsewhere it leaves small pieces whose transfers cost
    more than they gain. Here single nodes, then whole subgraphs, go to a neighbouring device
    wherever the sum of all loads falls and the largest load does not rise.
    """
    state = State(problem, assignment)
    for _ in range(PASSES):
        moved = False
        pieces = [[v] for v in range(problem.node_count)]
        for group in (pieces, _pieces(state)):
            for nodes in group:
                moved = _settle(state, nodes) or moved
        if not moved:
            break
    return tuple(state.where)


def _settle(state: State, nodes: Sequence[int]) -> bool:
    """Move one piece to the neighbouring device that lowers the sum of loads most."""
    a = state.where[nodes[0]]
    if any(state.where[v] != a for v in nodes):
        # An earlier move of this pass took part of the piece away.
        return False
    around = {state.where[w] for v in nodes for w in state.near[v]} - {a}
    weight = sum(state.weights[v] for v in nodes)
    top, total = max(state.loads), sum(state.loads)
    best, target = total * (1 - LEAST_GAIN), a
    for b in sorted(around):
        if state.free[b] < weight or any(b not in state.allowed[v] for v in nodes):
            continue
        for v in nodes:
            state.move(v, b)
        if max(state.loads) <= top * (1 + 1e-12) and sum(state.loads) < best:
            best, target = sum(state.loads), b
        for v in reversed(nodes):
            state.move(v, a)
    if target == a:
        return False
    for v in nodes:
        state.move(v, target)
    return True


def _pieces(state: State) -> list[list[int]]:
    """Connected sets of nodes on one device, largest first left out: moving it is another plan."""
    seen = [False] * len(state.where)
    pieces = []
    for v in range(len(seen)):
        if seen[v]:
            continue
        seen[v] = True
        piece = [v]
        for u in piece:
            for w in state.near[u]:
                if not seen[w] and state.where[w] == state.where[v]:
                    seen[w] = True
                    piece.append(w)
        pieces.append(piece)
    pieces.sort(key=lambda p: (len(p), p[0]))
    return pieces
