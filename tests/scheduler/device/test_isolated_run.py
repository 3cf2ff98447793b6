"""Runs of models in a process of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx.parser import parse_model

from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.program import Program, RunContext, Value
from hetero.devices.plugin.properties import Config
from hetero.devices.plugin.registry import with_name
from hetero.scheduler.device.isolated_run import run_isolated
from hetero.scheduler.types.isolation import RunBounds, RunFailure
from tests.scheduler.plugins import ToyPlugin

BOUNDS = RunBounds(60, 2**32)
X = np.arange(3, dtype=np.float32)


def negation(node: str = "neg", kind: str = "float") -> Model:
    return read_model(
        parse_model(
            f"""<ir_version: 8, opset_import: ["": 17]>
            negation ({kind}[N] x) => ({kind}[N] y) {{ [{node}] y = Neg(x) }}"""
        )
    )


def only_failure(results: list[Any]) -> RunFailure:
    (failure,) = results
    assert isinstance(failure, RunFailure)
    return failure


@pytest.mark.parametrize("plugin", [CPUPlugin, ToyPlugin, with_name(ToyPlugin, "OTHER")])
def test_each_set_of_inputs_has_outputs(plugin):
    results = run_isolated(plugin, negation(), {}, [{"x": X}, {"x": X[:1]}], BOUNDS)
    for result, expected in zip(results, (-X, -X[:1]), strict=True):
        assert isinstance(result, Mapping)
        np.testing.assert_array_equal(result["y"], expected)


class WarmingUp(CPUPlugin):
    """A plugin whose programs are wrong in their first run."""

    name: ClassVar[str] = "WARMING_UP"

    def compile(self, model: Model, config: Config) -> Program:
        return _Warming(super().compile(model, config))


class _Warming(Program):
    def __init__(self, program: Program) -> None:
        self._program = program
        self._is_warm = False

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        (y,) = self._program.run(inputs, context)
        error = np.float32(0 if self._is_warm else 9)
        self._is_warm = True
        return [y + error]


def test_several_runs_have_first_and_changed_results():
    inputs = [{"x": X}, {"x": X[:1]}]
    results = run_isolated(WarmingUp, negation(), {}, inputs, RunBounds(60, 2**32, num_runs=3))
    for result, expected in zip(results, (9 - X, -X[:1], -X, -X[:1]), strict=True):
        assert isinstance(result, Mapping)
        np.testing.assert_array_equal(result["y"], expected)


def test_crash_ends_the_process_of_the_run_only():
    failure = only_failure(run_isolated(ToyPlugin, negation("die"), {}, [{"x": X}], BOUNDS))
    assert (failure.kind, failure.reason) == ("crash", "its process ended with SIGKILL")
    (result,) = run_isolated(ToyPlugin, negation(), {}, [{"x": X}], BOUNDS)
    assert isinstance(result, Mapping)


def test_error_of_a_run_has_its_message():
    failure = only_failure(run_isolated(ToyPlugin, negation("refuse"), {}, [{"x": X}], BOUNDS))
    assert failure.kind == "error"
    assert "by design" in failure.reason


def test_class_that_the_process_cannot_import_is_unavailable():
    class Local(CPUPlugin):
        name = "LOCAL"

    failure = only_failure(run_isolated(Local, negation(), {}, [{"x": X}], BOUNDS))
    assert failure.kind == "unavailable"
    assert "LOCAL" in failure.reason


def test_arrays_of_another_memory_order_arrive():
    model = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            negation (float[2, 3] x) => (float[2, 3] y) { y = Neg(x) }"""
        )
    )
    x = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    (result,) = run_isolated(ToyPlugin, model, {}, [{"x": x}], BOUNDS)
    assert isinstance(result, Mapping)
    assert result["y"].tolist() == [[0, -1, -2], [-3, -4, -5]]
