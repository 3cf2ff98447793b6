"""KV caches of decoders that a session appends to in place, instead of copying them in each run.

``com.microsoft.GroupQueryAttention`` appends new positions in place if its past and its present
cache are the same buffer, with capacity for them:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from operator import attrgetter, is_, itemgetter
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
        #: (batch, heads, head size) of each cache.
        self._sizes: list[tuple[int, int, int]] = []
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
            self._sizes.append((batch, heads, size))

    def tensors(self, length: int) -> list[CacheTensor]:
        """Return the caches with their first `length` positions; equal shapes are one object."""
        tensors = []
        sizes: tuple[int, int, int] | None = None
        shape: tuple[int, ...] = ()
        for array, array_sizes in zip(self.arrays, self._sizes, strict=True):
            if array_sizes != sizes:
                sizes = batch, heads, size = array_sizes
                shape = batch, heads, length, size
            tensors.append(CacheTensor(self, array, shape))
        return tensors


class CacheTensor(RemoteTensor):
    """A KV cache: the first positions of a buffer."""

    device = "ORT"
    nbytes = 0  # an attribute instead of a property, because callers read it often

    def __init__(self, buffers: _Buffers, array: np.ndarray, shape: tuple[int, ...]) -> None:
        self.buffers: Final = buffers
        self.array: Final = array
        self.shape = shape
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


_shape_of: Final = attrgetter("shape")
_array_of: Final = attrgetter("array")


class InPlaceCaches:
    """The KV caches that a session appends to in place.

    `pairs`: names of past caches (inputs) -> present caches (outputs).
    `length_source`: an input's name, and its axis whose length is the number of new positions.
    """

    def __init__(self, pairs: Mapping[str, str], length_source: tuple[str, int]) -> None:
        self.pairs = dict(pairs)
        self.length_source = length_source

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

    def configure(self, options: onnxruntime.RunOptions) -> None:
        """Add the setting that runs in place need, once: a repetition logs a warning."""
        options.add_run_config_entry(*_NO_GRAPH)


class InPlaceSession:
    """Session whose runs append to caches in place.

    What does not change between runs is computed once, because decode steps are short.
    `input_names`: names of the values that `run` takes; some may not be inputs of the session.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        caches: InPlaceCaches,
        input_names: Sequence[str],
        output_names: Sequence[str],
    ) -> None:
        self._session = session
        self._pairs = pairs = caches.pairs
        name, axis = caches.length_source
        self._length_position, self._length_axis = input_names.index(name), axis
        #: Returns the past caches among the inputs. There are always several.
        self._past_caches = itemgetter(*map(input_names.index, pairs))
        ports = {port.name for port in session.get_inputs()}
        #: Position and name of each input that is not a cache.
        self._fed_inputs = [
            (position, name)
            for position, name in enumerate(input_names)
            if name in ports and name not in pairs
        ]
        presents = list(pairs.values())
        self._other_outputs = [name for name in output_names if name not in presents]
        # `_Buffers` binds the present caches before the other outputs.
        self._bound_positions = range(len(presents), len(output_names))
        self._in_order = itemgetter(*map([*presents, *self._other_outputs].index, output_names))
        self._lock = threading.Lock()

    def past_length(self, inputs: Sequence[Value]) -> int:
        """Return the length of all past caches; 0 if they are empty or their lengths differ.

        A session creates the presents of empty caches itself.
        """
        lengths = {shape[_POSITIONS_AXIS] for shape in {*map(_shape_of, self._past_caches(inputs))}}
        return lengths.pop() if len(lengths) == 1 else 0

    def run(
        self, inputs: Sequence[Value], past: int, options: onnxruntime.RunOptions
    ) -> Sequence[Value]:
        """Run on caches with `past` positions, 1 or more; return the present caches in place.

        `options` are configured; see `InPlaceCaches.configure`.
        """
        length = past + inputs[self._length_position].shape[self._length_axis]
        buffers = self._reserve(self._past_caches(inputs), past, length)
        binding = buffers.binding
        for position, name in self._fed_inputs:
            binding.bind_input(name, inputs[position])
        for name in self._other_outputs:
            binding.bind_output(name, _HOST)
        self._session._sess.run_with_iobinding(binding, options)
        values = binding.get_outputs()
        others = [values[position].numpy() for position in self._bound_positions]
        outputs: Sequence[Value] = self._in_order((*buffers.tensors(length), *others))
        return outputs

    def _reserve(
        self, caches: Sequence[CacheTensor | np.ndarray], past: int, length: int
    ) -> _Buffers:
        """Return buffers that hold `caches`, with capacity for `length` positions.

        The caches' own buffers are returned if they are large enough and no other run has appended
        to them; otherwise new ones with copies.
        """
        first = caches[0]
        buffers: _Buffers | None = None
        if type(first) is CacheTensor and {*map(type, caches)} == {CacheTensor}:
            buffers = first.buffers
        with self._lock:
            if (
                buffers is None
                or buffers.session is not self._session
                or buffers.length != past
                or buffers.capacity < length
                or not all(map(is_, buffers.arrays, map(_array_of, caches)))
            ):
                arrays = [c.view if isinstance(c, CacheTensor) else c for c in caches]
                buffers = _Buffers(self._session, self._pairs, arrays, length)
            buffers.length = length
        return buffers
