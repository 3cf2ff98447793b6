"""Local search over assignments: simulated annealing, and the removal of fragments.

Both move a node, a connected chunk of nodes, or exchange two nodes, and update the exact loads. A
move affects only the tensors of the moved node. Each tensor counts its heads on every device; a
send or receive starts or ends when a counter leaves or reaches zero. The effort is a number of
proposals, so a seed gives the same result on any machine.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

from hetero.planning.solver.problem import Assignment, Problem, allowed_devices, is_feasible

#: Start and end temperature, as fractions of the initial bottleneck.
START_TEMPERATURE, END_TEMPERATURE = 0.05, 0.0003
#: The energy is this norm of the loads: close to the maximum, but sensitive to every device.
LOAD_NORM = 30
#: Above this ratio to the initial bottleneck, the load itself is the energy: its power overflows.
MAX_LOAD_RATIO = 1e4
#: Fraction of proposals that exchange two nodes, for scarce memory. The others move one node or a
#: chunk, with equal probability.
SWAP_FRACTION = 0.02
#: Maximum number of nodes in a chunk.
MAX_CHUNK_NODES = 64
#: After this fraction of the time limit, a run that lags its steps by this fraction follows the
#: clock.
LAG_FRACTION = 0.25
#: Maximum number of passes of `remove_fragments`.
MAX_PASSES = 8
#: Minimum relative decrease of the sum of loads; anything smaller is rounding.
MIN_GAIN = 1e-9
#: Proposals between two updates of the temperature.
PROPOSALS_PER_ROUND = 256


class LoadState:
    """An assignment with its loads, updated incrementally; for problems without groups."""

    def __init__(self, problem: Problem, assignment: Sequence[int]) -> None:
        n, k = problem.times.shape
        self.device_of = list(assignment)
        self._times = problem.times.tolist()
        self.weights: list[float] = problem.weights.tolist()
        self._send = problem.send.tolist()
        self._receive = problem.receive.tolist()
        self._tails = problem.tails.tolist()
        self._heads = [len(hs) for hs in problem.heads]
        self._tensors_by_tail: list[list[int]] = [[] for _ in range(n)]
        self._tensors_by_head: list[list[int]] = [[] for _ in range(n)]
        mask = allowed_devices(problem)
        self.options = [[d for d in range(k) if mask[v, d]] for v in range(n)]
        self.allowed_sets = [frozenset(devices) for devices in self.options]
        neighbours: list[set[int]] = [set() for _ in range(n)]
        self._counts = []
        for tensor, (tail, heads) in enumerate(zip(self._tails, problem.heads, strict=True)):
            self._tensors_by_tail[tail].append(tensor)
            count = [0] * k
            for v in heads:
                self._tensors_by_head[v].append(tensor)
                count[self.device_of[v]] += 1
                neighbours[v].add(tail)
                neighbours[tail].add(v)
            self._counts.append(count)
        self.neighbours = [sorted(s) for s in neighbours]
        self.loads = [0.0] * k
        self.free_nbytes: list[float] = problem.memory.tolist()
        for v, d in enumerate(self.device_of):
            self.loads[d] += self._times[v][d]
            self.free_nbytes[d] -= self.weights[v]
        for tensor, tail in enumerate(self._tails):
            device = self.device_of[tail]
            if self._counts[tensor][device] < self._heads[tensor]:
                self.loads[device] += self._send[tensor][device]
            for d in range(k):
                if d != device and self._counts[tensor][d]:
                    self.loads[d] += self._receive[tensor][d]

    def move(self, node: int, target: int) -> None:
        """Move a node to a device, and update the loads."""
        source = self.device_of[node]
        if source == target:
            return
        loads = self.loads
        loads[source] -= self._times[node][source]
        loads[target] += self._times[node][target]
        weight = self.weights[node]
        self.free_nbytes[source] += weight
        self.free_nbytes[target] -= weight
        self.device_of[node] = target
        device_of, tails, totals = self.device_of, self._tails, self._heads
        for tensor in self._tensors_by_tail[node]:
            count, total = self._counts[tensor], totals[tensor]
            if count[source]:
                loads[source] += self._receive[tensor][source]
            if count[target]:
                loads[target] -= self._receive[tensor][target]
            if count[source] < total:
                loads[source] -= self._send[tensor][source]
            if count[target] < total:
                loads[target] += self._send[tensor][target]
        for tensor in self._tensors_by_head[node]:
            count, tail_device = self._counts[tensor], device_of[tails[tensor]]
            was_crossing = count[tail_device] < totals[tensor]
            count[source] -= 1
            count[target] += 1
            if source != tail_device and not count[source]:
                loads[source] -= self._receive[tensor][source]
            if target != tail_device and count[target] == 1:
                loads[target] += self._receive[tensor][target]
            if (count[tail_device] < totals[tensor]) != was_crossing:
                send_s = self._send[tensor][tail_device]
                loads[tail_device] += -send_s if was_crossing else send_s

    def connected_chunk(self, node: int, size: int, rng: random.Random) -> list[int]:
        """Return up to `size` connected nodes on the device of `node`, `node` first."""
        device = self.device_of[node]
        chunk = [node]
        seen = {node}
        for u in chunk:
            if len(chunk) >= size:
                break
            neighbours = self.neighbours[u]
            # A random start in the list varies the shapes of a node's chunks.
            shift = int(rng.random() * len(neighbours)) if neighbours else 0
            for w in neighbours[shift:] + neighbours[:shift]:
                if w not in seen and self.device_of[w] == device:
                    seen.add(w)
                    chunk.append(w)
        return chunk[:size]


def anneal(
    problem: Problem, start: Assignment, *, proposals: int, seed: int, deadline: float = math.inf
) -> tuple[Assignment, bool]:
    """Improve a feasible assignment by simulated annealing.

    `problem`: without colocation groups.
    `proposals`: number of moves to try.
    `deadline`: ``time.monotonic()`` at which the run ends early.
    Returns: the visited assignment with the smallest bottleneck, and whether the deadline passed.
    """
    rng = random.Random(seed)
    rand = rng.random
    state = LoadState(problem, start)
    # Local names, because attribute access is slow in the inner loop.
    move, device_of, loads, free_nbytes = (
        state.move,
        state.device_of,
        state.loads,
        state.free_nbytes,
    )
    options, allowed_sets, neighbours, weights = (
        state.options,
        state.allowed_sets,
        state.neighbours,
        state.weights,
    )
    finite_memory = bool((problem.memory < math.inf).any())
    movable = [node for node in range(problem.node_count) if len(options[node]) > 1]
    scale = best_value = max(loads)
    best = tuple(device_of)
    if not movable or scale <= 0.0:
        return best, False
    temperature = START_TEMPERATURE
    begin_s = time.monotonic()
    energy = 1.0
    cut_short = False
    num_movable = len(movable)
    for proposal in range(proposals):
        if proposal % PROPOSALS_PER_ROUND == 0:
            progress = proposal / proposals
            elapsed = (time.monotonic() - begin_s) / max(deadline - begin_s, 1e-9)
            # The proposals will not be done in time: cool by the clock from here on.
            lags = elapsed > LAG_FRACTION and progress < elapsed * (1 - LAG_FRACTION)
            cut_short = cut_short or lags
            if elapsed >= 1:
                cut_short = True
                break
            exponent = max(progress, elapsed) if cut_short else progress
            temperature = START_TEMPERATURE * (END_TEMPERATURE / START_TEMPERATURE) ** exponent
        node = movable[int(rand() * num_movable)]
        source = device_of[node]
        draw = rand()
        if draw < SWAP_FRACTION:
            u = movable[int(rand() * num_movable)]
            target = device_of[u]
            is_allowed = target in allowed_sets[node] and source in allowed_sets[u]
            if source == target or not is_allowed:
                continue
            nodes, swapped = [node], [u]
        else:
            if rand() < 0.8 and neighbours[node]:
                target = device_of[neighbours[node][int(rand() * len(neighbours[node]))]]
            else:
                target = options[node][int(rand() * len(options[node]))]
            if source == target or target not in allowed_sets[node]:
                continue
            nodes, swapped = [node], []
            if draw < (1.0 + SWAP_FRACTION) / 2:
                # The sizes are log-uniform.
                size = int(2.0 ** (1.0 + 5.0 * rand()))
                chunk = state.connected_chunk(node, min(size, MAX_CHUNK_NODES), rng)
                nodes = [u for u in chunk if target in allowed_sets[u]]
        if finite_memory:
            added_nbytes = sum(weights[u] for u in nodes) - sum(weights[u] for u in swapped)
            if added_nbytes > free_nbytes[target] or -added_nbytes > free_nbytes[source]:
                continue
        for u in nodes:
            move(u, target)
        for u in swapped:
            move(u, source)
        new_energy = _energy(loads, scale)
        if new_energy > energy and rand() >= math.exp((energy - new_energy) / temperature):
            for u in swapped:
                move(u, target)
            for u in reversed(nodes):
                move(u, source)
            continue
        energy = new_energy
        if max(loads) < best_value * (1 - 1e-9):
            best_value, best = max(loads), tuple(device_of)
    if not is_feasible(problem, best):
        raise AssertionError("annealing left the feasible set")
    return best, cut_short


def _energy(loads: list[float], scale: float) -> float:
    total = 0.0
    for load in loads:
        ratio = load / scale
        if ratio > MAX_LOAD_RATIO:
            return ratio
        # The contribution of smaller loads is below the precision of a float.
        if ratio > 0.3:
            total += ratio**LOAD_NORM
    return float(total ** (1.0 / LOAD_NORM))


def remove_fragments(problem: Problem, assignment: Assignment) -> Assignment:
    """Return an assignment with fewer fragments and no larger bottleneck or sum of loads.

    Annealing optimises the busiest devices and leaves fragments elsewhere: small pieces whose
    transfers cost more than they save. This function moves single nodes, then connected pieces, to
    a neighbouring device if the sum of loads decreases and the largest load does not increase.
    """
    state = LoadState(problem, assignment)
    for _ in range(MAX_PASSES):
        has_moved = False
        single_nodes = [[v] for v in range(problem.node_count)]
        for group in (single_nodes, _connected_parts(state)):
            for nodes in group:
                has_moved = _move_piece(state, nodes) or has_moved
        if not has_moved:
            break
    return tuple(state.device_of)


def _move_piece(state: LoadState, nodes: Sequence[int]) -> bool:
    """Move a piece to the neighbouring device with the smallest sum of loads, if it improves."""
    source = state.device_of[nodes[0]]
    if any(state.device_of[v] != source for v in nodes):
        # An earlier move of this pass split the piece.
        return False
    neighbour_devices = {state.device_of[w] for v in nodes for w in state.neighbours[v]} - {source}
    weight = sum(state.weights[v] for v in nodes)
    bottleneck, total = max(state.loads), sum(state.loads)
    best_total, target = total * (1 - MIN_GAIN), source
    for device in sorted(neighbour_devices):
        if state.free_nbytes[device] < weight or any(
            device not in state.allowed_sets[v] for v in nodes
        ):
            continue
        for v in nodes:
            state.move(v, device)
        if max(state.loads) <= bottleneck * (1 + 1e-12) and sum(state.loads) < best_total:
            best_total, target = sum(state.loads), device
        for v in reversed(nodes):
            state.move(v, source)
    if target == source:
        return False
    for v in nodes:
        state.move(v, target)
    return True


def _connected_parts(state: LoadState) -> list[list[int]]:
    """Return the connected sets of nodes on one device, in ascending order of size."""
    is_visited = [False] * len(state.device_of)
    pieces = []
    for v in range(len(is_visited)):
        if is_visited[v]:
            continue
        is_visited[v] = True
        piece = [v]
        for u in piece:
            for w in state.neighbours[u]:
                if not is_visited[w] and state.device_of[w] == state.device_of[v]:
                    is_visited[w] = True
                    piece.append(w)
        pieces.append(piece)
    pieces.sort(key=lambda p: (len(p), p[0]))
    return pieces
