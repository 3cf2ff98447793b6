"""Kernels of the table of operators against ONNX Runtime, and on the emulated GPU."""

from __future__ import annotations

import pytest

from hetero.devices.kernels.microsoft import MICROSOFT
from tests.support.kernel_oracle import check
from tests.support.microsoft_oracle import check_types
from tests.support.operators import OPERATORS

#: The slow set has the older opsets of an operator with more cases than this.
MAX_PLAIN_CASES = 60


def cases():
    """Return each operator with each opset that changed it, and its rows."""
    params, rows = [], {}
    for row in OPERATORS:
        for op_type, opset in row.versions():
            rows.setdefault((row.domain, op_type), {}).setdefault(opset, []).append(row)
    for (domain, op_type), rows_by_opset in sorted(rows.items()):
        for opset, group in sorted(rows_by_opset.items()):
            num_cases = sum(len(row.inputs) * len(list(row.combinations())) for row in group)
            is_slow = num_cases > MAX_PLAIN_CASES and opset < max(rows_by_opset)
            name = f"{domain}.{op_type}" if domain else op_type
            marks = [pytest.mark.slow] if is_slow else []
            params.append(pytest.param(op_type, opset, group, id=f"{name}-{opset}", marks=marks))
    return params


@pytest.mark.parametrize(("op_type", "opset", "rows"), cases())
def test_operator(op_type, opset, rows):
    for row in rows:
        for case in row.cases(op_type, opset):
            ours = check(
                op_type,
                case.inputs,
                case.attributes,
                opset,
                row.rtol,
                row.atol,
                domain=row.domain,
                n_outputs=row.num_outputs,
                expected=row.expected_outputs(case),
            )
            if row.domain == MICROSOFT:
                check_types(op_type, case.inputs, case.attributes, ours)
