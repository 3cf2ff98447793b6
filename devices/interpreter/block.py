"""A block: one graph (main graph, body or function) as steps over numbered slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
import onnx

from hetero.devices.errors import HeteroError, KernelError
from hetero.devices.interpreter.backend import ArrayBackend
from hetero.devices.interpreter.body_outputs import BodyOutput, body_outputs
from hetero.devices.interpreter.delegate import delegate
from hetero.devices.interpreter.implementations import Implementation, Scope, find_implementation
from hetero.devices.kernels import Kernel
from hetero.devices.model.attributes import attribute_value
from hetero.devices.model.constant_nodes import constant_node_value
from hetero.devices.model.functions import function_key, instantiate
from hetero.devices.model.model import Node
from hetero.devices.model.tensor_proto import dense_array, tensor_array
from hetero.devices.plugin.program import RunContext, Value
from hetero.devices.plugin.support import Refusal

#: Runs one node: reads its inputs from the slots, writes its outputs there, clears slots.
Step = Callable[[list[Value], RunContext], None]

#: The slot of absent optional inputs; it always holds None.
_ABSENT: Final = 0


class Slots(NamedTuple):
    """The slots that a node reads, writes, and clears because no later node reads them."""

    reads: tuple[int, ...]
    writes: tuple[int | None, ...]
    clears: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """A node, its implementation, and its slots."""

    node: Node
    implementation: Implementation
    opset: int
    slots: Slots


@dataclass(eq=False, slots=True)
class Block:
    """A graph ready to run, re-entrant: each run has its own slots."""

    #: The nodes in execution order.
    tasks: Sequence[Task]
    #: One function per task that runs it.
    steps: Sequence[Step]
    #: The slots at the start of a run: constants in place, None elsewhere.
    template: list[Value]
    #: The inputs' slots and, after them, those of the graph's captures.
    input_slots: Sequence[int]
    output_slots: Sequence[int]
    #: Positions of the inputs that only the host reads.
    host_inputs: frozenset[int]
    #: Waits for the work that this thread started on the device.
    finish: Callable[[], None]

    def release(self) -> None:
        """Drop every constant; the block cannot run again."""
        self.steps = ()
        self.template = []

    def run(
        self, inputs: Sequence[Value], context: RunContext, *, profile: bool = False
    ) -> list[Value]:
        """Compute the outputs from the graph's inputs and, after them, its captures.

        Between nodes the run checks the context for cancellation. `profile` records each node's
        time in the context.
        """
        values = self.template.copy()
        for slot, value in zip(self.input_slots, inputs, strict=True):
            values[slot] = value
        check = context.check_cancelled
        i = 0
        try:
            for i, step in enumerate(self.steps):
                check()
                start = perf_counter() if profile else 0.0
                step(values, context)
                if profile:
                    self.finish()
                    context.record(self.tasks[i].node.name, perf_counter() - start)
        except (HeteroError, MemoryError):
            raise
        except Exception as error:
            raise _kernel_error(self.tasks[i], values, error) from error
        return [values[slot] for slot in self.output_slots]


class _Body(NamedTuple):
    """The graph of a control flow node, compiled and as written."""

    block: Block
    graph: onnx.GraphProto
    #: Outer values that the body reads -> their slots outside; without its `constants`.
    captures: Mapping[str, int]
    #: Outer constants that the block holds itself.
    constants: Mapping[str, np.ndarray]
    scope: Scope


class _Closure:
    """A body with its captured values: a function of its own inputs."""

    def __init__(self, body: _Body, values: Sequence[Value], context: RunContext) -> None:
        self._body = body
        self._captured = [values[slot] for slot in body.captures.values()]
        self._context = context

    def __call__(self, *inputs: Value) -> tuple[Value, ...]:
        self._context.check_cancelled()  # a body may have no nodes, between which a run stops
        return tuple(self._body.block.run([*inputs, *self._captured], self._context))

    def outputs(self, *inputs: Value) -> list[BodyOutput]:
        """Return the element type and shape of each output."""
        _, graph, captures, constants, scope = self._body
        values = [*inputs, *self._captured, *constants.values()]
        return body_outputs(graph, (*captures, *constants), values, scope)


class _SlotTable:
    """Numbers the values of a graph.

    A constant has one slot for the host's memory and one for the device's, filled on first use.
    """

    def __init__(self, constants: Mapping[str, np.ndarray], backend: ArrayBackend) -> None:
        self.template: list[Value] = [None]
        self._constants = constants
        self._backend = backend
        self._slots = {("", False): _ABSENT}

    def slot(self, value: str, on_host: bool = False) -> int:
        """Return the number of a value's slot."""
        array = self._constants.get(value)
        key = value, on_host and array is not None
        if key not in self._slots:
            self._slots[key] = len(self.template)
            if array is not None:
                array = read_only(array) if on_host else self._backend.upload(read_only(array))
            self.template.append(array)
        return self._slots[key]


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
    # A body's initializer that is also an input is only its default.
    fixed = {name: array for name, array in constants.items() if name not in inputs}
    fixed |= {node.outputs[0]: constant_node_value(node) for node in nodes if node.is_constant}
    nodes = [node for node in nodes if not node.is_constant]
    implementations = [_implementation(node, scope) for node in nodes]
    host_values = scope.backend.host_values(nodes, fixed)
    # A node whose results belong on the host runs there, and reads its inputs there.
    on_host = [not host_values.isdisjoint(node.writes) for node in nodes]
    reads = [
        [(name, host or code.reads_on_host(i)) for i, name in enumerate(_trim(node.inputs))]
        for node, code, host in zip(nodes, implementations, on_host, strict=True)
    ]
    last_reader = {value: i for i, node in enumerate(nodes) for value in node.reads}
    lasting = {*outputs, *fixed}
    table = _SlotTable(fixed, scope.backend)
    tasks, steps = [], []
    for i, node in enumerate(nodes):
        unread = [value for value in node.writes if value not in last_reader]
        last = [value for value in node.reads if last_reader[value] == i]
        clears = dict.fromkeys(value for value in (*last, *unread) if value not in lasting)
        slots = Slots(
            tuple(table.slot(name, host) for name, host in reads[i]),
            tuple(table.slot(name) if name else None for name in _trim(node.outputs)),
            tuple(table.slot(value) for value in clears),
        )
        task = Task(node, implementations[i], scope.opset(node.domain), slots)
        tasks.append(task)
        steps.append(_step(task, table, fixed, scope, on_host[i]))
    device_values = {*outputs, *(name for node in nodes for name in node.captures)}
    device_values |= {name for inputs_of in reads for name, host in inputs_of if not host}
    return Block(
        tasks,
        steps,
        table.template,
        input_slots=[table.slot(name) for name in inputs],
        output_slots=[table.slot(name) for name in outputs],
        host_inputs=frozenset(i for i, name in enumerate(inputs) if name not in device_values),
        finish=scope.backend.finish,
    )


def read_only(array: np.ndarray) -> np.ndarray:
    """Return the array, or a view of it that cannot be written to."""
    if array.flags.writeable:
        array = array.view()
        array.setflags(write=False)
    return array


def _implementation(node: Node, scope: Scope) -> Implementation:
    result = find_implementation(node, scope)
    if isinstance(result, Refusal):
        raise KernelError(
            f"node {node.name!r} ({node.op_type}): {result}",
            node=node.name,
            op_type=node.op_type,
            opset=scope.opset(node.domain),
        )
    return result


def _trim(names: Sequence[str]) -> tuple[str, ...]:
    """Return names without the empty ones at the end."""
    count = len(names)
    while count and not names[count - 1]:
        count -= 1
    return tuple(names[:count])


def _step(
    task: Task,
    table: _SlotTable,
    constants: Mapping[str, np.ndarray],
    scope: Scope,
    on_host: bool,
) -> Step:
    """Return the function that runs a task; `on_host`: with numpy, whatever the device."""
    node, slots = task.node, task.slots
    if task.implementation.kind == "function":
        return _function_step(task.implementation.definition, node, slots, scope)
    if task.implementation.kind == "delegate":
        call = scope.backend.function(delegate(node, task.opset), {}, on_host)
        return _call_step(call, slots, {})
    kernel: Kernel = task.implementation.definition
    bodies: dict[str, _Body] = {}
    attributes: dict[str, Any] = {}
    for attribute in node.proto.attribute:
        if attribute.HasField("g"):
            bodies[attribute.name] = _body(attribute.g, table, constants, scope)
        else:
            attributes[attribute.name] = attribute_value(attribute)
    reserved = {"memo": {}, "n_outputs": len(slots.writes), "version": task.opset}
    attributes |= {name: reserved[name] for name in kernel.reserved}
    return _call_step(scope.backend.function(kernel, attributes, on_host), slots, bodies)


def _body(
    graph: onnx.GraphProto,
    table: _SlotTable,
    outer_constants: Mapping[str, np.ndarray],
    scope: Scope,
) -> _Body:
    """Compile the body of a control flow node; on the host it holds outer constants itself."""
    holder = onnx.NodeProto()
    holder.attribute.add(name="body", type=onnx.AttributeProto.GRAPH).g.CopyFrom(graph)
    captures = Node.from_proto(holder).captures
    shared = {}
    if scope.backend.is_on_host:
        shared = {name: outer_constants[name] for name in captures if name in outer_constants}
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
    return _Body(block, graph, {name: table.slot(name) for name in outer}, shared, scope)


def _call_step(call: Callable[..., Any], slots: Slots, bodies: Mapping[str, _Body]) -> Step:
    """Return the step of a kernel; its bodies capture the outer values at the time of the call."""
    reads, writes, clears = slots

    def step(values: list[Value], context: RunContext) -> None:
        closures = {name: _Closure(body, values, context) for name, body in bodies.items()}
        _store(values, writes, call(*[values[slot] for slot in reads], **closures))
        for slot in clears:
            values[slot] = None

    return step


def _function_step(function: onnx.FunctionProto, node: Node, slots: Slots, scope: Scope) -> Step:
    """Return the step that calls a function on the node's inputs, absent ones None."""
    reads, writes, clears = slots
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
        # Functions may call one another; a block is built once for all equal calls.
        if key[0] in scope.functions:
            scope.blocks[key] = block
    padding = [None] * (len(function.input) - len(reads))

    def step(values: list[Value], context: RunContext) -> None:
        inputs = [values[slot] for slot in reads]
        _store(values, writes, tuple(block.run([*inputs, *padding], context)))
        for slot in clears:
            values[slot] = None

    return step


def _as_value(result: Any) -> Value:
    """Return one result of a kernel as a value; scalars become arrays of rank 0."""
    if isinstance(result, np.generic):
        return np.asarray(result)
    return np.asarray(result, object) if isinstance(result, str | bytes) else result


def _store(values: list[Value], writes: tuple[int | None, ...], result: Any) -> None:
    """Write a kernel's results to the slots of the node's outputs."""
    results = result if isinstance(result, tuple) else (result,)
    if len(results) < len(writes):
        raise ValueError(f"the node names {len(writes)} outputs; the kernel returns {len(results)}")
    for slot, value in zip(writes, results, strict=False):
        if slot is not None:
            values[slot] = _as_value(value)


def _kernel_error(task: Task, values: list[Value], error: Exception) -> KernelError:
    """Return an error that names the node, its inputs' types and shapes, and the reason."""
    node = task.node
    operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    inputs = ", ".join(_describe(values[slot]) for slot in task.slots.reads)
    merged = f", merged from {', '.join(node.covers)}" if node.covers != (node.name,) else ""
    reason = str(error) or type(error).__name__
    kernel = task.implementation.definition
    since = f" (kernel since {kernel.since})" if isinstance(kernel, Kernel) else ""
    return KernelError(
        f"node {node.name!r}{merged}: {operator}, opset {task.opset}{since}, on inputs "
        f"({inputs}): {reason}. Check the nodes and inputs that feed it.",
        node=node.name,
        op_type=node.op_type,
        opset=task.opset,
    )


def _describe(value: Value) -> str:
    if hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    return "absent" if value is None else type(value).__name__
