"""Prediction of the memory of each device's process from the subgraphs that it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from hetero.devices.model.model import Model, Node
from hetero.devices.model.variables import variables_of
from hetero.devices.plugin.memory_traits import MemoryTraits
from hetero.partition.partition import Subgraph
from hetero.planning.cost.estimation import value_nbytes
from hetero.planning.memory.device_memory import DeviceMemory, MemoryModel
from hetero.planning.memory.live_values import live_nbytes

_CONVOLUTIONS: Final = frozenset({"Conv", "ConvTranspose", "ConvInteger", "QLinearConv"})


def predict_memory(
    model: Model, subgraphs: Iterable[Subgraph], memory: MemoryModel
) -> dict[str, DeviceMemory]:
    """Predict the memory of each device that runs subgraphs, at most one run of each at a time.

    A device keeps copies of weights in its own layout if they fit its budget, and otherwise not, if
    it can do without them.

    `model`: with static input shapes.
    """
    by_device: dict[str, list[Subgraph]] = {}
    for subgraph in subgraphs:
        by_device.setdefault(subgraph.device, []).append(subgraph)
    return {
        device: predict_device(model, device, stages, memory)
        for device, stages in by_device.items()
    }


def predict_device(
    model: Model, device: str, subgraphs: Sequence[Subgraph], memory: MemoryModel
) -> DeviceMemory:
    """Predict the memory of one device; see `predict_memory`."""
    traits = memory.traits.get(device, MemoryTraits())
    stages = [_Stage.measure(model, subgraph, traits) for subgraph in subgraphs]
    full = _predict(model, device, stages, memory, traits)
    if full.fits or not traits.compact_options:
        return full
    return replace(_predict(model, device, stages, memory, traits.compact), compact=True)


class _Stage(NamedTuple):
    """A subgraph, and the memory that it needs with all options of its device."""

    subgraph: Subgraph
    #: Largest number of bytes of values that are alive at the same node.
    live_nbytes: float
    has_convolutions: bool

    @classmethod
    def measure(cls, model: Model, subgraph: Subgraph, traits: MemoryTraits) -> _Stage:
        positions = [
            p
            for p in subgraph.positions
            if not model.request_dependent.isdisjoint(model.nodes[p].writes)
        ]
        live = live_nbytes(model, positions, subgraph.outputs, traits)
        return cls(subgraph, float(live.max(initial=0)), has_convolutions(model, positions))


def _predict(
    model: Model,
    device: str,
    stages: Sequence[_Stage],
    memory: MemoryModel,
    traits: MemoryTraits,
) -> DeviceMemory:
    states = {v.name for v in variables_of(model)} | {v.output.name for v in variables_of(model)}
    counted: set[str] = set()
    weights, copies = 0, 0.0
    compile_copies: list[float] = []
    values: list[int] = []
    kept_states = request = 0
    for s, nbytes, is_convolutional in stages:
        own = weight_nbytes(model, s.positions, traits, counted)
        weights += own.total
        copies += own.copies + traits.session_nbytes
        compile_copies.append(own.compile_nbytes(traits))
        factor = traits.values_factor_of(has_convolutions=is_convolutional)
        values.append(int(nbytes * factor))
        sizes = {v: value_nbytes(model.spec(v)) for v in (*s.inputs, *s.outputs)}
        # A run that joins sequences reads and writes the states of all of them.
        kept_states += sum(n for v, n in sizes.items() if v in states)
        request += sum(n for v, n in sizes.items() if v not in states)
    largest = max(values, default=0)
    if traits.has_equal_blocks:
        values_nbytes = len(values) * largest
    else:  # an arena keeps the memory of each stage for its next run
        values_nbytes = sum(values) if traits.keeps_values else largest
    return DeviceMemory(
        device,
        memory.budgets_nbytes.get(device),
        runtime_nbytes=traits.idle_nbytes,
        weights_nbytes=weights,
        copies_nbytes=int(copies),
        compile_nbytes=int(max(compile_copies, default=0)),
        values_nbytes=values_nbytes,
        states_nbytes=kept_states * (memory.sequences - 1),
        request_nbytes=request,
        requests=memory.requests,
    )


def block_nbytes(model: Model, stages: Sequence[Subgraph], prediction: DeviceMemory) -> int:
    """Return the size of each stage's block of values; the inputs are outside of it.

    `model`: with static input shapes. `stages`: those of the prediction's device.
    """
    inputs = min(sum(value_nbytes(model.spec(v)) for v in stage.inputs) for stage in stages)
    return max(0, prediction.values_nbytes // len(stages) - inputs)


class WeightBytes(NamedTuple):
    """Bytes of the weights that nodes read, and of the copies that a device makes of them."""

    total: int
    #: Copies that the device keeps, and the memory of its nodes.
    copies: float
    #: Copies that exist only while the model is compiled: of convolutions, and of other nodes.
    convolution_copies: float
    compile_copies: float
    #: The largest weight of which the compilation makes a copy: one copy exists as a whole.
    largest: int

    def compile_nbytes(self, traits: MemoryTraits) -> float:
        """Return the bytes of the copies that exist at once while the model is compiled."""
        others = self.compile_copies
        if traits.reused_copies is not None:
            others = min(others, traits.reused_copies * self.largest)
        return max(self.convolution_copies + others, self.largest)


def weight_nbytes(
    model: Model, positions: Sequence[int], traits: MemoryTraits, counted: set[str]
) -> WeightBytes:
    """Return the bytes of the constants that nodes read, and of their copies.

    `counted`: constants that the device has already; the new ones are added.
    """
    total = largest = 0
    copies = convolution_copies = compile_copies = 0.0
    for p in positions:
        node = model.nodes[p]
        is_folded = model.request_dependent.isdisjoint(node.writes)
        is_convolution = _is_convolution(node)
        copies += traits.node_nbytes * (not is_folded)
        for value in node.reads:
            if value in counted or value in model.request_dependent:
                continue
            is_stored = value in model.constants
            if is_folded and not is_stored:
                continue  # an intermediate value of constant folding
            counted.add(value)
            nbytes = value_nbytes(model.spec(value))
            total += nbytes
            made_copies = (
                traits.convolution_compile_copies if is_convolution else traits.compile_copies
            ).of(stored=is_stored)
            if is_convolution:
                convolution_copies += nbytes * made_copies
            else:
                compile_copies += nbytes * made_copies
            largest = max(largest, nbytes if made_copies else 0)
            if traits.copies(node.op_type):
                copies += nbytes * traits.weight_copies.of(stored=is_stored)
            if traits.fused_copies and _is_normalized(model, node):
                copies += nbytes * traits.fused_copies
    return WeightBytes(total, copies, convolution_copies, compile_copies, largest)


def has_convolutions(model: Model, positions: Sequence[int]) -> bool:
    """Return whether any of some nodes is a convolution."""
    return any(_is_convolution(model.nodes[p]) for p in positions)


def _is_convolution(node: Node) -> bool:
    return node.op_type in _CONVOLUTIONS and not node.domain


def _is_normalized(model: Model, node: Node) -> bool:
    """Return whether a convolution's only reader is a batch normalization."""
    if not _is_convolution(node):
        return False
    readers = list(model.readers(node))
    return len(readers) == 1 and readers[0].op_type == "BatchNormalization"


def largest_request_count(predictions: Mapping[str, DeviceMemory], limit: int) -> int:
    """Return the largest number of requests in flight, up to `limit`, that all budgets allow."""
    counts = [limit]
    for prediction in predictions.values():
        single = replace(prediction, requests=1)
        if single.free_nbytes is not None and single.request_nbytes:
            counts.append(1 + max(0, single.free_nbytes) // single.request_nbytes)
    return max(1, min(counts))


def largest_sequence_count(one: Mapping[str, DeviceMemory], two: Mapping[str, DeviceMemory]) -> int:
    """Return the largest number of sequences with states that all budgets allow, at least 1.

    `one`, `two`: predictions for one sequence, and for two.
    Returns 0 if the number is unlimited.
    """
    counts = [
        1 + max(0, free_nbytes) // nbytes
        for device, prediction in one.items()
        if (nbytes := two[device].states_nbytes)
        and (free_nbytes := prediction.free_nbytes) is not None
    ]
    return min(counts, default=0)
