"""A block's bound forms: one for each of the latest input shapes and each request under way."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, Final, TypeVar

import numpy as np

from devices.cpu.block import Block
from devices.cpu.bound import BoundBlock
from devices.cpu.trace import Trace, is_plain, trace
from devices.plugin.program import RunContext, Value

#: Input shapes whose traces and bound blocks are kept, and the nodes in them all together.
_MOST_SHAPES: Final = 64
_MOST_TASKS: Final = 1 << 14

_Key = tuple[Any, ...]
_Kept = TypeVar("_Kept")


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
            _keep(self._bound, key, bound, most)
        return bound


class Bindings:
    """Runs a block: the first run of each input shapes is traced, later ones are bound."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._most = min(_MOST_SHAPES, max(1, _MOST_TASKS // max(1, len(block.tasks))))
        self._traces: dict[_Key, Trace] = {}
        self._lock = Lock()
        self._idle: list[_Arena] = []

    def run(self, inputs: Sequence[Value], context: RunContext) -> list[Value]:
        """Compute the outputs, as `Block.run` does."""
        if not all(map(is_plain, inputs)):
            return self._block.run(inputs, context, profile=context.profile)
        key = tuple([(x.shape, x.dtype) for x in inputs])
        found = self._traces.get(key)
        if found is None:
            outputs, found = trace(self._block, inputs, context)
            with self._lock:
                _keep(self._traces, key, found, self._most)
            return outputs
        try:
            arena = self._idle.pop()
        except IndexError:
            arena = _Arena()
        try:
            return arena.bound(key, self._block, found, self._most).run(inputs, context)
        finally:
            self._idle.append(arena)


def _keep(kept: dict[_Key, _Kept], key: _Key, value: _Kept, most: int) -> None:
    """Put a value into a dictionary, from which the oldest goes where it is full."""
    while len(kept) >= most:
        kept.pop(next(iter(kept), key), None)
    kept[key] = value
