"""A block bound to input shapes and to memory: what is left of each node is calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from hetero.devices.errors import HeteroError
from hetero.devices.interpreter.block import Block, Step, Task, kernel_error, single, store
from hetero.devices.interpreter.calls import Call, Scratch
from hetero.devices.interpreter.trace import Trace, calls_of, frozen, is_plain
from hetero.devices.plugin.program import RunContext, Value


class _OtherShapeError(Exception):
    """A node returned `result`, which is not of the type and shape that the trace has."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


# Apart from the block, whose calls hold it: what holds itself is freed late.
@dataclass(eq=False, slots=True)
class _Slots:
    """The values of a bound block, and how what is not bound reads and writes them."""

    values: list[Value]
    trace: Trace
    memory: np.ndarray
    context: RunContext = field(default_factory=RunContext)

    def own(self, value: Value) -> Value:
        if isinstance(value, list):
            return [self.own(item) for item in value]
        shared = isinstance(value, np.ndarray) and np.may_share_memory(value, self.memory)
        return value.copy() if shared else value

    def call(self, task: Task, call: Callable[..., Any]) -> None:
        """Call a kernel that is not bound and put its results where they belong."""
        values = self.values
        found = call(*[values[slot] for slot in task.slots.reads])
        self._put(task, found if type(found) is tuple else (found,))

    def step(self, task: Task, step: Step) -> None:
        """Run a node that sees all slots: control flow, a function, a delegate."""
        values = self.values.copy()
        step(values, self.context)
        self._put(task, [None if slot is None else values[slot] for slot in task.slots.writes])

    def _put(self, task: Task, results: Sequence[Any]) -> None:
        """Put results where they belong, or raise with them all if one is not as in the trace."""
        values = self.values
        for slot, result in zip(task.slots.writes, results, strict=False):
            if slot is None or result is values[slot]:
                continue
            array = result if type(result) is np.ndarray else single(result)
            shape, dtype, *_ = self.trace.values[slot]
            if not is_plain(array) or array.shape != shape or array.dtype != dtype:
                raise _OtherShapeError(tuple(results))
            np.copyto(values[slot], array)


class BoundBlock:
    """A block bound to the shapes of a trace; one request at a time runs in it.

    `memory`: at least `trace.nbytes` bytes, for its values and the nodes' own steps.
    """

    def __init__(self, block: Block, trace: Trace, memory: np.ndarray) -> None:
        self._block = block
        self._trace = trace
        self._memory = memory
        self._values: list[Value] = [frozen(value) for value in block.template]
        for slot, array in trace.known.items():
            self._values[slot] = array
        for slot in block.input_slots:
            self._values[slot] = self._place(slot)
        self._slots = _Slots(self._values, trace, memory)
        #: Indices of the tasks that have something to do, and their calls.
        self._indices: list[int] = []
        self._work: list[Sequence[Call]] = []
        for i, task in enumerate(block.tasks[: trace.stop]):
            calls = self._calls(i, task, block.steps[i])
            if calls:
                self._indices.append(i)
                self._work.append(calls)

    def run(self, inputs: Sequence[np.ndarray], context: RunContext) -> list[Value]:
        """Compute the outputs from inputs of the shapes of the trace."""
        for slot, given in zip(self._block.input_slots, inputs, strict=True):
            np.copyto(self._values[slot], given)
        self._slots.context = context
        check = context.check_cancelled
        i = 0
        try:
            if context.profile:
                for task in self._block.tasks[: self._trace.stop]:
                    context.record(task.node.name, 0.0)
                for i, calls in enumerate(self._work):
                    check()
                    start = perf_counter()
                    for call in calls:
                        call()
                    context.record(self._task(i).node.name, perf_counter() - start)
            else:
                for i, calls in enumerate(self._work):  # noqa: B007 - named by the handlers below
                    check()
                    for call in calls:
                        call()
        except _OtherShapeError as other:
            values = self._values.copy()
            store(values, self._task(i).slots.writes, other.result)
            return self._resumed(values, self._indices[i] + 1, context)
        except (HeteroError, MemoryError):
            raise
        except Exception as error:
            raise kernel_error(self._task(i), self._values, error) from error
        return self._resumed(self._values.copy(), self._trace.stop, context)

    def _task(self, i: int) -> Task:
        return self._block.tasks[self._indices[i]]

    def _resumed(self, values: list[Value], first: int, context: RunContext) -> list[Value]:
        """Run the tasks that are not bound, and return outputs that no later run writes to."""
        outputs = self._block.resume(values, first, context, profile=context.profile)
        return [self._slots.own(value) for value in outputs]

    def _place(self, slot: int) -> np.ndarray:
        """Return a value's array in the memory."""
        shape, dtype, strides, buffer, *_ = self._trace.values[slot]
        return np.ndarray(shape, dtype, self._memory, self._trace.offsets[buffer], strides)

    def _calls(self, i: int, task: Task, step: Step) -> Sequence[Call]:
        """Put a task's results into their slots; return the calls that fill them (views: none)."""
        written = [slot for slot in task.slots.writes if slot is not None]
        if all(slot in self._trace.known for slot in written):
            return ()
        inputs = [self._values[slot] for slot in task.slots.reads]
        if task.call is not None and all(self._trace.values[slot].is_view for slot in written):
            store(self._values, task.slots.writes, task.call(*inputs))
            return ()
        for slot in written:
            self._values[slot] = self._place(slot)
        if task.call is None:
            return [partial(self._slots.step, task, step)]
        outputs = [None if slot is None else self._values[slot] for slot in task.slots.writes]
        offset = self._trace.offsets.get(~i, 0)  # of the memory for the task's own steps
        own = self._memory[offset : offset + self._trace.scratch_nbytes.get(i, 0)]
        calls = calls_of(task, self._trace.recordings.get(i), Scratch(own), outputs, inputs)
        return calls or [partial(self._slots.call, task, task.call)]
