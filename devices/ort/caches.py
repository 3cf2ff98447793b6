"""Caches of attention that a session lengthens where they are, instead of copying them each run.

``com.microsoft.GroupQueryAttention`` writes what is new behind what there is where its cache and
the next one are the same memory, longer than what counts in it:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Final

import numpy as np
import onnxruntime

from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.remote import RemoteTensor

#: Memory is as long as whole blocks of so many positions.
_BLOCK: Final = 256
#: What ONNX Runtime looks up for each run; not to find it costs an exception, 55 us of 1,500.
_NO_GRAPH: Final = ("gpu_graph_id", "0")
#: Of [batch, heads, length, size].
_LENGTH: Final = 2


class _Rooms:
    """Memory of a model's caches with room behind them, and what binds a session to it."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        pairs: Mapping[str, str],
        caches: Sequence[np.ndarray],
        length: int,
    ) -> None:
        self.session = session
        self.binding = session.io_binding()
        self.arrays: list[np.ndarray] = []
        #: So many positions of each are somebody's, of those that there are.
        self.length = 0
        self.most = -(-length // _BLOCK) * _BLOCK
        for (past, present), cache in zip(pairs.items(), caches, strict=True):
            batch, heads, self.length, size = cache.shape
            array = np.zeros((batch, heads, self.most, size), cache.dtype)
            array[:, :, : self.length] = cache
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array)  # the same memory
            self.binding.bind_ortvalue_input(past, value)
            self.binding.bind_ortvalue_output(present, value)
            self.arrays.append(array)


class CacheTensor(RemoteTensor):
    """The first positions of a cache's memory, with room behind them."""

    device = "ORT"
    nbytes = 0  # not a property, as it is asked for often

    def __init__(self, rooms: _Rooms, array: np.ndarray, length: int) -> None:
        batch, heads, _, size = array.shape
        self.rooms: Final = rooms
        self.array: Final = array
        self.shape = (batch, heads, length, size)
        self.dtype = array.dtype
        self.nbytes = array.nbytes

    @property
    def used(self) -> np.ndarray:
        """What is this tensor's, without a copy."""
        return self.array[:, :, : self.shape[_LENGTH]]

    def to_host(self) -> np.ndarray:
        """Return a copy."""
        return self.used.copy()

    def copy_from(self, array: np.ndarray) -> None:
        """Take over the contents of an array of the same shape and type."""
        self.used[:] = array


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
        new = query[1] if query else None
        for port in model.inputs if isinstance(new, str) else ():
            shape = port.shape or ()
            if new in shape and port.name not in pairs:
                return cls(pairs, (port.name, shape.index(new)))
        return None

    def length(self, given: Mapping[str, Value]) -> int:
        """Return how many positions all caches hold; 0 where they differ.

        A session makes those that hold none by itself.
        """
        lengths = {given[past].shape[_LENGTH] for past in self.pairs}
        return lengths.pop() if len(lengths) == 1 else 0

    def run(
        self,
        session: onnxruntime.InferenceSession,
        given: Mapping[str, Value],
        wanted: Sequence[str],
        options: onnxruntime.RunOptions,
    ) -> list[Value]:
        """Return what a session makes of caches that hold something; they stay where they are."""
        name, axis = self.count
        past = self.length(given)
        length = past + given[name].shape[axis]
        rooms = self._rooms(session, [given[name] for name in self.pairs], past, length)
        binding = rooms.binding
        for name, value in given.items():
            if name not in self.pairs:
                binding.bind_cpu_input(name, value)
        made: dict[str, Value] = {
            name: CacheTensor(rooms, array, length)
            for name, array in zip(self.pairs.values(), rooms.arrays, strict=True)
        }
        others = [name for name in wanted if name not in made]
        for name in others:
            binding.bind_output(name)
        options.add_run_config_entry(*_NO_GRAPH)
        session.run_with_iobinding(binding, options)
        values = binding.get_outputs_as_ortvaluevector()
        first = len(made)  # the caches were bound before
        made |= {name: values[first + i].numpy() for i, name in enumerate(others)}
        return [made[name] for name in wanted]

    def _rooms(
        self,
        session: onnxruntime.InferenceSession,
        caches: Sequence[CacheTensor | np.ndarray],
        past: int,
        length: int,
    ) -> _Rooms:
        """Return where caches are lengthened: where they are, unless another run did so before."""
        rooms: _Rooms | None = getattr(caches[0], "rooms", None)
        with self._lock:
            if (
                rooms is None
                or rooms.session is not session
                or rooms.length != past
                or rooms.most < length
                or not all(map(is_, rooms.arrays, [getattr(c, "array", None) for c in caches]))
            ):
                arrays = [c.used if isinstance(c, CacheTensor) else c for c in caches]
                rooms = _Rooms(session, self.pairs, arrays, length)
            rooms.length = length
        return rooms
