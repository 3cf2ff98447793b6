"""ONNX's backend suite: its cases in one form, and how a plugin does on one."""

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

from hetero.devices.model.light_models import (
    light_model_inputs,
    light_model_outputs,
    light_model_path,
)
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.request.base_compiled_model import BaseCompiledModel
from hetero.devices.request.compiled_model import CompiledModel

KINDS: Final = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
#: What a case is run on: a device's model, or a Core's.
Runs = CompiledModel | BaseCompiledModel
#: A reason of fewer characters tells nothing.
_SHORTEST_REASON: Final = 12


@dataclass(frozen=True, eq=False)
class Case:
    """One case: a model and sets of inputs with the outputs that they should give."""

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
        """Return sets of inputs and outputs, in the order of the ports."""
        if self.case.data_sets is not None:
            return [
                ([_plain(x) for x in inputs], [_plain(y) for y in outputs])
                for inputs, outputs in self.case.data_sets
            ]
        if self.kind == "real":
            given = list(light_model_inputs(read_model(model)).values())
            return [(given, list(light_model_outputs(self.case.model_name)))]
        graph, folders = model.graph, Path(self.case.model_dir or "").glob("test_data_set*")
        return [
            (_read(folder, "input", graph.input), _read(folder, "output", graph.output))
            for folder in sorted(folders)
        ]

    def check(self, proto: onnx.ModelProto, model: Model, compiled: Runs) -> None:
        """Run the compiled model on each set of inputs; AssertionError if outputs are others."""
        for inputs, wanted in self.data_sets(proto):
            # Some cases give data for the initializers too.
            own = len(inputs) == len(model.inputs)
            names = [port.name for port in (model.inputs if own else proto.graph.input)]
            given = dict(zip(names, inputs, strict=False))
            results = compiled({port.name: given[port.name] for port in compiled.inputs})
            self.compare(list(results.to_tuple()), wanted)

    def compare(self, outputs: Sequence[Any], wanted: Sequence[Any]) -> None:
        """Compare as the suite itself does: count, shape, element type, values."""
        if len(outputs) != len(wanted):
            raise AssertionError(f"{len(outputs)} outputs, not {len(wanted)}")
        for got, want in zip(outputs, wanted, strict=True):
            if not isinstance(want, list):
                Runner.assert_similar_outputs([want], [got], self.case.rtol, self.case.atol)
            elif isinstance(got, list):
                self.compare(got, want)
            else:
                raise AssertionError(f"{type(got).__name__}, not a sequence")


@cache
def backend_cases() -> tuple[Case, ...]:
    """Return every case, in the suite's order; names are ``kind/name``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite overflows on purpose while it makes data
        found = [
            Case(f"{kind}/{case.name}", kind, case)
            for kind in KINDS
            for case in load_model_tests(kind=kind)
        ]
    return tuple(found)


def outcome(plugin: Plugin, case: Case, config: Mapping[str, Any]) -> str:
    """Return ``refused``, ``passed`` or what went wrong, whatever it was."""
    try:
        proto = case.model()
        model = read_model(proto)
        support = plugin.query_model(model)
        if support.unsupported:
            said = [r.message for by in support.unsupported.values() for r in by.values()]
            reasoned = min(map(len, said)) > _SHORTEST_REASON
            return "refused" if reasoned else f"refused without a reason: {said}"
        compiled = plugin.compile_model(model, config)
        try:
            case.check(proto, model, compiled)
        finally:
            compiled.close()
    except Exception as error:  # a miss is any way not to pass
        return f"{type(error).__name__}: {error}"
    return "passed"


def _plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _read(folder: Path, prefix: str, ports: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    values: list[Any] = []
    for i in range(len(list(folder.glob(f"{prefix}_*.pb")))):
        data = (folder / f"{prefix}_{i}.pb").read_bytes()
        kind = ports[i].type.WhichOneof("value")
        if kind == "sequence_type":
            values.append(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
        elif kind == "optional_type":
            values.append(numpy_helper.to_optional(onnx.OptionalProto.FromString(data)))
        else:
            values.append(numpy_helper.to_array(onnx.TensorProto.FromString(data)))
    return values
