"""Several tensors that cross between devices in one message."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

pytestmark = pytest.mark.ray

#: The first subgraph has the outputs a, b; the second has the inputs b, a.
MODEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    ordered (float[3] p, float[3] q) => (float[3] y) {
        a = Neg(p)  b = Abs(q)  y = Sub(b, a)
    }
"""
PINS = {"op:Neg": "CPU.0", "op:Abs": "CPU.0", "op:Sub": "CPU.1"}


def test_tensors_arrive_under_their_names(core):
    p, q = np.float32([1, 2, 3]), np.float32([10, 40, 90])
    model = parse_model(MODEL)
    with core.compile_model(model, "HETERO:CPU.0,CPU.1", affinity=PINS) as compiled:
        assert [subgraph.outputs for subgraph in compiled.subgraphs] == [("a", "b"), ("y",)]
        assert [subgraph.inputs for subgraph in compiled.subgraphs] == [("p", "q"), ("b", "a")]
        # Later requests travel in packed messages, which do not contain names.
        results = [compiled({"p": p, "q": q})["y"] for _ in range(5)]
    np.testing.assert_array_equal(results, [q + p] * 5)
