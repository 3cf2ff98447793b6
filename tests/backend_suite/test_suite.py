"""ONNX's backend suite through `hetero.backend`: on CPU, and split at random over ORT and CPU.

`expected_failures_cpu.txt` and `expected_failures_hetero.txt` list cases that fail, with reasons.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

import onnx
import pytest

import hetero.backend
from hetero.devices.conformance.onnx_suite import Case, backend_cases
from tests.backend_suite.expected_failures import may_pass, read_expected_failures
from tests.support.random_affinity import random_affinity

FOLDER = Path(__file__).parent
EXPECTED_FAILURES = {
    device: read_expected_failures(FOLDER / f"expected_failures_{name}.txt")
    for device, name in (("CPU", "cpu"), ("HETERO:ORT,CPU", "hetero"))
}


def run_on_cpu(case: Case, model: onnx.ModelProto, inputs: list[Any]) -> list[Any]:
    """Run a model once on the CPU device."""
    return list(hetero.backend.run_model(model, inputs, "CPU"))


def run_split(case: Case, model: onnx.ModelProto, inputs: list[Any]) -> list[Any]:
    """Run a model with a random device for each node that both devices support."""
    core = hetero.shared_core.shared_core("inprocess")
    source = core.read_model(model)
    seed = crc32(case.name.encode())
    pins = random_affinity(core, source, ["ORT", "CPU"], seed)
    return list(hetero.backend.run_model(source, inputs, "HETERO:ORT,CPU", affinity=pins))


QUICK_NETWORK = "real/test_shufflenet"
RUNNERS = {"CPU": run_on_cpu, "HETERO:ORT,CPU": run_split}


def runs() -> list[Any]:
    """Return all cases, on CPU and split; most are marked slow.

    A plain run has one whole network on CPU, one case of each operator and one in five of the
    others, one in sixteen of the expanded operators, whose parts have cases themselves, and one in
    forty of the split cases. A single operator cannot be split, and other tests run it on each
    device.
    """
    first_cases = {
        case.model().graph.node[-1].op_type: case.name
        for case in reversed(backend_cases())
        if case.kind == "node" and "_expanded" not in case.name
    }
    first_names = set(first_cases.values())

    def is_slow(case: Case, device: str) -> bool:
        if case.kind == "real":
            return device != "CPU" or case.name != QUICK_NETWORK
        if device == "CPU" and case.name in first_names:
            return False
        interval = 40 if device != "CPU" else 16 if "_expanded" in case.name else 5
        return crc32(case.name.encode()) % interval != 0

    def is_split(case: Case) -> bool:
        has_several_nodes = case.kind != "node" or "_expanded" in case.name
        return (
            has_several_nodes
            or case.name in EXPECTED_FAILURES["HETERO:ORT,CPU"]
            or not is_slow(case, "HETERO")
        )

    return [
        pytest.param(
            case,
            device,
            id=f"{device}-{case.name}",
            marks=[pytest.mark.slow] if is_slow(case, device) else [],
        )
        for device in RUNNERS
        for case in backend_cases()
        if device == "CPU" or is_split(case)
    ]


@pytest.mark.parametrize(("case", "device"), runs())
def test_case_passes(case, device):
    reason = EXPECTED_FAILURES[device].get(case.name)
    try:
        model = case.model()
        for inputs, expected_outputs in case.data_sets(model):
            case.compare(RUNNERS[device](case, model, inputs), expected_outputs)
    except Exception:
        if reason is None:
            raise
        return
    assert reason is None or may_pass(reason), f"{case.name} passes: remove it from the list"


@pytest.mark.parametrize("device", RUNNERS)
def test_every_expected_failure_is_a_case(device):
    assert not EXPECTED_FAILURES[device].keys() - {case.name for case in backend_cases()}


def test_most_cases_pass_on_cpu():
    assert len({case.name for case in backend_cases()} - EXPECTED_FAILURES["CPU"].keys()) >= 2015
