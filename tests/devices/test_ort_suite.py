"""ONNX's backend suite on the ORT device: what it takes it runs right, what it refuses it explains.

`misses_ort.txt` lists the cases that it takes and misses.
"""

from pathlib import Path

import pytest

from devices import read_model
from tests.backend_suite.cases import backend_cases
from tests.backend_suite.misses import read_misses

pytest.importorskip("onnxruntime")
from devices.ort.plugin import ORTPlugin

MISSES = read_misses(Path(__file__).with_name("misses_ort.txt"))
PLUGIN = ORTPlugin()
#: Cases of the suite that ONNX Runtime 1.31 runs right, of onnx 1.23's 2,033.
PASSING = 1466


def outcome(case):
    """Return ``refused``, ``passed`` or what went wrong, whatever it was."""
    try:
        proto = case.model()
        model = read_model(proto)
        support = PLUGIN.query_model(model)
        if support.unsupported:
            said = [r.message for by in support.unsupported.values() for r in by.values()]
            return "refused" if min(map(len, said)) > 12 else f"refused without a reason: {said}"
        compiled = PLUGIN.compile_model(model, {"INFERENCE_NUM_THREADS": 1})
        try:
            for inputs, wanted in case.data_sets(proto):
                # Some cases give data for the initializers too.
                own = len(inputs) == len(model.inputs)
                names = [port.name for port in (model.inputs if own else proto.graph.input)]
                given = dict(zip(names, inputs, strict=False))
                result = compiled({port.name: given[port.name] for port in compiled.inputs})
                case.compare(list(result.to_tuple()), wanted)
        finally:
            compiled.close()
    except Exception as error:  # a miss is any way not to pass
        return f"{type(error).__name__}: {error}"
    return "passed"


@pytest.mark.slow
def test_every_case():
    """The failure lists every case that is not as expected, with what went wrong."""
    found = {case.name: outcome(case) for case in backend_cases()}
    missed = {n: said for n, said in found.items() if said not in ("refused", "passed")}
    assert {n: said for n, said in missed.items() if n not in MISSES} == {}
    assert not MISSES.keys() - missed.keys(), "take these off the list"
    assert list(found.values()).count("passed") >= PASSING
