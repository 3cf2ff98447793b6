"""Random networks of image operators, with static or open sizes.

The table of operators has their element-wise operators and attributes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.operators import PAD_MODES, elementwise_operators

CHANNELS = 4
SIZE = 9
#: Element-wise operators with their attributes, and those along the last axis.
UNARY: Final[Sequence[tuple[str, dict[str, object]]]] = (
    *elementwise_operators(),
    ("Softmax", {}),
    ("LogSoftmax", {}),
    ("Identity", {}),
)
REDUCTIONS: Final = ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2", "ReduceMin")


class RandomNetwork:
    """Random network over images of shape [N, 4, H, W].

    Operators that change the size are followed by ones that accept any size, and values of
    different shapes are never combined.
    """

    def __init__(self, seed: int, num_nodes: int) -> None:
        self.dice = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.is_open = self.dice.random() < 0.5
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.count = 0
        #: Values, with the number of the group of equal shapes.
        self.values: list[tuple[str, int]] = [("x", 0)]
        self.groups = 1
        steps: Sequence[Callable[[], None]] = (
            self.convolution,
            self.convolution,
            self.transposed_convolution,
            self.pool,
            self.unary,
            self.unary,
            self.normalization,
            self.binary,
            self.binary,
            self.quantization,
            self.permuted_channels,
            self.reduction,
            self.resize,
            self.transposition,
            self.padding,
            self.matmul,
        )
        while len(self.nodes) < num_nodes:
            self.dice.choice(steps)()

    def model(self) -> onnx.ModelProto:
        """Return the network; its outputs are one to three of the values."""
        names = [name for name, _ in self.values[1:]]
        outputs = {names[-1], *self.dice.sample(names, min(len(names), self.dice.randint(0, 2)))}
        shape = ["N", CHANNELS, "H", "W"] if self.is_open else [2, CHANNELS, SIZE, SIZE]
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(o, TensorProto.FLOAT, [None] * 4) for o in outputs],
            self.constants,
        )
        imports = [helper.make_opsetid("", 20)]
        return helper.make_model(graph, opset_imports=imports, ir_version=9)

    def inputs(self, size: int = SIZE) -> dict[str, np.ndarray]:
        """Return an input; `size` counts only if sizes are open."""
        side = size if self.is_open else SIZE
        return {"x": self.rng.standard_normal((2, CHANNELS, side, side)).astype(np.float32)}

    def pick(self) -> tuple[str, int]:
        return self.dice.choice(self.values[-4:])

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(self, *shape: int) -> str:
        return self.constant((self.rng.standard_normal(shape) / 3).astype(np.float32))

    def add(self, op_type: str, *inputs: str, **attributes: object) -> str:
        self.count += 1
        name = f"v{self.count}"
        self.nodes.append(
            helper.make_node(op_type, list(inputs), [name], name=f"{op_type}{name}", **attributes)
        )
        return name

    def keep(self, name: str, group: int | None = None) -> None:
        """Add a value; without a group, its shape is new."""
        if group is None:
            group, self.groups = self.groups, self.groups + 1
        self.values.append((name, group))

    def convolution(self) -> None:
        value, group = self.pick()
        kernel = self.dice.choice([1, 3])
        inputs = [value, self.weights(CHANNELS, CHANNELS, kernel, kernel)]
        if self.dice.random() < 0.5:
            inputs.append(self.weights(CHANNELS))
        if kernel == 1:
            self.keep(self.add("Conv", *inputs), group)
        elif self.dice.random() < 0.5:
            self.keep(self.add("Conv", *inputs, auto_pad="SAME_LOWER"), group)
        else:
            self.keep(self.add("Conv", *inputs, pads=[1, 1, 1, 1]), group)

    def transposed_convolution(self) -> None:
        value, group = self.pick()
        weights = self.weights(CHANNELS, CHANNELS, 3, 3)
        self.keep(self.add("ConvTranspose", value, weights, pads=[1, 1, 1, 1]), group)

    def pool(self) -> None:
        value, _ = self.pick()
        op_type = self.dice.choice(["MaxPool", "AveragePool"])
        attributes: dict[str, object] = {"kernel_shape": [2, 2], "strides": [1, 1]}
        if self.dice.random() < 0.5:
            attributes["pads"] = [0, 1, 1, 0]
        if self.dice.random() < 0.3:
            attributes |= {"ceil_mode": 1, "pads": [1, 1, 1, 1]}
        if op_type == "AveragePool" and self.dice.random() < 0.5:
            attributes["count_include_pad"] = 1
        self.keep(self.add(op_type, value, **attributes))

    def unary(self) -> None:
        value, group = self.pick()
        op_type, attributes = self.dice.choice(UNARY)
        self.keep(self.add(op_type, value, **attributes), group)

    def normalization(self) -> None:
        value, group = self.pick()
        scale, bias = self.weights(CHANNELS), self.weights(CHANNELS)
        if self.dice.random() < 0.5:
            self.keep(self.add("InstanceNormalization", value, scale, bias), group)
        else:
            variance = self.constant(self.rng.random(CHANNELS).astype(np.float32) + 0.5)
            mean = self.weights(CHANNELS)
            self.keep(self.add("BatchNormalization", value, scale, bias, mean, variance), group)

    def binary(self) -> None:
        value, group = self.pick()
        op_type = self.dice.choice(("Add", "Sub", "Mul", "Max", "Min", "PRelu"))
        others = [name for name, other in self.values if other == group]
        if op_type == "PRelu" or self.dice.random() < 0.5:
            other = self.weights(CHANNELS, 1, 1)
        else:
            other = self.dice.choice(others)
        pair = [value, other] if op_type == "PRelu" or self.dice.random() < 0.5 else [other, value]
        self.keep(self.add(op_type, *pair), group)

    def quantization(self) -> None:
        value, group = self.pick()
        dtype = self.dice.choice([np.uint8, np.int8])
        zero = self.constant(np.array(self.dice.randint(0, 9), dtype))
        scale = self.constant(np.array(self.dice.choice([0.1, 0.03]), np.float32))
        integers = self.add("QuantizeLinear", value, scale, zero)
        self.keep(self.add("DequantizeLinear", integers, scale, zero), group)

    def permuted_channels(self) -> None:
        value, group = self.pick()
        order = self.constant(self.rng.permutation(CHANNELS))
        self.keep(self.add("Gather", value, order, axis=1), group)

    def reduction(self) -> None:
        value, group = self.pick()
        op_type = self.dice.choice(REDUCTIONS)
        axes = self.constant(np.array(self.dice.choice([[1], [2, 3], [-1]])))
        reduced = self.add(op_type, value, axes, keepdims=1)
        self.keep(self.add(self.dice.choice(["Sub", "Add"]), value, reduced), group)

    def resize(self) -> None:
        value, _ = self.pick()
        scales = self.constant(np.array([1, 1, 2, 2], np.float32))
        mode = self.dice.choice(["nearest", "linear"])
        large = self.add("Resize", value, "", scales, mode=mode)
        self.keep(self.add("MaxPool", large, kernel_shape=[2, 2], strides=[2, 2]))

    def transposition(self) -> None:
        value, group = self.pick()
        moved = self.add("Transpose", value, perm=[0, 2, 3, 1])
        moved = self.add(self.dice.choice(["Relu", "Softmax", "Tanh"]), moved)
        self.keep(self.add("Transpose", moved, perm=[0, 3, 1, 2]), group)

    def padding(self) -> None:
        value, _ = self.pick()
        pads = self.constant(np.array([0, 0, 1, 0, 0, 0, 0, 1]))
        mode = self.dice.choice(PAD_MODES["mode"])
        self.keep(self.add("Pad", value, pads, mode=mode))

    def matmul(self) -> None:
        value, group = self.pick()
        moved = self.add("Transpose", value, perm=[0, 2, 3, 1])
        moved = self.add("MatMul", moved, self.weights(CHANNELS, CHANNELS))
        self.keep(self.add("Transpose", moved, perm=[0, 3, 1, 2]), group)
