"""A subgraph without inputs is run once, not with each request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest
from onnx import parser

import hetero
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.light_models import light_model_inputs
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.program import Program, RunContext, Value
from hetero.devices.plugin.properties import Config
from hetero.devices.plugin.support import Refusal

MODEL = parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y, float[3] w) '
    "<float[3] c = {1, 2, 3}> {s = Neg(c) w = Exp(s) y = Mul(x, w)}"
)
RANDOM_MODEL = parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) '
    "{r = RandomNormal<shape = [3]>() e = Exp(r) y = Mul(x, e)}"
)
X = np.array([2, 4, 8], np.float32)


class CountingProgram(Program):
    def __init__(self, program: Program) -> None:
        self._program = program

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        CountingRuns.runs += 1
        return self._program.run(inputs, context)


class CountingRuns(CPUPlugin):
    name: ClassVar[str] = "RUNS"
    runs: ClassVar[int] = 0

    def compile(self, model: Model, config: Config) -> Program:
        return CountingProgram(super().compile(model, config))


@pytest.fixture
def core():
    CountingRuns.runs = 0
    with hetero.Core(executor="inprocess", plugins=[f"{__name__}:CountingRuns"]) as core:
        yield core


def test_constant_subgraph_runs_once(core):
    compiled = core.compile_model(
        MODEL, "HETERO:CPU,RUNS", affinity={"s": "RUNS", "w": "RUNS", "y": "CPU"}
    )
    expected = np.exp(-np.float32([1, 2, 3]))
    for _ in range(5):
        result = compiled({"x": X})
        np.testing.assert_allclose(result["y"], X * expected, rtol=1e-6)
        np.testing.assert_allclose(result["w"], expected, rtol=1e-6)
        result["w"][:] = 0  # results are copies
    assert CountingRuns.runs == 1


def test_random_subgraph_runs_for_each_request(core):
    compiled = core.compile_model(
        RANDOM_MODEL, "HETERO:CPU,RUNS", affinity={"r": "RUNS", "e": "RUNS", "y": "CPU"}
    )
    results = {tuple(compiled({"x": X})["y"]) for _ in range(3)}
    assert (len(results), CountingRuns.runs) == (3, 3)


class WithoutConstantOfShape(CountingRuns):
    """A device without ConstantOfShape, which computes the weights of the light models."""

    name: ClassVar[str] = "PART"

    def transform_model(self, model: Model, config: Config) -> Model:
        return model  # it folds no constants

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        if node.op_type == "ConstantOfShape":
            return Refusal("no_kernel", "this device has no ConstantOfShape")
        return super().refuse(node, model, config)


def test_computed_weights_do_not_cross_with_requests():
    """The weights' subgraph is on the device of the first layer, but does not run with it."""
    with hetero.Core("inprocess", plugins=[f"{__name__}:WithoutConstantOfShape"]) as core:
        model = core.read_model("light:squeezenet")
        first = next(node for node in model.nodes if node.op_type == "Conv")
        compiled = core.compile_model(model, "HETERO:PART,CPU", affinity={first.name: "CPU"})
        weight_nbytes = sum(model.spec(wire.tensor).nbytes for wire in compiled.partition.wires)
        assert weight_nbytes > 4_900_000
        request = compiled.create_infer_request()
        request.infer(light_model_inputs(model))
        story = "\n".join(request.story())
        sizes = [int(nbytes) for nbytes in re.findall(r"returned (\d+) bytes", story)]
        assert sizes == [0, model.spec(first.outputs[0]).nbytes, model.outputs[0].nbytes]
