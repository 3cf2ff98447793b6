"""KV caches of decoders that a session appends to in place, instead of copying them in each run.

``com.microsoft.GroupQueryAttention`` appends new positions in place if its past and its present
cache are the same buffer, with capacity for them:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Final

import numpy as np

from hetero.devices.model.model import Model
from hetero.devices.ort.runtime import onnxruntime
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.remote_memory import RemoteTensor

#: A buffer's capacity is a multiple of this many positions.
_BLOCK: Final = 256
#: A setting that ONNX Runtime looks up in each run. If it is missing, ONNX Runtime throws and
#: catches an exception, which takes 55 of a run's 1,500 us.
_NO_GRAPH: Final = ("gpu_graph_id", "0")
#: The runtime's object for host memory.
_HOST: Final = onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()
#: The axis of positions in [batch, heads, positions, head size].
_POSITIONS_AXIS: Final = 2


class _Buffers:
    """Buffers of a model's KV caches with spare capacity, bound to a session."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        pairs: Mapping[str, str],
        caches: Sequence[np.ndarray],
        length: int,
    ) -> None:
        self.session = session
        binding = session.io_binding()
        #: The runtime's own binding: the layer around it checks captured graphs, which the CPU
        #: provider does not have, in 20 calls of each run.
        self.binding = binding._iobinding
        self.arrays: list[np.ndarray] = []
        #: Positions in use; a run that appends to these buffers increases it.
        self.length = 0
        self.capacity = -(-length // _BLOCK) * _BLOCK
        for (past, present), cache in zip(pairs.items(), caches, strict=True):
            batch, heads, self.length, size = cache.shape
            array = np.zeros((batch, heads, self.capacity, size), cache.dtype)
            array[:, :, : self.length] = cache
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array)  # shares its memory
            binding.bind_ortvalue_input(past, value)
            binding.bind_ortvalue_output(present, value)
            self.arrays.append(array)


class CacheTensor(RemoteTensor):
    """A KV cache: the first positions of a buffer."""

    device = "ORT"
    nbytes = 0  # an attribute instead of a property, because callers read it often

    def __init__(self, buffers: _Buffers, array: np.ndarray, length: int) -> None:
        batch, heads, _, size = array.shape
        self.buffers: Final = buffers
        self.array: Final = array
        self.shape = (batch, heads, length, size)
        self.dtype = array.dtype
        self.nbytes = array.nbytes

    @property
    def view(self) -> np.ndarray:
        """The positions in use, without a copy."""
        return self.array[:, :, : self.shape[_POSITIONS_AXIS]]

    def to_host(self) -> np.ndarray:
        """Return a copy on the host."""
        return self.view.copy()

    def copy_from(self, array: np.ndarray) -> None:
        """Overwrite the contents with an array of the same shape and type."""
        self.view[:] = array


class InPlaceCaches:
    """The KV caches that a session appends to in place.

    `pairs`: names of past caches (inputs) -> present caches (outputs).
    `length_source`: an input's name, and its axis whose length is the number of new positions.
    """

    def __init__(self, pairs: Mapping[str, str], length_source: tuple[str, int]) -> None:
        self.pairs = dict(pairs)
        self.length_source = length_source
        self._lock = threading.Lock()

    @classmethod
    def find(cls, model: Model) -> InPlaceCaches | None:
        """Find the caches of a model; None if it has none, or no input has the number of positions.

        Only caches that are inputs and outputs of the model count, with one reader each.
        """
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
        new_positions = query[1] if query else None
        for port in model.inputs if isinstance(new_positions, str) else ():
            shape = port.shape or ()
            if new_positions in shape and port.name not in pairs:
                return cls(pairs, (port.name, shape.index(new_positions)))
        return None

    def past_length(self, feeds: Mapping[str, Value]) -> int:
        """Return the length of all past caches; 0 if they are empty or their lengths differ.

        A session creates the presents of empty caches itself.
        """
        lengths = {feeds[past].shape[_POSITIONS_AXIS] for past in self.pairs}
        return lengths.pop() if len(lengths) == 1 else 0

    def configure(self, options: onnxruntime.RunOptions) -> None:
        """Add the setting that `run` needs, once: a repetition logs a warning."""
        options.add_run_config_entry(*_NO_GRAPH)

    def run(
        self,
        session: onnxruntime.InferenceSession,
        feeds: Mapping[str, Value],
        output_names: Sequence[str],
        options: onnxruntime.RunOptions,
    ) -> list[Value]:
        """Run a session on caches that are not empty; present caches are returned in place.

        `options` are configured; see `configure`.
        """
        name, axis = self.length_source
        past = self.past_length(feeds)
        length = past + feeds[name].shape[axis]
        buffers = self._reserve(session, [feeds[name] for name in self.pairs], past, length)
        binding = buffers.binding
        for name, value in feeds.items():
            if name not in self.pairs:
                binding.bind_input(name, value)
        results: dict[str, Value] = {
            name: CacheTensor(buffers, array, length)
            for name, array in zip(self.pairs.values(), buffers.arrays, strict=True)
        }
        others = [name for name in output_names if name not in results]
        for name in others:
            binding.bind_output(name, _HOST)
        session._sess.run_with_iobinding(binding, options)
        values = binding.get_outputs()
        first = len(results)  # `_Buffers` bound the caches before the other outputs
        results |= {name: values[first + i].numpy() for i, name in enumerate(others)}
        return [results[name] for name in output_names]

    def _reserve(
        self,
        session: onnxruntime.InferenceSession,
        caches: Sequence[CacheTensor | np.ndarray],
        past: int,
        length: int,
    ) -> _Buffers:
        """Return buffers that hold `caches`, with capacity for `length` positions.

        The caches' own buffers are returned if they are large enough and no other run has appended
        to them; otherwise new ones with copies.
        """
        buffers: _Buffers | None = getattr(caches[0], "buffers", None)
        with self._lock:
            if (
                buffers is None
                or buffers.session is not session
                or buffers.length != past
                or buffers.capacity < length
                or not all(map(is_, buffers.arrays, [getattr(c, "array", None) for c in caches]))
            ):
                arrays = [c.view if isinstance(c, CacheTensor) else c for c in caches]
                buffers = _Buffers(session, self.pairs, arrays, length)
            buffers.length = length
        return buffers
