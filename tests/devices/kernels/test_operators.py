"""Kernels of the table of operators against ONNX Runtime, and on the emulated GPU."""

from __future__ import annotations

import pytest

from tests.support.kernel_oracle import check
from tests.support.operators import OPERATORS


def cases():
    """Return each operator with each opset that changed it, and its rows."""
    rows = {}
    for row in OPERATORS:
        for version in row.versions():
            rows.setdefault(version, []).append(row)
    return [
        pytest.param(op_type, opset, group, id=f"{op_type}-{opset}")
        for (op_type, opset), group in sorted(rows.items())
    ]


@pytest.mark.parametrize(("op_type", "opset", "rows"), cases())
def test_operator(op_type, opset, rows):
    for row in rows:
        for case in row.cases(op_type, opset):
            check(
                op_type,
                case.inputs,
                case.attributes,
                opset,
                row.rtol,
                row.atol,
                n_outputs=row.num_outputs,
                expected=row.expected_outputs(case),
            )
