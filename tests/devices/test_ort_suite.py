"""ONNX's backend suite on the ORT device: what it takes it runs right, what it refuses it explains.

`misses_ort.txt` lists the cases that it takes and misses.
"""

from pathlib import Path

import pytest

from devices.conformance.onnx_suite import backend_cases, outcome
from tests.backend_suite.misses import may_pass, read_misses

pytest.importorskip("onnxruntime")
from devices.ort.plugin import ORTPlugin

MISSES = read_misses(Path(__file__).with_name("misses_ort.txt"))
PLUGIN = ORTPlugin()
#: Cases of the suite that ONNX Runtime 1.31 runs right, of onnx 1.23's 2,033.
PASSING = 1466


@pytest.mark.slow
def test_every_case():
    """The failure lists every case that is not as expected, with what went wrong."""
    found = {
        case.name: outcome(PLUGIN, case, {"INFERENCE_NUM_THREADS": 1}) for case in backend_cases()
    }
    missed = {n: said for n, said in found.items() if said not in ("refused", "passed")}
    assert {n: said for n, said in missed.items() if n not in MISSES} == {}
    passed = {n for n in MISSES.keys() - missed.keys() if not may_pass(MISSES[n])}
    assert not passed, "take these off the list"
    assert list(found.values()).count("passed") >= PASSING
