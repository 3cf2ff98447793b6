"""Generated inputs: kinds, ranges and sizes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.verify.generated_inputs import (
    KINDS,
    draw_inputs,
    large_size_options,
    size_options,
    sum_options,
)


def model() -> Model:
    """Return a model whose integers are indices of a table with seven rows."""
    return read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            table (float[N, M] x, float[M, N] z, int64[N] rows, float[7, 2] t, int32[3] free)
                => (float[N, 2] y, float[N, N] p, int32[3] f) {
                y = Gather(t, rows)
                p = MatMul(x, z)
                f = Neg(free)
            }"""
        )
    )


def test_a_symbol_has_one_size_and_different_symbols_differ():
    inputs = draw_inputs(model(), "typical", size_options(model())[0]).inputs
    rows, columns = inputs["x"].shape
    assert inputs["z"].shape == (columns, rows)
    assert rows != columns
    assert inputs["rows"].shape == (rows,)


def test_first_dimension_without_a_symbol_has_the_first_size():
    source = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (float[?, 3, ?, ?] x, float[?, N] z) => (float[a,b,c,d] y) {y = Neg(x)}"""
        )
    )
    inputs = draw_inputs(source, "typical", (2, 32)).inputs
    assert (inputs["x"].shape, inputs["z"].shape) == ((2, 3, 32, 32), (2, 2))


def test_sizes_whose_inputs_take_gigabytes_are_left_out():
    head = '<ir_version: 8, opset_import: ["": 17]> image'
    image, batch = (
        read_model(parse_model(f"{head} (float[{shape}] x) => (float[{shape}] y) {{ y = Neg(x) }}"))
        for shape in ("N, C, H, W", "N, 3, 224, 224")
    )
    assert [sizes for sizes in size_options(image) if len(sizes) == 1][-1] == (64,)
    assert size_options(batch)[-1] == (224,)
    assert size_options(image)[0] == size_options(batch)[0]


@pytest.mark.parametrize(
    ("shape", "operator", "expected"),
    [
        ("n", "Neg(x)", (1031,)),
        ("n, m", "Neg(x)", (65, 1031)),
        ("n, m, 8, 8", "Neg(x)", (65,)),
        ("n, 3, 224, 224", "Neg(x)", None),
        ("n", "Round(x)", (65,)),
    ],
)
def test_large_sizes_suit_the_inputs_and_rounding(shape, operator, expected):
    """A vendor rounds some of many values to the other side."""
    source = read_model(
        parse_model(
            f"""<ir_version: 8, opset_import: ["": 17]>
            g (float[{shape}] x) => (float[{shape}] y) {{y = {operator}}}"""
        )
    )
    assert next(iter(large_size_options(source)), None) == expected


@pytest.mark.parametrize(
    ("query", "key", "width"), [("qkv", "", 64), ("q", "k", 32)], ids=["packed", "separate"]
)
def test_head_size_follows_from_the_query(query, key, width):
    """8 and 4 heads: a packed row has 16 heads of size 4."""
    source = read_model(
        parse_model(
            f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
            attend (float[B, S, {width}] {query}, float[B, S, 16] k, float[B, S, 16] v,
                    float[B, 4, P, D] past_key, float[B, 4, P, D] past_value, int32[B, T] mask,
                    int32[B] lengths, int32 total) => (float[B, S, 32] y) {{
                y, key, value = com.microsoft.GroupQueryAttention <num_heads = 8, kv_num_heads = 4>
                    ({query}, {key}, {"v" if key else ""}, past_key, past_value, lengths, total)
            }}"""
        )
    )
    sizes, _ = next(sum_options(source))
    assert len(sizes) == 4, "B, S, P and T: D is known"
    assert draw_inputs(source, "wide", (3, 5, 7, 12)).inputs["past_key"].shape == (3, 4, 7, 4)
    assert [s for s, _ in sum_options(source)].index((3, 5, 7, 12)) < 3, "T = P + S is soon tried"


def test_typical_integers_are_valid_indices_for_every_kind():
    for kind in KINDS:
        inputs = draw_inputs(model(), kind, (64,), integers="typical").inputs
        assert set(inputs["rows"].tolist()) == {0, 1}
        assert set(inputs["free"].tolist()) <= {0, 1}


def test_extreme_inputs_contain_the_bounds_zeros_and_both_signs():
    inputs = draw_inputs(model(), "extreme", (64,)).inputs
    info = np.iinfo(np.int32)
    assert {info.min, info.max} & set(inputs["free"].tolist())
    assert (inputs["x"] == 0).any()
    assert inputs["x"].min() < 0 < inputs["x"].max()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("wide", {0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.0}), ("extreme", {0.0, 1.0, -20.0, 100.0})],
)
def test_small_inputs_contain_every_special_value(kind, expected):
    """A kernel that is wrong for one value only is wrong for a tensor of few elements, too."""
    for size in (11, 12, 40):
        source = read_model(
            parse_model(
                f"""<ir_version: 8, opset_import: ["": 17]>
                g (float[{size}] x) => (float[{size}] y) {{ y = Neg(x) }}"""
            )
        )
        x = draw_inputs(source, kind, (3,)).inputs["x"]
        assert expected <= set(x.tolist())
        assert np.signbit(x[x == 0]).any()


def test_equal_arguments_give_equal_inputs():
    first, second = (draw_inputs(model(), "wide", (3,)).inputs for _ in range(2))
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])


def test_indices_and_sizes_are_small_for_every_kind():
    source = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (int64[40] ids, int64[40] n, float[5,3] x) => (float[a,b] y, float[c] z) {
                y = Gather(x, ids) one = Constant<value_ints = [1]>() m = Max(n, one)
                s = ReduceMax<keepdims = 1>(m) z = ConstantOfShape(s)
            }"""
        )
    )
    for kind in KINDS:
        inputs = draw_inputs(source, kind, (4,)).inputs
        assert -5 < inputs["ids"].min() <= inputs["ids"].max() < 5
        assert 0 <= inputs["n"].min() <= inputs["n"].max() <= 8


def test_indices_reach_both_ends_of_a_large_table():
    source = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (int32[2, 6] ids, int64[6] n, int64[12] mask, float[70000, 2] x)
                => (float[a,b,c] y, float[a,b] z, int64[c] m) {
                rows = Cast<to = 7>(ids) y = Gather(x, rows) one = Constant<value_int = 1>()
                next = Add(n, one) z = Gather(x, next) m = Neg(mask)
            }"""
        )
    )
    extreme, wide = (draw_inputs(source, kind, (4,)).inputs for kind in ("extreme", "wide"))
    assert {-69_999, 69_999, -1} <= set(extreme["ids"].reshape(-1).tolist())
    assert 2**16 - 70_000 < 0 <= wide["ids"].min()
    assert wide["ids"].max() > 2**15
    # Indices that the graph computes may be wrong if they are large.
    assert 0 <= extreme["n"].min() <= extreme["n"].max() <= 8
    ones = draw_inputs(source, "wide", (4,), integers="ones").inputs
    np.testing.assert_array_equal(ones["mask"], 1)
    assert len(set(ones["ids"].reshape(-1).tolist())) > 1


def test_extreme_integers_are_not_exact_as_floats():
    inputs = draw_inputs(
        read_model(
            parse_model(
                """<ir_version: 8, opset_import: ["": 17]>
                g (int64[9] x, int32[9] z) => (int64[9] y, int32[9] w) {y = Neg(x) w = Neg(z)}"""
            )
        ),
        "extreme",
        (3,),
    ).inputs
    assert any(int(np.float64(x)) != x for x in inputs["x"][np.abs(inputs["x"]) < 2**62].tolist())
    assert any(int(np.float32(z)) != z for z in inputs["z"][np.abs(inputs["z"]) < 2**30].tolist())


def test_extreme_floats_have_a_row_of_zeros():
    source = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (float[n, 8] x) => (float[n, 8] y) {y = Neg(x)}"""
        )
    )
    many, one = (draw_inputs(source, "extreme", (size,)).inputs["x"] for size in (3, 1))
    assert not many[0].any()
    assert many[1:].any(axis=1).all()
    assert one.any()


def test_texts_have_several_alphabets_lengths_and_numbers():
    source = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (string[40] s) => (string[40] y) {y = Identity(s)}"""
        )
    )
    wide, extreme = (draw_inputs(source, k, (3,)).inputs["s"] for k in ("wide", "extreme"))
    assert {len(text) for text in wide} > {0, 1}
    assert not all(text.isascii() for text in wide)
    assert all(np.isfinite(float(text)) for text in extreme)


def test_floats_that_determine_a_size_are_typical_for_every_kind():
    source = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (float first, float end, float step) => (float[N] y) {
                y = Range(first, end, step)
            }"""
        )
    )
    steps = [draw_inputs(source, kind, (4,)).inputs["step"] for kind in KINDS]
    assert min(abs(step) for step in steps) > 1e-3
