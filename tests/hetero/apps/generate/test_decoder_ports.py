"""The number of tokens at which a decoder changes."""

from __future__ import annotations

from onnx.parser import parse_model

from hetero.apps.generate.decoder_ports import _changes_at
from hetero.devices.model.reader import read_model
from tests.support.rows import for_each_row

ROLES = {"mask": "m", "positions": "p"}


@for_each_row(
    "test, changes_at",
    [
        ("c = Greater(n, limit)", 16),
        ("c = GreaterOrEqual(n, limit)", 15),
        ("c = Less(n, limit)", 15),
        ("c = LessOrEqual(n, limit)", 16),
        ("c = Greater(limit, n)", 15),
        ("c = GreaterOrEqual(limit, n)", 16),
        ("c = Less(limit, n)", 16),
        ("c = LessOrEqual(limit, n)", 15),
        ("less = Less(n, limit) c = Not(less)", 15),
        ("c = Greater(last, limit)", 17),
        ("q = Add(last, one) c = Greater(q, limit)", 16),
        ("c = Greater(x, limit)", None),
    ],
)
def test_length_at_which_a_choice_changes(test, changes_at):
    model = read_model(
        parse_model(
            f"""<ir_version: 8, opset_import: ["": 18]>
            g (int64[B,T] m, int64[B,S] p, int64[1] x, float[4] a, float[4] b) => (float[4] y)
            <int64[1] limit = {{16}}, int64[1] one = {{1}}> {{
                n = Shape<start = 1, end = 2>(m)
                top = ReduceMax<keepdims = 0>(p)
                axis = Constant<value_ints = [0]>()
                last = Unsqueeze(top, axis)
                {test}
                y = Where(c, a, b)
            }}"""
        )
    )
    assert _changes_at(model, ROLES) == changes_at
