"""Served models: rows of requests and ports in the protocol's form."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

import hetero

pytest.importorskip("orjson")
from hetero.apps.serve.served_model import ServedModel


@pytest.mark.parametrize(
    ("shapes", "sizes", "num_rows"),
    [
        (("[N, 5]", "[M, 7]"), ((3, 5), (2, 7)), 3),
        (("[4, N]", "[M, 7]"), ((4, 5), (2, 7)), 1),  # the first input has no open batch axis
        (("", "[M, 7]"), ((), (2, 7)), 1),
    ],
)
def test_rows_are_the_first_size_of_the_first_input(shapes, sizes, num_rows):
    text = (
        f'<ir_version: 8, opset_import: ["": 17]> g (float{shapes[0]} x, int64{shapes[1]} z) '
        f"=> (float{shapes[0]} y, int64{shapes[1]} w) {{ y = Neg(x) w = Neg(z) }}"
    )
    with hetero.Core("inprocess") as core, core.compile_model(parse_model(text), "CPU") as compiled:
        model = ServedModel("m", "1", compiled)
        values = {
            "x": np.zeros(sizes[0], np.float32),
            "z": np.zeros(sizes[1], np.int64),
        }
        assert model.num_rows(values) == num_rows
        open_shapes = [
            [int(size) if size.isdigit() else -1 for size in text.strip("[]").split(", ") if size]
            for text in shapes
        ]
        metadata = model.metadata(["1"])
        ports = [("x", "FP32"), ("z", "INT64")], [("y", "FP32"), ("w", "INT64")]
        for key, names in zip(("inputs", "outputs"), ports, strict=True):
            assert metadata[key] == [
                {"name": name, "datatype": datatype, "shape": shape}
                for (name, datatype), shape in zip(names, open_shapes, strict=True)
            ]
