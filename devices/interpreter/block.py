"""A block: one graph (main graph, body or function) as steps over numbered slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
import onnx

from hetero.devices.errors import HeteroError, KernelError
from hetero.devices.interpreter.body_outputs import BodyOutput, body_outputs
from hetero.devices.interpreter.delegate import delegate
from hetero.devices.interpreter.implementations import Implementation, Scope, find_implementation
from hetero.devices.kernels import Kernel
from hetero.devices.model.attributes import attribute_value
from hetero.devices.model.functions import function_key, instantiate
from hetero.devices.model.literals import literal_value
from hetero.devices.model.model import Node
from hetero.devices.model.tensor_proto import dense_array, tensor_array
from hetero.devices.plugin.program import RunContext, Value
from hetero.devices.plugin.support import Refusal

#: Runs one node: reads its inputs from the slots, writes its outputs there, clears what has died.
Step = Callable[[list[Value], RunContext], None]

#: The slot of absent optional inputs; it always holds None.
_ABSENT: Final = 0


class Slots(NamedTuple):
    """The slots that a node reads, writes, and reads last."""

    reads: tuple[int, ...]
    writes: tuple[int | None, ...]
    dying: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """A node that runs, what runs it, and where it reads and writes.

    It is kept beside its step, which runs it, for whoever runs it otherwise or tells of it.
    """

    node: Node
    implementation: Implementation
    opset: int
    slots: Slots
    #: A kernel as a function of the node's inputs, and its attributes; None for what needs more.
    call: Callable[..., Any] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Block:
    """A graph ready to run, re-entrant: each run has its own slots."""

    #: The nodes in execution order, and what runs them.
    tasks: Sequence[Task]
    steps: Sequence[Step]
    #: The slots of a run that begins: constants in place, None elsewhere.
    template: list[Value]
    #: The inputs' slots and, after them, those of the graph's captures.
    input_slots: Sequence[int]
    output_slots: Sequence[int]
    #: Positions of the inputs that only the host reads.
    host_inputs: frozenset[int]
    #: Returns once what was begun is done.
    finish: Callable[[], None]

    def release(self) -> None:
        """Let go of every constant: there will be no more runs."""
        self.steps = ()
        self.template = []

    def run(
        self, inputs: Sequence[Value], context: RunContext, *, profile: bool = False
    ) -> list[Value]:
        """Compute the outputs from the graph's inputs and, after them, its captures.

        `profile` records each node's time in the context, which is asked between nodes whether to
        stop.
        """
        values = self.template.copy()
        for slot, value in zip(self.input_slots, inputs, strict=True):
            values[slot] = value
        return self.resume(values, 0, context, profile=profile)

    def resume(
        self, values: list[Value], first: int, context: RunContext, *, profile: bool = False
    ) -> list[Value]:
        """Compute the outputs from the slots as they are before the task of index `first`."""
        check = context.check_cancelled
        i = first
        steps = self.steps[first:] if first else self.steps
        try:
            for i, step in enumerate(steps, first):
                check()
                start = perf_counter() if profile else 0.0
                step(values, context)
                if profile:
                    self.finish()
                    context.record(self.tasks[i].node.name, perf_counter() - start)
        except (HeteroError, MemoryError):
            raise
        except Exception as error:
            raise kernel_error(self.tasks[i], values, error) from error
        return [values[slot] for slot in self.output_slots]


class _Body(NamedTuple):
    """The graph of a control flow node: compiled, and as it was written."""

    block: Block
    graph: onnx.GraphProto
    #: Outer values that it reads -> their slots outside, but for `constants`, which it holds.
    captures: Mapping[str, int]
    constants: Mapping[str, np.ndarray]
    scope: Scope


class _Closure:
    """A body whose captured values are given: a function of its own inputs."""

    def __init__(self, body: _Body, values: Sequence[Value], context: RunContext) -> None:
        self._body = body
        self._captured = [values[slot] for slot in body.captures.values()]
        self._context = context

    def __call__(self, *inputs: Value) -> tuple[Value, ...]:
        self._context.check_cancelled()  # a body need not have a node that asks
        return tuple(self._body.block.run([*inputs, *self._captured], self._context))

    def outputs(self, *inputs: Value) -> list[BodyOutput]:
        """Return the element type and shape of each output."""
        _, graph, captures, constants, scope = self._body
        values = [*inputs, *self._captured, *constants.values()]
        return body_outputs(graph, (*captures, *constants), values, scope)


def build_block(
    nodes: Sequence[Node],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray],
    scope: Scope,
) -> Block:
    """Compile a graph whose nodes are in topological order.

    `inputs` are its own and, after them, the outer values that it reads; `constants` its
    initializers.
    """
    template: list[Value] = [None]
    numbers: dict[tuple[str, bool], int] = {("", False): _ABSENT, ("", True): _ABSENT}
    # A body's initializer that is also an input is only its default.
    held = {name: array for name, array in constants.items() if name not in inputs}
    backend = scope.backend

    def slot_of(value: str, on_host: bool = False) -> int:
        key = value, on_host and value in held
        if key not in numbers:
            numbers[key] = len(template)
            array = held.get(value)
            template.append(array if array is None or on_host else backend.upload(array))
        return numbers[key]

    input_slots = [slot_of(name) for name in inputs]
    running = []
    for node in nodes:
        implementation = find_implementation(node, scope)
        if isinstance(implementation, Refusal):
            raise KernelError(
                f"node {node.name!r} ({node.op_type}): {implementation}",
                node=node.name,
                op_type=node.op_type,
                opset=scope.opset(node.domain),
            )
        if implementation.kind == "literal":
            held[node.outputs[0]] = literal_value(node)
        else:
            running.append((node, implementation))
    output_slots = [slot_of(name) for name in outputs]
    hosted = backend.host_values([node for node, _ in running], held)
    last_use = {value: i for i, (node, _) in enumerate(running) for value in node.reads}
    keep = {*outputs, *held}
    tasks, steps = [], []
    on_device = {*outputs}
    for i, (node, implementation) in enumerate(running):
        on_host = not hosted.isdisjoint(node.writes)
        wanted = [
            (name, on_host or implementation.reads_on_host(position))
            for position, name in enumerate(_trimmed(node.inputs))
        ]
        on_device.update(node.captures, (name for name, there in wanted if not there))
        dying = [v for v in node.reads if v not in keep and last_use[v] == i]
        dying += [v for v in node.writes if v not in keep and v not in last_use]
        slots = Slots(
            tuple(slot_of(name, there) for name, there in wanted),
            tuple(slot_of(name) if name else None for name in _trimmed(node.outputs)),
            tuple(dict.fromkeys(map(slot_of, dying))),
        )
        task = Task(node, implementation, scope.opset(node.domain), slots)
        step, task = _work(task, slot_of, held, scope, on_host)
        tasks.append(task)
        steps.append(step)
    host_inputs = frozenset(i for i, name in enumerate(inputs) if name not in on_device)
    return Block(tasks, steps, template, input_slots, output_slots, host_inputs, backend.finish)


def _trimmed(names: Sequence[str]) -> tuple[str, ...]:
    """Return names without the empty ones at the end."""
    count = len(names)
    while count and not names[count - 1]:
        count -= 1
    return tuple(names[:count])


def _work(
    task: Task,
    slot_of: Callable[[str], int],
    held: Mapping[str, np.ndarray],
    scope: Scope,
    on_host: bool,
) -> tuple[Step, Task]:
    """Return how a task runs, and it; `on_host`: there, though the device's memory is elsewhere."""
    node, slots = task.node, task.slots
    if task.implementation.kind == "delegate":
        call = scope.backend.function(delegate(node, task.opset), {}, on_host)
        return _call_step(call, slots), task
    if task.implementation.kind == "function":
        return _function_step(task.implementation.definition, node, slots, scope), task
    kernel: Kernel = task.implementation.definition
    bodies: dict[str, _Body] = {}
    attributes: dict[str, Any] = {}
    for attribute in node.proto.attribute:
        if attribute.HasField("g"):
            bodies[attribute.name] = _body(attribute.g, scope, slot_of, held)
        else:
            attributes[attribute.name] = attribute_value(attribute)
    reserved = {"n_outputs": len(slots.writes), "version": task.opset}
    attributes |= {name: reserved[name] for name in kernel.wants}
    call = scope.backend.function(kernel, attributes, on_host)
    if bodies:
        return _call_step(call, slots, bodies), task
    return _call_step(call, slots), replace(task, call=call, attributes=attributes)


def _body(
    graph: onnx.GraphProto,
    scope: Scope,
    slot_of: Callable[[str], int],
    held: Mapping[str, np.ndarray],
) -> _Body:
    """Compile the body of a control flow node; on the host, outer constants `held` are its own."""
    holder = onnx.NodeProto()
    holder.attribute.add(name="body", type=onnx.AttributeProto.GRAPH).g.CopyFrom(graph)
    captures = Node.from_proto(holder).captures
    shared = {n: held[n] for n in captures if n in held} if scope.backend.is_on_host else {}
    constants = {t.name: tensor_array(t) for t in graph.initializer}
    constants |= {t.values.name: dense_array(t) for t in graph.sparse_initializer}
    outer = [name for name in captures if name not in shared]
    block = build_block(
        [Node.from_proto(proto) for proto in graph.node],
        inputs=[*(value.name for value in graph.input), *outer],
        outputs=[value.name for value in graph.output],
        constants=constants | shared,
        scope=scope,
    )
    return _Body(block, graph, {name: slot_of(name) for name in outer}, shared, scope)


def _call_step(
    call: Callable[..., Any], slots: Slots, bodies: Mapping[str, _Body] | None = None
) -> Step:
    """A node; its bodies see the values that they capture as they are now."""
    reads, writes, dying = slots

    def step(values: list[Value], context: RunContext) -> None:
        if bodies:
            closures = {name: _Closure(body, values, context) for name, body in bodies.items()}
            store(values, writes, call(*[values[slot] for slot in reads], **closures))
        else:
            store(values, writes, call(*[values[slot] for slot in reads]))
        for slot in dying:
            values[slot] = None

    return step


def _function_step(function: onnx.FunctionProto, node: Node, slots: Slots, scope: Scope) -> Step:
    """A call of a function: its inputs are the node's, absent ones None."""
    reads, writes, dying = slots
    call = node.proto
    key = (function_key(node), *(a.SerializeToString(deterministic=True) for a in call.attribute))
    block = scope.blocks.get(key)
    if block is None:
        block = build_block(
            [Node.from_proto(proto) for proto in instantiate(function, call)],
            inputs=function.input,
            outputs=function.output,
            constants={},
            scope=scope.of_function(function),
        )
        # Functions may call one another: each is built once, however many calls there are.
        if key[0] in scope.functions:
            scope.blocks[key] = block
    padding = [None] * (len(function.input) - len(reads))

    def step(values: list[Value], context: RunContext) -> None:
        inputs = [values[slot] for slot in reads]
        store(values, writes, tuple(block.run([*inputs, *padding], context)))
        for slot in dying:
            values[slot] = None

    return step


def single(result: Any) -> Value:
    """Return a one-output kernel's result as a value: scalars become arrays of rank 0."""
    if isinstance(result, tuple):
        (result, *_) = result
    if isinstance(result, np.generic):
        return np.asarray(result)
    return np.asarray(result, object) if isinstance(result, str | bytes) else result


def store(values: list[Value], writes: tuple[int | None, ...], result: Any) -> None:
    """Put what a kernel returned into the slots of the node's outputs."""
    results = result if isinstance(result, tuple) else (result,)
    if len(results) < len(writes):
        raise ValueError(f"{len(writes)} outputs are named; there are only {len(results)}")
    for slot, value in zip(writes, results, strict=False):
        if slot is not None:
            values[slot] = single(value)


def kernel_error(task: Task, values: list[Value], error: Exception) -> KernelError:
    """Return what tells of a failed node: which, on what inputs, and why."""
    node = task.node
    operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    inputs = ", ".join(_described(values[slot]) for slot in task.slots.reads)
    merged = f", made of {', '.join(node.covers)}" if node.covers != (node.name,) else ""
    said = str(error) or type(error).__name__
    kernel = task.implementation.definition
    since = f" (kernel since {kernel.since})" if isinstance(kernel, Kernel) else ""
    return KernelError(
        f"node {node.name!r}{merged}: {operator}, opset {task.opset}{since}, on inputs "
        f"({inputs}): {said}. Check what feeds the node.",
        node=node.name,
        op_type=node.op_type,
        opset=task.opset,
    )


def _described(value: Value) -> str:
    if hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    return "absent" if value is None else type(value).__name__
