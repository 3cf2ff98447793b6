"""Tests that a subgraph without inputs is run once, not with each request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import pytest
from onnx import parser

import hetero
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Program, RunContext, Value
from hetero.devices.plugin.properties import Config

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
def core() -> Iterator[hetero.Core]:
    CountingRuns.runs = 0
    with hetero.Core(executor="inprocess", plugins=[f"{__name__}:CountingRuns"]) as core:
        yield core


def test_constant_subgraph_runs_once(core: hetero.Core) -> None:
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


def test_random_subgraph_runs_for_each_request(core: hetero.Core) -> None:
    compiled = core.compile_model(
        RANDOM_MODEL, "HETERO:CPU,RUNS", affinity={"r": "RUNS", "e": "RUNS", "y": "CPU"}
    )
    results = {tuple(compiled({"x": X})["y"]) for _ in range(3)}
    assert (len(results), CountingRuns.runs) == (3, 3)
