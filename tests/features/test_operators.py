"""A model of all operators, split over devices so that each result crosses to another device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import hetero
from hetero.devices.conformance.drawn_cases import OperatorCase
from hetero.devices.kernels.microsoft import MICROSOFT
from tests.support.comparison import assert_close
from tests.support.kernel_oracle import ORT_NEWEST
from tests.support.ml_operators import ML_VERSION
from tests.support.operator_rows import Row
from tests.support.operators import OPERATORS
from tests.support.small_models import value_info


@dataclass(frozen=True)
class Operator:
    """A node of the model: the first case of a row."""

    name: str
    row: Row
    case: OperatorCase

    def inputs(self) -> dict[str, np.ndarray]:
        return {f"{self.name}/{name}": value for name, value in self.case.feeds().items()}

    def outputs(self) -> list[str]:
        return [f"{self.name}/{name}" for name in self.case.outputs]

    def node(self) -> onnx.NodeProto:
        reads = ["" if x is None else f"{self.name}/x{i}" for i, x in enumerate(self.case.inputs)]
        return helper.make_node(
            self.case.op_type,
            reads,
            self.outputs(),
            name=self.name,
            domain=self.case.domain,
            **self.case.attributes,
        )

    def has_numbers_alone(self) -> bool:
        return all(np.isfinite(x).all() for x in self.inputs().values() if x.dtype.kind == "f")


@cache
def operators() -> list[Operator]:
    """Return the operators of the newest opset."""
    found = []
    for number, row in enumerate(OPERATORS):
        for op_type in row.op_types.split() if row.newest == ORT_NEWEST else []:
            opset = max(opset for name, opset in row.versions() if name == op_type)
            found.append(Operator(f"{op_type} {number}", row, next(row.cases(op_type, opset))))
    return found


def model_of(nodes: list[Operator]) -> onnx.ModelProto:
    """Return a model in which a copy reads each output of an operator."""
    copies = [
        helper.make_node("Identity", [output], [f"{output} copy"], name=f"{output} copy")
        for node in nodes
        for output in node.outputs()
    ]
    graph = helper.make_graph(
        [node.node() for node in nodes] + copies,
        "operators",
        [value_info(name, value) for node in nodes for name, value in node.inputs().items()],
        [helper.make_empty_tensor_value_info(copy.output[0]) for copy in copies],
    )
    versions = {"": ORT_NEWEST, "ai.onnx.ml": ML_VERSION, MICROSOFT: 1}
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=11)


def check_outputs(nodes: list[Operator], outputs: Mapping[Any, Any]) -> None:
    for node in nodes:
        expected = node.row.expected_outputs(node.case)
        for name, value in zip(node.outputs(), expected, strict=True):
            assert_close(outputs[f"{name} copy"], value, node.row.rtol, node.row.atol, name)


@pytest.mark.parametrize("device", ["CPU.1", "ORT"])
def test_results_of_all_operators_cross_to_another_device(device):
    nodes = operators()
    model = model_of(nodes)
    inputs = {name: value for node in nodes for name, value in node.inputs().items()}
    with hetero.Core("inprocess", devices={"CPU": 2}) as core:
        support = core.query_model(model, f"HETERO:{device},CPU.0")
        pins = {node.name: support[node.name] for node in nodes}
        copies = {node.name: "CPU.0" for node in model.graph.node if node.name not in pins}
        with core.compile_model(
            model, f"HETERO:{device},CPU.0", affinity=pins | copies
        ) as compiled:
            assert {part.device for part in compiled.subgraphs} == {device, "CPU.0"}
            check_outputs(nodes, compiled(inputs))


@pytest.mark.slow  # OpenVINO compiles 230 operators for five seconds
@pytest.mark.skipif(not find_spec("openvino"), reason="needs OpenVINO")
def test_all_operators_are_right_on_openvino():
    # Notes of the query say that OpenVINO treats NaN and infinities otherwise.
    nodes = [node for node in operators() if node.has_numbers_alone()]
    model = model_of(nodes)
    inputs = {name: value for node in nodes for name, value in node.inputs().items()}
    with hetero.Core("inprocess") as core:
        support = core.query_model(model, "HETERO:OV,CPU")
        assert sum(support[node.name] != "CPU" for node in nodes) > 200
        with core.compile_model(model, "HETERO:OV,CPU") as compiled:
            check_outputs(nodes, compiled(inputs))
