"""Fused attention against ONNX Runtime, over random attributes, masks and caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.devices.kernels.microsoft import MICROSOFT
from tests.support.kernel_oracle import run_kernel, run_onnxruntime
from tests.support.microsoft_oracle import check, check_types, floats, some

SEEDS = range(40)


def mask(rng: np.random.Generator, b: int, s: int, t: int, forms: tuple[str, ...]) -> Any:
    """Return a mask in one of its forms, or None."""
    form = rng.choice(("none", *forms))
    if form == "ends":
        return rng.integers(1, t + 1, b).astype(np.int32)
    if form == "ends-begins":
        return np.concatenate((np.full(b, t), rng.integers(0, t, b))).astype(np.int32)
    if form in ("keys", "pairs"):
        shape = (b, t) if form == "keys" else (b, s, t)
        seen = rng.integers(0, 2, shape).astype(np.int32)
        seen[..., 0] = 1
        return seen
    return None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_multi_head_attention(seed):
    rng = np.random.default_rng(seed)
    b, h, s, t, d = (int(rng.integers(1, 5)) for _ in range(5))
    width = int(rng.integers(1, 5))
    with_past = rng.random() < 0.5
    p = int(rng.integers(1, 4)) if with_past else 0
    t = s if with_past or rng.random() < 0.5 else t
    cross = not with_past and rng.random() < 0.3
    if cross or with_past:
        width = d
    key = floats(rng, b, h, t, d) if cross else floats(rng, b, t, h * d)
    value = floats(rng, b, h, t, width) if cross else floats(rng, b, t, h * width)
    inputs = [
        floats(rng, b, s, h * d),
        key,
        value,
        None if cross else some(rng, floats(rng, h * (2 * d + width))),
        mask(rng, b, s, t + p, ("keys", "pairs")),
        some(rng, floats(rng, int(rng.choice((1, b))), int(rng.choice((1, h))), s, t + p)),
        floats(rng, b, h, p, d) if with_past else None,
        floats(rng, b, h, p, width) if with_past else None,
    ]
    attributes = {"num_heads": h}
    if rng.random() < 0.5:
        attributes |= {"scale": 0.3, "mask_filter_value": -50.0}
    if rng.random() < 0.4 and t == s:
        attributes["unidirectional"] = 1
    n_outputs = 3 if with_past or (rng.random() < 0.5 and not cross) else 1
    check("MultiHeadAttention", inputs, attributes, 1e-4, 1e-5, n_outputs=n_outputs)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_attention(seed):
    rng = np.random.default_rng(seed)
    b, h, s, d = (int(rng.integers(1, 5)) for _ in range(4))
    width, size = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    with_past = rng.random() < 0.4
    p = int(rng.integers(1, 4)) if with_past else 0
    attributes: dict[str, Any] = {"num_heads": h}
    if with_past or rng.random() < 0.5:
        width = d
    else:
        attributes["qkv_hidden_sizes"] = [h * d, h * d, h * width]
    if rng.random() < 0.5:
        attributes |= {"scale": 0.3, "mask_filter_value": -50.0}
    if rng.random() < 0.4:
        attributes["unidirectional"] = 1
    total = h * (2 * d + width)
    inputs = [
        floats(rng, b, s, size),
        floats(rng, size, total),
        floats(rng, total),
        mask(rng, b, s, s + p, ("ends", "ends-begins", "keys", "pairs")),
        floats(rng, 2, b, h, p, d) if with_past else None,
        None if with_past else some(rng, floats(rng, int(rng.choice((1, b))), 1, s, s)),
    ]
    n_outputs = 2 if with_past else 1
    check("Attention", inputs, attributes, 1e-4, 1e-5, n_outputs=n_outputs)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_rotary_embedding(seed):
    rng = np.random.default_rng(seed)
    b, s, heads, half = (int(rng.integers(1, 5)) for _ in range(4))
    half *= 2
    size, attributes = 2 * half, {"interleaved": int(rng.integers(0, 2))}
    part = rng.random() < 0.4
    if part:
        size += 2 * int(rng.integers(0, 3))
        attributes |= {"num_heads": heads, "rotary_embedding_dim": 2 * half}
    flat = part or rng.random() < 0.5
    x = floats(rng, b, s, heads * size) if flat else floats(rng, b, heads, s, size)
    positions = rng.integers(0, 10, (b, s)) if rng.random() < 0.5 else rng.integers(0, 5, 1)
    inputs = [x, positions, floats(rng, 12, half), floats(rng, 12, half)]
    check("RotaryEmbedding", inputs, attributes, 1e-5, 1e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(100))
def test_group_query_attention(seed):
    """Test a prompt padded on the right, or tokens after cached ones in a larger buffer."""
    rng = np.random.default_rng(seed)
    b, g, s = (int(rng.integers(1, 4)) for _ in range(3))
    prompt = rng.random() < 0.5
    if not prompt and s > 1:
        b = 1
    h, d = g * int(rng.integers(1, 4)), 16 * int(rng.integers(1, 3))
    attributes: dict[str, Any] = {"num_heads": h, "kv_num_heads": g}
    choices = {"scale": 0.2, "softcap": 1.5, "smooth_softmax": 1, "local_window_size": 2}
    attributes |= {name: value for name, value in choices.items() if rng.random() < 0.3}
    lengths = rng.integers(1, s + 1, b) if prompt else rng.integers(1, 5, b) + s
    total = s if prompt else int(lengths.max())
    room = int(rng.choice((0, total, total + 3))) if prompt else total + int(rng.integers(0, 3))
    if not prompt and rng.random() < 0.5:
        room = total - s or 1
        lengths[:] = room + s
        total = room + s
    packed = rng.random() < 0.4
    parts = [floats(rng, b, s, n * d) for n in (h, g, g)]
    rotary = rng.random() < 0.5
    if rotary:
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(rng.integers(0, 2))}
    half = d // 2 if rng.random() < 0.5 else 8
    bias = floats(rng, int(rng.choice((1, b))), int(rng.choice((1, h))), s, total)
    sink = None if attributes.get("smooth_softmax") else some(rng, floats(rng, h))
    inputs = [
        *((np.concatenate(parts, axis=2), None, None) if packed else parts),
        floats(rng, b, g, room, d),
        floats(rng, b, g, room, d),
        (lengths - 1).astype(np.int32),
        np.array(total, np.int32),
        floats(rng, 32, half) if rotary else None,
        floats(rng, 32, half) if rotary else None,
        None,
        bias if rng.random() < 0.3 else None,
        sink,
    ]
    arguments = ("GroupQueryAttention", inputs, attributes, 1, MICROSOFT, 3)
    expected = run_onnxruntime(*arguments)
    y, *present = run_kernel(*arguments)
    check_types("GroupQueryAttention", inputs, attributes, [y, *present])
    assert [x.shape for x in (y, *present)] == [x.shape for x in expected]
    for i, length in enumerate(lengths):  # values after the last token are undefined
        last = length if prompt else s
        np.testing.assert_allclose(y[i, :last], expected[0][i, :last], 1e-4, 1e-5)
        for actual, want in zip(present, expected[1:], strict=True):
            np.testing.assert_allclose(actual[i, :, :length], want[i, :, :length], 1e-5, 1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_group_query_attention_with_limited_cache(seed):
    """Test steps of several lengths; each begins with ONNX Runtime's cache of the step before."""
    rng = np.random.default_rng(seed)
    window = int(rng.integers(1, 5))
    capacity = window + seed
    attributes = {
        "num_heads": 4,
        "kv_num_heads": 2,
        "do_rotary": 1,
        "local_window_size": window,
        "sliding_window_cache": 1,
    }
    angles = [floats(rng, 32, 8) for _ in range(2)]
    caches = [np.zeros((1, 2, capacity, 16), np.float32) for _ in range(2)]
    total = 0
    for s in (int(rng.integers(1, 9)), 1, 1, 2, 1, capacity + 2, 1):
        total += s
        parts = [floats(rng, 1, s, heads * 16) for heads in (4, 2, 2)]
        numbers = [np.array([total - 1], np.int32), np.array(total, np.int32)]
        bias = [None, floats(rng, 1, 1, s, total)] if s % 2 else []
        inputs = [*parts, *caches, *numbers, *angles, *bias]
        arguments = ("GroupQueryAttention", inputs, attributes, 1, MICROSOFT, 3)
        y, *actual = run_kernel(*arguments)
        check_types("GroupQueryAttention", inputs, attributes, [y, *actual])
        expected, *caches = run_onnxruntime(*arguments)
        np.testing.assert_allclose(y, expected, 1e-4, 1e-5)
        evicted = -(-max(total - capacity, 0) // (capacity - window + 1))
        rows = total - evicted * (capacity - window + 1)
        for own, cache in zip(actual, caches, strict=True):
            assert own.shape == cache.shape
            np.testing.assert_allclose(own[:, :, :rows], cache[:, :, :rows], 1e-5, 1e-6)


def test_group_query_attention_with_cache_below_its_window_raises():
    rng = np.random.default_rng(0)
    parts = [floats(rng, 1, 1, 16) for _ in range(3)]
    caches = [floats(rng, 1, 1, 4, 16) for _ in range(2)]
    numbers = [np.array([0], np.int32), np.array(1, np.int32)]
    attributes = {
        "num_heads": 1,
        "kv_num_heads": 1,
        "local_window_size": 5,
        "sliding_window_cache": 1,
    }
    arguments = ("GroupQueryAttention", [*parts, *caches, *numbers], attributes, 1, MICROSOFT, 3)
    with pytest.raises(ValueError, match="a cache of at least the window"):
        run_kernel(*arguments)


@pytest.mark.parametrize(
    ("total", "lengths", "message"),
    [
        (6, [6], "total_sequence_length is 6; expected 7"),
        (7, [2], "seqlens_k"),
        (7, [0], "seqlens"),
    ],
)
def test_group_query_attention_with_impossible_lengths_raises(total, lengths, message):
    """ONNX Runtime refuses them too, so verification must not draw them."""
    rng = np.random.default_rng(0)
    parts = [floats(rng, 1, 3, 16) for _ in range(3)]
    caches = [floats(rng, 1, 1, 4, 16) for _ in range(2)]
    numbers = [np.array(lengths, np.int32) - 1, np.array(total, np.int32)]
    attributes = {"num_heads": 1, "kv_num_heads": 1}
    arguments = ("GroupQueryAttention", [*parts, *caches, *numbers], attributes, 1, MICROSOFT, 3)
    with pytest.raises(ValueError, match=message):
        run_kernel(*arguments)
