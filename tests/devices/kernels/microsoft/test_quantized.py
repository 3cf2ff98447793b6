"""Quantised layers against ONNX Runtime, whose integers they return exactly."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest

from tests.support.microsoft_oracle import check, floats, some

SEEDS = range(12)


def quantized(rng: np.random.Generator, dtype: Any, *shape: int) -> list[np.ndarray]:
    """Return a tensor, its scale and its zero point."""
    limits = np.iinfo(dtype)
    return [
        rng.integers(limits.min, limits.max + 1, shape).astype(dtype),
        scale(rng),
        rng.integers(limits.min, limits.max + 1, ()).astype(dtype),
    ]


def scale(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.uniform(0.005, 0.1, shape).astype(np.float32)


def same(op_type: str, inputs: list[Any], attributes: Any = None, *, atol: float = 0) -> None:
    check(op_type, inputs, attributes, 0, atol)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_where(seed, dtype):
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 5, 3)
    to = quantized(rng, dtype)[1:]
    one, other = quantized(rng, dtype, *shape), quantized(rng, dtype, *shape[1:])
    condition = rng.integers(0, 2, shape[1:]).astype(bool)
    same("QLinearWhere", [condition, *one, *other, *to])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_pools(seed, dtype):
    rng = np.random.default_rng(seed)
    x, to = quantized(rng, dtype, 2, 6, 7, 3), quantized(rng, dtype)[1:]
    attributes = {
        "kernel_shape": [3, 2],
        "strides": [int(n) for n in rng.integers(1, 3, 2)],
        "pads": [int(n) for n in rng.integers(0, 2, 4)],
        "ceil_mode": int(rng.integers(0, 2)),
    }
    last = {"channels_last": int(rng.integers(0, 2))}
    if last["channels_last"]:
        same("NhwcMaxPool", [x[0]], attributes)
    pooling = attributes | {"count_include_pad": int(rng.integers(0, 2)), "ceil_mode": 0}
    same("QLinearAveragePool", [*x, *to], pooling | last | {"kernel_shape": [2, 2]})
    same("QLinearGlobalAveragePool", [*x, *to], last)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(25))
def test_products(seed):
    rng = np.random.default_rng(seed)
    m, k, n = (int(size) for size in rng.integers(1, 40, 3))
    a, b = int(rng.integers(0, 2)), int(rng.integers(0, 2))
    per_column = (n,) if rng.random() < 0.5 else ()
    one = quantized(rng, np.uint8, *((k, m) if a else (m, k)))
    weights, _, zero = quantized(rng, np.int8, *((n, k) if b else (k, n)))
    weights = weights // 2  # ONNX Runtime adds pairs in 16 bits where the processor has no more
    other = [weights, scale(rng, *per_column), np.full(per_column, zero)]
    bias = some(rng, rng.integers(-1000, 1000, n).astype(np.int32))
    attributes = {"transA": a, "transB": b, "alpha": float(rng.choice((1.0, 0.5)))}
    same("QGemm", [*one, *other, bias], attributes, atol=1e-2)
    same("QGemm", [*one, *other, bias, np.float32(3), np.uint8(100)], attributes)
    columns = weights.T if b else weights
    rows = one[0].T if a else one[0]
    same(
        "MatMulIntegerToFloat",
        [rows, columns, *one[1:2], other[1], one[2], other[2], some(rng, floats(rng, n))],
        atol=1e-2,
    )
    same(
        "DynamicQuantizeMatMul",
        [floats(rng, m, k), columns, other[1], other[2], some(rng, floats(rng, n))],
        atol=1e-2,
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(25))
def test_dynamic_quantize_lstm(seed):
    rng = np.random.default_rng(seed)
    steps, batch, size, hidden = (int(n) for n in rng.integers(1, 5, 4))
    direction = str(rng.choice(("forward", "reverse", "bidirectional")))
    d = 2 if direction == "bidirectional" else 1
    columns = (d, 4 * hidden) if rng.random() < 0.5 else (d,)
    dtype = np.dtype(rng.choice(("int8", "uint8")))
    w, r = (quantized(rng, dtype, d, n, 4 * hidden)[0] for n in (size, hidden))
    if dtype == np.int8:
        w, r = w // 2, r // 2
    zero = np.zeros(columns, dtype) if dtype == np.int8 else np.full(columns, 128, dtype)
    inputs = [
        floats(rng, steps, batch, size),
        w,
        r,
        some(rng, floats(rng, d, 8 * hidden)),
        some(rng, rng.integers(1, steps + 1, batch).astype(np.int32)),
        some(rng, floats(rng, d, batch, hidden)),
        some(rng, floats(rng, d, batch, hidden)),
        None,
        scale(rng, *columns) / 10,
        zero,
        scale(rng, *columns) / 10,
        zero,
    ]
    attributes = {"hidden_size": hidden, "direction": direction}
    # ONNX Runtime's range of a step includes the states of sequences that have ended.
    atol = 1e-3 if inputs[4] is None else 1e-2
    check("DynamicQuantizeLSTM", inputs, attributes, 1e-3, atol, n_outputs=3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(30))
def test_qattention(seed):
    rng = np.random.default_rng(seed)
    b, s, heads, d, size = (int(n) for n in rng.integers(1, 5, 5))
    p = int(rng.integers(0, 3))
    columns = (3 * heads * d,) if rng.random() < 0.5 else ()
    x, x_scale, x_zero = quantized(rng, np.uint8, b, s, size)
    w, _, w_zero = quantized(rng, np.int8, size, 3 * heads * d)
    w = w // 2
    inputs = [
        x,
        w,
        floats(rng, 3 * heads * d),
        x_scale,
        scale(rng, *columns),
        some(rng, np.ones((b, s + p), np.int32)),
        x_zero,
        np.full(columns, w_zero),
        floats(rng, 2, b, heads, p, d) if p else None,
    ]
    attributes = {"num_heads": heads, "unidirectional": int(rng.integers(0, 2))}
    check("QAttention", inputs, attributes, 1e-3, 1e-3, n_outputs=2 if p else 1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(25))
def test_matmul_nbits(seed, bits):
    rng = np.random.default_rng(seed)
    m, k, n = (int(size) for size in rng.integers(1, 70, 3))
    block = int(rng.choice((16, 32)))
    blocks = ceil(k / block)
    b = rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
    packed = rng.integers(0, 256, (n, ceil(blocks * bits / 8))).astype(np.uint8)
    zeros = [None, packed, rng.uniform(0, 15, (n, blocks)).astype(np.float32)]
    inputs = [
        floats(rng, 2, m, k),
        b,
        scale(rng, n, blocks),
        zeros[rng.integers(3 if bits == 4 else 2)],
        None,
        some(rng, floats(rng, n)),
    ]
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    check("MatMulNBits", inputs, attributes, 1e-3, 1e-2)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(20))
def test_gather_block_quantized(seed, bits):
    rng = np.random.default_rng(seed)
    rows, block, blocks = int(rng.integers(2, 6)), int(rng.choice((16, 32))), 3
    data = rng.integers(0, 256, (rows, block * blocks * bits // 8)).astype(np.uint8)
    packed = rng.integers(0, 256, (rows, ceil(blocks * bits / 8))).astype(np.uint8)
    indices = rng.integers(0, rows, rng.integers(1, 4, rng.integers(0, 3)))
    inputs = [data, indices, scale(rng, rows, blocks), some(rng, packed)]
    attributes = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
    check("GatherBlockQuantized", inputs, attributes, 1e-5, 1e-5)
