"""Caches of attention that a session lengthens where they are, instead of copying them each run.

``com.microsoft.GroupQueryAttention`` writes what is new behind what there is where its cache and
the next one are the same memory, longer than what counts in it:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnxruntime

from devices.model.model import Model
from devices.plugin.program import Value
from devices.plugin.remote import RemoteTensor

#: Memory is as long as whole blocks of so many positions.
_BLOCK: Final = 256
#: Of [batch, heads, length, size].
_LENGTH: Final = 2
_NUMBERS: Final = itertools.count()


class _Room:
    """Memory of a cache with room behind it; `length` positions of it are somebody's."""

    def __init__(self, cache: np.ndarray, length: int) -> None:
        batch, heads, past, size = cache.shape
        blocks = -(-length // _BLOCK)
        self.array = np.zeros((batch, heads, blocks * _BLOCK, size), cache.dtype)
        self.array[:, :, :past] = cache
        self.length = past
        self.number = next(_NUMBERS)
        #: The session that last lengthened it with others, their numbers, and what binds them.
        self.bound: tuple[Any, tuple[int, ...], onnxruntime.IOBinding] | None = None


class CacheTensor(RemoteTensor):
    """The first `length` positions of a cache's memory."""

    nbytes = 0  # not a property, as it is asked for often

    def __init__(self, room: _Room, length: int) -> None:
        batch, heads, _, size = room.array.shape
        self.device = "ORT"
        self.shape = (batch, heads, length, size)
        self.dtype = room.array.dtype
        self.room: Final = room
        #: With the room behind it.
        self.nbytes = room.array.nbytes

    def to_host(self) -> np.ndarray:
        """Return a copy."""
        return self.room.array[:, :, : self.shape[_LENGTH]].copy()

    def copy_from(self, array: np.ndarray) -> None:
        """Take over the contents of an array of the same shape and type."""
        self.room.array[:, :, : self.shape[_LENGTH]] = array


class Caches:
    """The caches that a session may lengthen in place.

    `pairs`: input -> output that is its next value.
    `count`: an input, and its axis that is as long as what is new.
    """

    def __init__(self, pairs: Mapping[str, str], count: tuple[str, int]) -> None:
        self.pairs = dict(pairs)
        self.count = count
        self._lock = threading.Lock()

    @classmethod
    def of(cls, model: Model) -> Caches | None:
        """Return those of a model; None where there is none, or none says how much is new."""
        inputs = {port.name for port in model.inputs}
        outputs = {port.name for port in model.outputs}
        nodes = [n for n in model.nodes if n.op_type == "GroupQueryAttention"]
        pairs = {
            past: present
            for node in nodes
            for past, present in zip(node.inputs[3:5], node.outputs[1:3], strict=True)
            if past in inputs and present in outputs and len(model.consumers[past]) == 1
        }
        query = model.spec(nodes[0].inputs[0]).shape if pairs else None
        places = (
            (port.name, axis)
            for port in model.inputs
            for axis, size in enumerate(port.shape or ())
            if query and isinstance(size, str) and size == query[1] and port.name not in pairs
        )
        count = next(places, None)
        return cls(pairs, count) if count else None

    def are_begun(self, given: Mapping[str, Value]) -> bool:
        """Whether the caches hold something; a session makes those of nothing by itself."""
        return all(given[past].shape[_LENGTH] for past in self.pairs)

    def run(
        self,
        session: onnxruntime.InferenceSession,
        given: Mapping[str, Value],
        wanted: Sequence[str],
        options: onnxruntime.RunOptions,
    ) -> list[Value]:
        """Return what a session makes of caches that hold something; they stay where they are."""
        name, axis = self.count
        num_new = given[name].shape[axis]
        longer = [self._longer(given[past], num_new) for past in self.pairs]
        made: dict[str, Value] = dict(zip(self.pairs.values(), longer, strict=True))
        binding = self._binding(session, [tensor.room for tensor in longer])
        for name, value in given.items():
            if name not in self.pairs:
                binding.bind_cpu_input(name, value)
        others = [name for name in wanted if name not in made]
        for name in others:
            binding.bind_output(name)
        session.run_with_iobinding(binding, options)
        values = binding.get_outputs()[len(self.pairs) :]  # in the order of binding
        made |= {name: value.numpy() for name, value in zip(others, values, strict=True)}
        return [made[name] for name in wanted]

    def _binding(
        self, session: onnxruntime.InferenceSession, rooms: Sequence[_Room]
    ) -> onnxruntime.IOBinding:
        """Return what has a session read and write memory: the last run's, if it is the same."""
        numbers = tuple([room.number for room in rooms])
        if (bound := rooms[0].bound) and bound[0] is session and bound[1] == numbers:
            return bound[2]
        binding = session.io_binding()
        for (past, present), room in zip(self.pairs.items(), rooms, strict=True):
            value = onnxruntime.OrtValue.ortvalue_from_numpy(room.array)  # the same memory
            binding.bind_ortvalue_input(past, value)
            binding.bind_ortvalue_output(present, value)
        rooms[0].bound = session, numbers, binding
        return binding

    def _longer(self, cache: CacheTensor | np.ndarray, num_new: int) -> CacheTensor:
        """Return what a cache becomes: in its memory, unless another run took what is behind it."""
        past = cache.shape[_LENGTH]
        length = past + num_new
        with self._lock:
            if isinstance(cache, CacheTensor):
                room = cache.room
                if room.length != past or room.array.shape[_LENGTH] < length:
                    room = _Room(room.array[:, :, :past], length)
            else:
                room = _Room(cache, length)
            room.length = length
        return CacheTensor(room, length)
