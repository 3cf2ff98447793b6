"""Models cut at random over three vendors' runtimes give what ONNX says they give."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

from hetero.devices.conformance.onnx_suite import backend_cases
from tests.backend_suite.expected_failures import EXPECTED_FAILURES_OF_THREE_VENDORS
from tests.support.core_fixtures import core_fixture
from tests.support.random_affinity import random_affinity

pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")

DEVICES = ["OV", "ORT", "CPU"]


core = core_fixture("module")


def cases() -> list[Any]:
    """Return the cases of several nodes; a plain run has a few of the small ones."""
    found = []
    for case in backend_cases():
        small = case.kind == "node" and case.name.endswith("_expanded")
        if case.name not in EXPECTED_FAILURES_OF_THREE_VENDORS and (small or case.kind != "node"):
            quick = small and crc32(case.name.encode()) % 200 == 0
            marks = [] if quick else [pytest.mark.slow]
            found.append(pytest.param(case, id=case.name, marks=marks))
    return found


@pytest.mark.parametrize("case", cases())
def test_a_random_cut_gives_the_expected_outputs(core, case):
    proto = case.model()
    model = core.read_model(proto)
    pins = random_affinity(core, model, DEVICES, crc32(case.name.encode()))
    with core.compile_model(model, "HETERO:OV,ORT,CPU", affinity=pins) as compiled:
        case.check(proto, model, compiled)
