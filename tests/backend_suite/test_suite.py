"""ONNX's backend suite through `hetero.backend`: on CPU, and cut at random over ORT and CPU.

`misses_cpu.txt` and `misses_hetero.txt` list what does not pass, with the reason of each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

import onnx
import pytest

import hetero.backend
from hetero.devices.conformance.onnx_suite import Case, backend_cases
from tests.backend_suite.misses import may_pass, read_misses
from tests.support.random_affinity import random_affinity

FOLDER = Path(__file__).parent
MISSES = {
    device: read_misses(FOLDER / f"misses_{name}.txt")
    for device, name in (("CPU", "cpu"), ("HETERO:ORT,CPU", "hetero"))
}


def run_on_cpu(case: Case, model: onnx.ModelProto, inputs: list[Any]) -> list[Any]:
    """Run a model once on the CPU device."""
    return list(hetero.backend.run_model(model, inputs, "CPU"))


def run_cut(case: Case, model: onnx.ModelProto, inputs: list[Any]) -> list[Any]:
    """Run a model once with a random device for each node that both take."""
    core = hetero.shared_core.shared_core("inprocess")
    source = core.read_model(model)
    seed = crc32(case.name.encode())
    pins = random_affinity(core, source, ["ORT", "CPU"], seed)
    return list(hetero.backend.run_model(source, inputs, "HETERO:ORT,CPU", affinity=pins))


QUICK_NETWORK = "real/test_shufflenet"
RUNNERS = {"CPU": run_on_cpu, "HETERO:ORT,CPU": run_cut}


def runs() -> list[Any]:
    """Return every case on CPU, and cut; a plain run has one in ten of the small ones cut.

    Of whole networks a plain run has one, on CPU; and one in four of the operators that ONNX
    writes as graphs of others, each of which has cases of its own. An operator alone cannot be cut,
    and runs on each device in other tests: one in ten is enough.
    """

    def is_slow(case: Case, device: str) -> bool:
        if case.kind == "real":
            return device != "CPU" or case.name != QUICK_NETWORK
        one_in = 10 if device != "CPU" else 4 if "_expanded" in case.name else 1
        return crc32(case.name.encode()) % one_in != 0

    def is_cut(case: Case) -> bool:
        several = case.kind != "node" or "_expanded" in case.name
        return several or case.name in MISSES["HETERO:ORT,CPU"] or not is_slow(case, "HETERO")

    return [
        pytest.param(
            case,
            device,
            id=f"{device}-{case.name}",
            marks=[pytest.mark.slow] if is_slow(case, device) else [],
        )
        for device in RUNNERS
        for case in backend_cases()
        if device == "CPU" or is_cut(case)
    ]


@pytest.mark.parametrize(("case", "device"), runs())
def test_case(case: Case, device: str) -> None:
    miss = MISSES[device].get(case.name)
    try:
        model = case.model()
        for inputs, wanted in case.data_sets(model):
            case.compare(RUNNERS[device](case, model, inputs), wanted)
    except Exception:
        if miss is None:
            raise
        return
    assert miss is None or may_pass(miss), f"{case.name} passes: unlist it"


@pytest.mark.parametrize("device", RUNNERS)
def test_every_miss_is_a_case(device: str) -> None:
    assert not MISSES[device].keys() - {case.name for case in backend_cases()}


def test_enough_cases_pass_on_cpu() -> None:
    assert len({case.name for case in backend_cases()} - MISSES["CPU"].keys()) >= 2015
