"""A block's bound forms: one for each of the latest input shapes and each request under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any, Final

import numpy as np

from hetero.devices.interpreter.block import Block
from hetero.devices.interpreter.bound import BoundBlock
from hetero.devices.interpreter.trace import Trace, is_plain, trace
from hetero.devices.plugin.program import RunContext, Value

#: Input shapes whose traces and bound blocks are kept, and the nodes in them all together.
_MOST_SHAPES: Final = 64
_MOST_TASKS: Final = 1 << 14
#: Requests, for each kept shape, without which none of them goes for a new one: tracing is dear.
_PATIENCE: Final = 16

_Key = tuple[Any, ...]


class _Arena:
    """The memory of one request at a time, and what is bound to it, by input shapes."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._bound: dict[_Key, BoundBlock] = {}

    def bound(self, key: _Key, block: Block, found: Trace, most: int) -> BoundBlock:
        """Return the block bound to this memory, which grows where it is too small."""
        bound = self._bound.get(key)
        if bound is None:
            if found.nbytes > self._memory.size:
                self._bound.clear()
                self._memory = np.empty(found.nbytes, np.uint8)
            bound = BoundBlock(block, found, self._memory)
            while len(self._bound) >= most:
                del self._bound[next(iter(self._bound))]
            self._bound[key] = bound
        return bound


@dataclass(slots=True)
class _Shapes:
    """Input shapes that are kept: their trace, and which request asked for them last."""

    trace: Trace
    asked: int


class BoundCache:
    """Runs a block: the first run of each input shapes is traced, later ones are bound.

    Once as many shapes are kept as may be, a new one takes the place of the one that was not asked
    for the longest, if that was long ago; otherwise its runs are neither traced nor bound.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self._most = min(_MOST_SHAPES, max(1, _MOST_TASKS // max(1, len(block.tasks))))
        self._shapes: dict[_Key, _Shapes] = {}
        self._requests = count()
        self._lock = Lock()
        self._idle: list[_Arena] = []

    def run(self, inputs: Sequence[Value], context: RunContext) -> list[Value]:
        """Compute the outputs, as `Block.run` does."""
        if not all(map(is_plain, inputs)):
            return self._block.run(inputs, context, profile=context.profile)
        key = tuple([(x.shape, x.dtype) for x in inputs])
        now = next(self._requests)
        found = self._shapes.get(key)
        if found is None:
            if not self._has_room(now):
                return self._block.run(inputs, context, profile=context.profile)
            outputs, traced = trace(self._block, inputs, context)
            with self._lock:
                if len(self._shapes) >= self._most:
                    del self._shapes[self._least_asked()]
                self._shapes[key] = _Shapes(traced, now)
            return outputs
        found.asked = now
        try:
            arena = self._idle.pop()
        except IndexError:
            arena = _Arena()
        try:
            return arena.bound(key, self._block, found.trace, self._most).run(inputs, context)
        finally:
            self._idle.append(arena)

    def _has_room(self, now: int) -> bool:
        """Tell whether new shapes may be kept."""
        with self._lock:
            if len(self._shapes) < self._most:
                return True
            return now - self._shapes[self._least_asked()].asked > _PATIENCE * self._most

    def _least_asked(self) -> _Key:
        """Return the kept shapes that were not asked for the longest; the lock is held."""
        return min(self._shapes, key=lambda key: self._shapes[key].asked)
