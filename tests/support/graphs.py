"""Small models built from lines of text, and random models from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from tests.support.operators import STEPS, elementwise_operators

OPSET = 21
SHAPE = (3,)
#: Without functions that have steps, because results of two devices are compared.
UNARY: Sequence[tuple[str, Mapping[str, object]]] = [
    ("Identity", {}),
    *((name, attributes) for name, attributes in elementwise_operators() if name not in STEPS),
]


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)


def build(
    lines: str, *, outputs: str, inputs: str = "x", constants: str = "", literals: str = ""
) -> Model:
    """Build a model of float vectors from lines such as ``add1: p1 = Add(x, c)``.

    `constants` are initializers, `literals` are `Constant` nodes; all names separated by spaces.
    """
    nodes = [literal(name) for name in literals.split()]
    for line in lines.strip().splitlines():
        left, right = line.split("=")
        name, _, writes = left.rpartition(":")
        op, _, read = right.strip().rstrip(")").partition("(")
        reads = [r.strip() for r in read.split(",")] if read.strip() else []
        nodes.append(
            helper.make_node(op, reads, [w.strip() for w in writes.split(",")], name=name.strip())
        )
    return read_model(
        proto(
            nodes,
            [value(i) for i in inputs.split()],
            [value(o) for o in outputs.split()],
            [initializer(name, i) for i, name in enumerate(constants.split())],
        )
    )


def proto(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def initializer(name: str, seed: int) -> onnx.TensorProto:
    numbers = np.linspace(-1, 1, 3, dtype=np.float32) + np.float32(seed) / 7
    return numpy_helper.from_array(numbers, name)


def literal(name: str) -> onnx.NodeProto:
    tensor = initializer(name, len(name))
    return helper.make_node("Constant", [], [name], name=f"make_{name}", value=tensor)


def random_affinity(model: Model, devices: Sequence[str], seed: int) -> dict[str, str]:
    dice = random.Random(seed)
    return {name: dice.choice(devices) for name in model.node_names}


def feeds(model: Model, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {port.name: rng.standard_normal(SHAPE).astype(np.float32) for port in model.inputs}


def evaluate(model: Model, inputs: Mapping[str, object]) -> list[object]:
    """Run a model in ONNX Runtime without optimisations, so that it computes every node."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.to_bytes(), options, providers=["CPUExecutionProvider"]
    )
    names = {port.name for port in session.get_inputs()}
    results: list[object] = session.run(None, {k: v for k, v in inputs.items() if k in names})
    return results


class RandomGraph:
    """Random model of float vectors, with every structure that makes partitioning hard."""

    def __init__(self, seed: int, size: int) -> None:
        self.dice = random.Random(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs = [f"in{i}" for i in range(self.dice.randint(1, 3))]
        self.initializers = [f"w{i}" for i in range(self.dice.randint(0, 2))]
        self.literals = [f"k{i}" for i in range(self.dice.randint(0, 2))]
        self.nodes += [literal(name) for name in self.literals]
        self.values = [*self.inputs, *self.initializers, *self.literals]
        self.sequences: list[str] = []
        self.count = 0
        growers = (
            self.unary,
            self.unary,
            self.binary,
            self.binary,
            self.binary,
            self.clip,
            self.split,
            self.branch,
            self.loop,
            self.scan,
            self.sequence,
        )
        for _ in range(size):
            self.dice.choice(growers)()

    def model(self) -> Model:
        computed = [v for node in self.nodes for v in node.output if v in self.values]
        outputs = self.dice.sample(computed, min(len(computed), self.dice.randint(1, 3)))
        # These may be inputs, constants, or duplicates of other outputs.
        outputs += self.dice.choices(self.values, k=self.dice.randint(0, 2))
        if not outputs:
            outputs = [self.inputs[0]]
        extra = f"unused{self.count}"  # an input and an initializer that nothing reads
        return read_model(
            proto(
                self.nodes,
                [value(i) for i in [*self.inputs, extra]],
                [value(o) for o in outputs],
                [initializer(w, i) for i, w in enumerate([*self.initializers, "unread"])],
            )
        )

    def pick(self) -> str:
        late = self.values[-6:]
        return self.dice.choice(late if self.dice.random() < 0.6 else self.values)

    def new(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def add(
        self, op: str, reads: Sequence[str], writes: Sequence[str], **attributes: object
    ) -> None:
        """Add a node: with a name of its own, without a name, or with a duplicate name."""
        name = self.dice.choice([f"node {len(self.nodes)}", "", "twin"])
        self.nodes.append(helper.make_node(op, reads, writes, name=name, **attributes))

    def unary(self) -> None:
        """Add an element-wise operator of the table, or a copy."""
        op_type, attributes = self.dice.choice(UNARY)
        self.add(op_type, [self.pick()], [self.new()], **attributes)
        self.values.append(f"v{self.count}")

    def binary(self) -> None:
        op = self.dice.choice(["Add", "Sub", "Max"])
        self.add(op, [self.pick(), self.pick()], [self.new()])
        self.values.append(f"v{self.count}")

    def clip(self) -> None:
        """Add a Clip with an absent optional input before a present one."""
        bound, result = self.new(), self.new()
        self.add("ReduceMax", [self.pick()], [bound], keepdims=0)
        self.add("Clip", [self.pick(), "", bound], [result])
        self.values.append(result)

    def split(self) -> None:
        """Add a Split with two outputs, of which one or none is read."""
        first, second, result = self.new(), self.new(), self.new()
        self.add("Split", [self.pick()], [first, second], axis=0, num_outputs=2)
        self.add("Add", [self.dice.choice([self.pick()]), second], [result])
        self.values.append(result)

    def branch(self) -> None:
        """Add an If whose branches read outer values, and a constant if the model has any."""
        total, condition, result = self.new(), self.new(), self.new()
        self.add("ReduceSum", [self.pick()], [total], keepdims=0)
        self.add("Cast", [total], [condition], to=TensorProto.BOOL)
        bodies = []
        for op in ("Add", "Sub"):
            inner = f"{result}_{op}"
            node = helper.make_node(op, [self.pick(), self.dice.choice(self.values)], [inner])
            bodies.append(helper.make_graph([node], op, [], [value(inner)]))
        self.add("If", [condition], [result], then_branch=bodies[0], else_branch=bodies[1])
        self.values.append(result)

    def loop(self) -> None:
        result, trips = self.new(), self.new()
        self.nodes.append(
            helper.make_node("Constant", [], [trips], value_int=self.dice.randint(0, 2))
        )
        step, go, state, next_state, done = (f"{result}_{i}" for i in range(5))
        body = helper.make_graph(
            [
                helper.make_node("Add", [state, self.pick()], [f"{result}_t"]),
                helper.make_node("Tanh", [f"{result}_t"], [next_state]),
                helper.make_node("Identity", [go], [done]),
            ],
            "body",
            [
                helper.make_tensor_value_info(step, TensorProto.INT64, ()),
                helper.make_tensor_value_info(go, TensorProto.BOOL, ()),
                value(state),
            ],
            [helper.make_tensor_value_info(done, TensorProto.BOOL, ()), value(next_state)],
        )
        self.add("Loop", [trips, "", self.pick()], [result], body=body)
        self.values.append(result)

    def scan(self) -> None:
        result = self.new()
        item, out, outer = f"{result}_i", f"{result}_o", self.pick()
        body = helper.make_graph(
            [
                helper.make_node("ReduceMin", [outer], [f"{result}_m"], keepdims=0),
                helper.make_node("Add", [item, f"{result}_m"], [out]),
            ],
            "body",
            [helper.make_tensor_value_info(item, TensorProto.FLOAT, ())],
            [helper.make_tensor_value_info(out, TensorProto.FLOAT, ())],
        )
        self.add("Scan", [self.pick()], [result], body=body, num_scan_inputs=1)
        self.values.append(result)

    def sequence(self) -> None:
        """Add a sequence that may cross between subgraphs, and a node that reads one element."""
        result, place, items = self.new(), self.new(), self.new()
        if not self.sequences or self.dice.random() < 0.6:
            self.add("SequenceConstruct", [self.pick(), self.pick()], [items])
            self.sequences.append(items)
        self.nodes.append(helper.make_node("Constant", [], [place], value_int=1))
        self.add("SequenceAt", [self.dice.choice(self.sequences), place], [result])
        self.values.append(result)


def random_model(seed: int, size: int) -> Model:
    """Return the random model with this seed and about `size` nodes."""
    return RandomGraph(seed, size).model()
