"""A run that notes what each value was: its type, its shape, and whose memory it may lie in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np

from hetero.devices.errors import HeteroError
from hetero.devices.interpreter.block import Block, Step, Task, kernel_error, store
from hetero.devices.interpreter.calls import CALL_MAKERS, Call, Scratch
from hetero.devices.interpreter.implementations import ONLY_IN_A_RUN
from hetero.devices.interpreter.layout import Span, lay_out
from hetero.devices.interpreter.recorder import recorded
from hetero.devices.interpreter.tape import Recording
from hetero.devices.plugin.program import RunContext, Value

#: Operators that only look at their first input in another way, where the others are known.
_VIEWS: Final = frozenset(
    [
        "Flatten",
        "Gather",
        "Identity",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    ]
)
#: A result of more bytes than this is computed again in each run, even from known values.
_MOST_KNOWN_NBYTES: Final = 1 << 18


class Traced(NamedTuple):
    """An array that a run made.

    `buffer` names the memory that it lies in; `is_view`: as a view of another value.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...]
    buffer: int
    is_view: bool = False


@dataclass(slots=True)
class Trace:
    """What every run with inputs of the same shapes does, up to the task of index `stop`.

    `known` are values that depend on those shapes alone; `values` the others, by slot.
    `recordings` are what the kernels of tasks do whose calls nobody makes, by index.
    `scratch_nbytes` are what the own steps of tasks need, by index. `offsets` tell where the memory
    of a value's buffer begins and, at ``~index``, that for a task's own steps.
    """

    known: dict[int, np.ndarray] = field(default_factory=dict)
    values: dict[int, Traced] = field(default_factory=dict)
    recordings: dict[int, Recording] = field(default_factory=dict)
    stop: int = 0
    scratch_nbytes: dict[int, int] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=dict)
    nbytes: int = 0


def frozen(array: Value) -> Value:
    """Return a constant as an array that cannot be written to."""
    if isinstance(array, np.ndarray) and array.flags.writeable:
        array = array.view()
        array.setflags(write=False)
    return array


def is_plain(value: Value) -> bool:
    """Tell whether a value is an array of numbers."""
    return isinstance(value, np.ndarray) and not value.dtype.hasobject


def _dense(array: np.ndarray) -> np.ndarray:
    """Return the array, or a copy of it without gaps, its axes in the same order in memory."""
    order = sorted(range(array.ndim), key=array.strides.__getitem__, reverse=True)
    if array.transpose(order).flags.c_contiguous:
        return array
    # Axes along which it repeats itself have no order; they lie where they stand.
    repeats = any(n > 1 and not step for n, step in zip(array.shape, array.strides, strict=True))
    return array.copy("C" if repeats else "K")


def calls_of(
    task: Task,
    recording: Recording | None,
    scratch: Scratch,
    outputs: Sequence[Value],
    inputs: Sequence[Value],
) -> Sequence[Call] | None:
    """Return the calls that do what a task's kernel does, if there are some for such arrays."""
    if recording is not None:
        return recording.calls(scratch, outputs, inputs)
    if task.call is None:
        return None
    make = CALL_MAKERS.get(task.implementation.definition.function)
    return None if make is None else make(scratch, outputs[0], *inputs, **task.attributes)


def trace(
    block: Block, inputs: Sequence[np.ndarray], context: RunContext
) -> tuple[list[Value], Trace]:
    """Run a block and return its outputs and the run's trace."""
    run = _TracedRun(block, inputs)
    i = 0
    try:
        for i, task in enumerate(block.tasks):
            context.check_cancelled()
            start = perf_counter()
            is_bound = run.follow(i, task, block.steps[i], context)
            if context.profile:
                context.record(task.node.name, perf_counter() - start)
            run.trace.stop = i + is_bound
            if not is_bound:
                break
    except (HeteroError, MemoryError):
        raise
    except Exception as error:
        raise kernel_error(block.tasks[i], run.values, error) from error
    run.end()
    outputs = block.resume(run.values, i + 1, context, profile=context.profile)
    return outputs, run.trace


class _TracedRun:
    """The slots of a run, and which buffers their values would lie in."""

    def __init__(self, block: Block, inputs: Sequence[np.ndarray]) -> None:
        self.values: list[Value] = [frozen(value) for value in block.template]
        self.trace = Trace()
        self._spans: dict[int, Span] = {}
        #: Buffer -> how many slots that are still read lie in it.
        self._readers: dict[int, int] = {}
        self._constants = {i for i, value in enumerate(block.template) if value is not None}
        for slot, value in zip(block.input_slots, inputs, strict=True):
            self._make(slot, value.copy(), -1)

    def follow(self, i: int, task: Task, step: Step, context: RunContext) -> bool:
        """Run a task; False if what it returns cannot be bound."""
        inputs = [self.values[slot] for slot in task.slots.reads]
        values = self.values.copy()
        if task.call is None:
            step(values, context)
        else:
            store(values, task.slots.writes, task.call(*inputs))
        named = [(slot, values[slot]) for slot in task.slots.writes if slot is not None]
        is_bound = all(is_plain(value) for _, value in named)
        if not is_bound:
            for slot, value in named:
                self.values[slot] = value
        elif self._is_known(task, named):
            for slot, value in named:
                self.values[slot] = self.trace.known[slot] = frozen(value)
        elif self._is_view(task, inputs, [value for _, value in named]):
            for slot, value in named:
                self._show(slot, value, task.slots.reads[0])
        else:
            self._keep(i, task, inputs, named)
        for slot in task.slots.dying:
            self.values[slot] = None
            if slot in self.trace.values:
                self._release(self.trace.values[slot].buffer, i)
        return is_bound

    def _keep(
        self, i: int, task: Task, inputs: Sequence[Value], named: list[tuple[int, Any]]
    ) -> None:
        """Give the results memory, and what the task's own steps need."""
        for slot, value in named:
            self._make(slot, _dense(value), i)
        outputs = [None if slot is None else self.values[slot] for slot in task.slots.writes]
        scratch = Scratch()
        if calls_of(task, None, scratch, outputs, inputs) is None:
            varying = [not self._is_constant(slot) for slot in task.slots.reads]
            recording = recorded(task, inputs, varying, outputs)
            if recording is not None:
                self.trace.recordings[i] = recording
                recording.calls(scratch, outputs, inputs)
        if scratch.nbytes:
            self.trace.scratch_nbytes[i] = scratch.nbytes
            self._spans[~i] = Span(i, i, scratch.nbytes)

    def end(self) -> None:
        """Give each buffer its place; those that are still read are needed to the end."""
        spans = {
            buffer: span._replace(last=self.trace.stop) if self._readers.get(buffer) else span
            for buffer, span in self._spans.items()
        }
        self.trace.offsets, self.trace.nbytes = lay_out(spans)

    def _is_constant(self, slot: int) -> bool:
        return slot == 0 or slot in self._constants or slot in self.trace.known

    def _is_known(self, task: Task, named: list[tuple[int, Any]]) -> bool:
        if task.call is None or task.node.op_type in ONLY_IN_A_RUN:
            return False
        if sum(value.nbytes for _, value in named) > _MOST_KNOWN_NBYTES:
            return False
        if task.node.op_type in ("Shape", "Size") and not task.node.domain:
            return True
        return bool(task.slots.reads) and all(map(self._is_constant, task.slots.reads))

    def _is_view(self, task: Task, inputs: list[Any], results: list[Any]) -> bool:
        if task.node.op_type not in _VIEWS or task.node.domain or task.call is None:
            return False
        first, *others = map(self._is_constant, task.slots.reads)
        shared = (np.may_share_memory(result, inputs[0]) for result in results)
        return not first and all(others) and all(shared)

    def _make(self, slot: int, value: np.ndarray, i: int) -> None:
        self.values[slot] = value
        self.trace.values[slot] = Traced(value.shape, value.dtype, value.strides, slot)
        self._readers[slot] = 1
        self._spans[slot] = Span(i, i, value.nbytes)

    def _show(self, slot: int, value: np.ndarray, of: int) -> None:
        self.values[slot] = value
        buffer = self.trace.values[of].buffer
        self.trace.values[slot] = Traced(value.shape, value.dtype, value.strides, buffer, True)
        self._readers[buffer] += 1

    def _release(self, buffer: int, i: int) -> None:
        self._readers[buffer] -= 1
        if not self._readers[buffer]:
            self._spans[buffer] = self._spans[buffer]._replace(last=i)
