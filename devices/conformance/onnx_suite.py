"""ONNX's backend test suite: its cases in a common form, and their outcomes on a plugin."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from hetero.devices.file_reader import read_regular
from hetero.devices.model.light_models import (
    light_model_inputs,
    light_model_outputs,
    light_model_path,
)
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.request.base_compiled_model import BaseCompiledModel
from hetero.devices.request.device_model import DeviceModel

KINDS: Final = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
#: A compiled model of a device, or of a Core.
AnyCompiledModel = DeviceModel | BaseCompiledModel
#: A refusal needs a message of more characters to count as a reason.
_SHORTEST_REASON: Final = 12


@dataclass(frozen=True, eq=False)
class Case:
    """A case: a model, and sets of inputs with their expected outputs."""

    name: str
    kind: str
    case: TestCase

    def model(self) -> onnx.ModelProto:
        """Return the model."""
        if self.case.model is not None:
            return self.case.model
        if self.kind == "real":
            return onnx.load(light_model_path(self.case.model_name))
        return onnx.load(Path(self.case.model_dir or "", "model.onnx"))

    def data_sets(self, model: onnx.ModelProto) -> list[tuple[list[Any], list[Any]]]:
        """Return sets of inputs and expected outputs, in the order of the ports."""
        if self.case.data_sets is not None:
            return [
                ([_to_array(x) for x in inputs], [_to_array(y) for y in outputs])
                for inputs, outputs in self.case.data_sets
            ]
        if self.kind == "real":
            inputs = list(light_model_inputs(read_model(model)).values())
            return [(inputs, list(light_model_outputs(self.case.model_name)))]
        graph, folders = model.graph, Path(self.case.model_dir or "").glob("test_data_set*")
        return [
            (_read(folder, "input", graph.input), _read(folder, "output", graph.output))
            for folder in sorted(folders)
        ]

    def check(self, proto: onnx.ModelProto, model: Model, compiled: AnyCompiledModel) -> None:
        """Run the compiled model on each set of inputs; AssertionError if outputs differ."""
        for inputs, expected_outputs in self.data_sets(proto):
            # Some cases have data for the initializers too.
            has_ports_only = len(inputs) == len(model.inputs)
            ports = model.inputs if has_ports_only else proto.graph.input
            values = dict(zip([port.name for port in ports], inputs, strict=False))
            results = compiled({port.name: values[port.name] for port in compiled.inputs})
            self.compare(list(results.to_tuple()), expected_outputs)

    def compare(self, outputs: Sequence[Any], expected_outputs: Sequence[Any]) -> None:
        """Compare count, shapes, element types and values like the suite's own runner."""
        if len(outputs) != len(expected_outputs):
            raise AssertionError(f"expected {len(expected_outputs)} outputs, got {len(outputs)}")
        for actual, expected in zip(outputs, expected_outputs, strict=True):
            if not isinstance(expected, list):
                Runner.assert_similar_outputs([expected], [actual], self.case.rtol, self.case.atol)
            elif isinstance(actual, list):
                self.compare(actual, expected)
            else:
                raise AssertionError(f"expected a sequence, got {type(actual).__name__}")


@cache
def backend_cases() -> tuple[Case, ...]:
    """Return all cases in the suite's order; their names are ``kind/name``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite's test data overflow on purpose
        cases = [
            Case(f"{kind}/{case.name}", kind, case)
            for kind in KINDS
            for case in load_model_tests(kind=kind)
        ]
    return tuple(cases)


def outcome(plugin: Plugin, case: Case, config: Mapping[str, Any]) -> str:
    """Run a case on a plugin; return ``passed``, ``refused`` or the error's message."""
    try:
        proto = case.model()
        model = read_model(proto)
        support = plugin.query_model(model)
        if support.unsupported:
            messages = [
                refusal.message
                for refusals in support.unsupported.values()
                for refusal in refusals.values()
            ]
            has_reasons = min(map(len, messages)) > _SHORTEST_REASON
            return "refused" if has_reasons else f"refused without a reason: {messages}"
        compiled = plugin.compile_model(model, config)
        try:
            case.check(proto, model, compiled)
        finally:
            compiled.close()
    except Exception as error:  # every error is a failure of the case
        return f"{type(error).__name__}: {error}"
    return "passed"


def _to_array(value: Any) -> Any:
    """Convert a tensor or a numpy scalar to an array."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _read(folder: Path, prefix: str, ports: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    """Read the values of `ports` from a data set's folder."""
    values: list[Any] = []
    for i in range(len(list(folder.glob(f"{prefix}_*.pb")))):
        data = read_regular(folder / f"{prefix}_{i}.pb", 2**31)
        kind = ports[i].type.WhichOneof("value")
        if kind == "sequence_type":
            values.append(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
        elif kind == "optional_type":
            values.append(numpy_helper.to_optional(onnx.OptionalProto.FromString(data)))
        else:
            values.append(numpy_helper.to_array(onnx.TensorProto.FromString(data)))
    return values
