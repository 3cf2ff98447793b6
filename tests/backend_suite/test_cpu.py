"""ONNX's backend suite on the CPU device; `misses_cpu.txt` lists what it does not pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from devices.cpu.plugin import CPUPlugin
from devices.model_reader import read_model
from tests.backend_suite.cases import Case, backend_cases
from tests.backend_suite.misses import read_misses

MISSES = read_misses(Path(__file__).with_name("misses_cpu.txt"))


def run(model: onnx.ModelProto, inputs: list[Any]) -> list[Any]:
    """Run a model once on the CPU device."""
    return list(CPUPlugin().compile_model(read_model(model)).run(inputs))


@pytest.mark.parametrize("case", backend_cases(), ids=lambda case: case.name)
def test_case(case: Case) -> None:
    passed = False
    try:
        model = case.model()
        for inputs, wanted in case.data_sets(model):
            case.compare(run(model, inputs), wanted)
        passed = True
    except Exception:
        if case.name not in MISSES:
            raise
    assert not passed or case.name not in MISSES, f"{case.name} passes: take it off the list"


def test_every_miss_is_a_case() -> None:
    assert not MISSES.keys() - {case.name for case in backend_cases()}


def test_enough_cases_pass() -> None:
    assert len(backend_cases()) - len(MISSES) >= 2015
