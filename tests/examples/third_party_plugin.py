"""A complete third-party plugin: a device that runs dense layers with numpy."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from devices import Config, Model, Node, Plugin, Program, Refusal, RunContext, Value

#: Operator -> what computes it, from its inputs.
OPERATORS: dict[str, Callable[..., Value]] = {
    "Add": np.add,
    "MatMul": np.matmul,
    "Mul": np.multiply,
    "Relu": lambda x: np.maximum(x, 0),
    "Sub": np.subtract,
    "Tanh": np.tanh,
}


class DenseProgram(Program):
    """Runs a model node by node."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Compute the outputs, one array a port."""
        values = {name: weight.array for name, weight in self.model.constants.items()}
        values |= {port.name: value for port, value in zip(self.model.inputs, inputs, strict=True)}
        for node in self.model.nodes:
            context.check_cancelled()
            operator = OPERATORS[node.op_type]
            values[node.outputs[0]] = operator(*(values[name] for name in node.inputs))
        return [values[port.name] for port in self.model.outputs]


class DensePlugin(Plugin):
    """The device ``DENSE``: float32 layers of multi-layer perceptrons."""

    name: ClassVar[str] = "DENSE"

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        """Say why a node is not taken: another operator, or another element type."""
        if node.op_type not in OPERATORS or model.opset_imports[""] < 7:
            return Refusal("no_kernel", f"DENSE has no {node.op_type}; it has {sorted(OPERATORS)}")
        for value in node.reads:
            if model.spec(value).element_type != "float":
                return Refusal("dtype", f"DENSE computes in float32; {value} is not")
        return None

    def compile(self, model: Model, config: Config) -> Program:
        """Keep the model: it is run as it is."""
        return DenseProgram(model)
