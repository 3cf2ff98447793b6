"""Scaled dot-product attention with caches, masks and windows; rotary position embedding.

Sizes are written B (batch), H (query heads), G (key and value heads), S (queries), T (keys and
values, cached ones included), D (head size).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import sqrt
from operator import and_
from typing import Any

from hetero.devices.kernels.axes import are_within
from hetero.devices.kernels.element_types import Array, Xp, element_type, in_float32, to_float32
from hetero.devices.kernels.reduction import reduce_max, reduce_sum
from hetero.devices.kernels.registry import op


def split_heads(x: Array, heads: int | None, name: str) -> Array:
    """Return (B, S, heads * D) as (B, heads, S, D); an array of rank 4 is returned unchanged."""
    if x.ndim == 4:
        return x
    if x.ndim != 3 or not heads or x.shape[2] % heads:
        raise ValueError(f"{name}: expected {heads} heads of equal size, got shape {x.shape}")
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)


def join_heads(x: Array) -> Array:
    """Return (B, H, S, D) as (B, S, H * D)."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def append_to_cache(xp: Xp, past: Array | None, new: Array) -> Array:
    """Return the cached keys or values followed by the new ones."""
    return new if past is None else xp.concatenate((past, new), axis=2)


def _grouped_product(xp: Xp, q: Array, k: Array) -> Array:
    """Return q (B, H, S, D) times k (B, G, D, T); H / G query heads share a head of k."""
    b, h, s, d = q.shape
    g = k.shape[1]
    if g == 0 or h % g:
        raise ValueError(f"expected a multiple of {g} (key and value heads) query heads, got {h}")
    return xp.matmul(q.reshape(b, g, h // g * s, d), k).reshape(b, h, s, k.shape[3])


def _scores(xp: Xp, q: Array, k: Array, scale: float | None) -> Array:
    factor = q.dtype.type(1 / sqrt(q.shape[3]) if scale is None else scale)
    return _grouped_product(xp, q * factor, k.swapaxes(2, 3))


def allowed_keys(
    xp: Xp,
    query: Array,
    t: int,
    ends: Array | None = None,
    *,
    is_causal: int = 0,
    left: int = -1,
    right: int = -1,
) -> Array | None:
    """Return a mask of the t keys that queries at positions (..., S, 1) attend to; None for all.

    A key is before `ends`, at most `left` positions before and `right` after its query (-1: any
    number), and with `is_causal` not after it.
    """
    if left < -1 or right < -1:
        raise ValueError(f"expected window sizes of -1 or more, got {left} and {right}")
    key = xp.arange(t)
    bounds = [] if ends is None else [key < ends]
    if is_causal or right >= 0:
        bounds.append(key <= query + (0 if is_causal else right))
    if left >= 0:
        bounds.append(key >= query - left)
    return reduce(and_, bounds) if bounds else None


def key_bias(xp: Xp, mask: Array | None, allowed: Array | None, t: int) -> Array | None:
    """Return the term added to the scores: 0 or the float mask, -inf for keys not `allowed`."""
    (mask,) = to_float32(xp, mask)
    if mask is not None:
        missing = t - mask.shape[-1]
        if missing < 0:
            raise ValueError(f"attn_mask: expected at most {t} keys, got shape {mask.shape}")
        if missing:
            fill = False if mask.dtype == bool else -float("inf")
            padding = xp.full((*mask.shape[:-1], missing), fill, dtype=mask.dtype)
            mask = xp.concatenate((mask, padding), axis=-1)
        if mask.dtype == bool:
            allowed = mask if allowed is None else mask & allowed
            mask = None
    if allowed is None:
        return mask
    bias = xp.asarray(0, dtype=xp.float32) if mask is None else mask
    return xp.where(allowed, bias, xp.asarray(-float("inf"), dtype=bias.dtype))


def attend(
    xp: Xp,
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    bias: Array | None = None,
    sink: Array | None = None,
    softmax_type: Any = None,
    scores_mode: int | None = None,
) -> tuple[Array, Array | None]:
    """Return ``softmax(q k' scale + bias) v``, (B, H, S, D), and the scores after one step.

    `scores_mode` numbers that step as `qk_matmul_output_mode` does: 0 the product, 1 the cap, 2 the
    bias, 3 the softmax. The softmax is computed in `softmax_type` if that is wider; `sink` (H) is
    one more score in it.
    """
    dtype, t = q.dtype, k.shape[2]
    q, k, v, bias, sink = to_float32(xp, q, k, v, bias, sink)
    scores = _scores(xp, q, k, scale)
    output = scores.copy() if scores_mode == 0 else None
    if softcap > 0:
        scores /= scores.dtype.type(softcap)
        xp.tanh(scores, out=scores)
        scores *= scores.dtype.type(softcap)
    output = scores.copy() if scores_mode == 1 else output
    if bias is not None:
        scores += bias
    output = scores.copy() if scores_mode == 2 else output
    if sink is not None:
        column = xp.broadcast_to(sink.reshape(1, -1, 1, 1), (*scores.shape[:3], 1))
        scores = xp.concatenate((scores, column), axis=3)
    if softmax_type is not None and softmax_type.itemsize > scores.dtype.itemsize:
        scores = scores.astype(softmax_type)
    weights, total = _exponentials(xp, scores, bias)
    weights = weights[..., :t]
    output = weights / total if scores_mode == 3 else output
    y = _grouped_product(xp, weights.astype(v.dtype, copy=False), v)
    y /= total.astype(v.dtype, copy=False)
    return y.astype(dtype, copy=False), None if output is None else output.astype(dtype)


def _exponentials(xp: Xp, scores: Array, bias: Array | None) -> tuple[Array, Array]:
    """Overwrite the scores by exp(scores - maximum) and return them and their sums.

    Rows without an allowed key are all 0, and their sum is 1.
    """
    if scores.shape[-1] == 0:
        return scores, xp.ones((*scores.shape[:-1], 1), scores.dtype)
    top = reduce_max(xp, scores, (scores.ndim - 1,), True)
    if bias is not None:
        masked = reduce_max(xp, bias, (bias.ndim - 1,), True) == -float("inf")
        xp.copyto(scores, -float("inf"), where=xp.broadcast_to(masked, scores.shape))
        xp.copyto(top, 0, where=xp.broadcast_to(masked, top.shape))
    xp.subtract(scores, top, out=scores)
    xp.exp(scores, out=scores)
    total = reduce_sum(xp, scores, (scores.ndim - 1,), True)
    xp.copyto(total, 1, where=total == 0)
    return scores, total


@op(
    "Attention",
    since=23,
    additions={"nonpad_kv_seqlen": 24, "left_window_size": 25, "right_window_size": 25},
    choices={"qk_matmul_output_mode": (0, 1, 2, 3)},
)
def attention_23(
    xp: Xp,
    q: Array,
    k: Array,
    v: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    n_outputs: int = 1,
) -> tuple[Array | None, ...]:
    """Return ``softmax(q k' scale + mask) v``, the caches with k and v appended, and the scores.

    `nonpad_kv_seqlen` is the number of valid keys in an external cache. The window sizes limit the
    distance between a query and the keys to its left and right.
    """
    if not q.ndim == k.ndim == v.ndim:
        raise ValueError(
            f"expected Q, K and V of one rank, got shapes {q.shape}, {k.shape}, {v.shape}"
        )
    if (past_key is None) != (past_value is None):
        raise ValueError("expected past_key and past_value both or neither, got one of them")
    if nonpad_kv_seqlen is not None and past_key is not None:
        raise ValueError("expected nonpad_kv_seqlen or past_key and past_value, got all three")
    flat = q.ndim == 3
    q = split_heads(q, q_num_heads, "Q")
    k, v = split_heads(k, kv_num_heads, "K"), split_heads(v, kv_num_heads, "V")
    cached = 0 if past_key is None else past_key.shape[2]
    k, v = append_to_cache(xp, past_key, k), append_to_cache(xp, past_value, v)
    s, t = q.shape[2], k.shape[2]
    ends = None if nonpad_kv_seqlen is None else nonpad_kv_seqlen.reshape(-1, 1, 1, 1)
    query = xp.arange(s)[:, None] + (cached if ends is None else ends - s)
    allowed = allowed_keys(
        xp, query, t, ends, is_causal=is_causal, left=left_window_size, right=right_window_size
    )
    y, scores = attend(
        xp,
        q,
        k,
        v,
        scale=scale,
        softcap=softcap,
        bias=key_bias(xp, attn_mask, allowed, t),
        softmax_type=None if softmax_precision is None else element_type(softmax_precision),
        scores_mode=qk_matmul_output_mode if n_outputs > 3 else None,
    )
    return (join_heads(y) if flat else y, k, v, scores)[:n_outputs]


@op("FlexAttention", since=1, domain="ai.onnx.preview")
def flex_attention_1(
    xp: Xp,
    q: Array,
    k: Array,
    v: Array,
    *,
    prob_mod: Callable[..., tuple[Array, ...]] | None = None,
    scale: float | None = None,
    score_mod: Callable[..., tuple[Array, ...]] | None = None,
    softmax_precision: int | None = None,
) -> Array:
    """Return attention; subgraphs of the model may modify its scores and probabilities."""
    dtype = q.dtype
    softmax_type = element_type(softmax_precision or (11 if dtype.itemsize == 8 else 1))
    q, k, v = to_float32(xp, q, k, v)
    scores = _scores(xp, q, k, scale).astype(softmax_type, copy=False)
    if score_mod is not None:
        (scores,) = score_mod(scores)
    (wider,) = to_float32(xp, scores)
    weights, total = _exponentials(xp, wider.copy(), None)
    weights = (weights / total).astype(softmax_type, copy=False)
    if prob_mod is not None:
        (weights,) = prob_mod(weights)
    return _grouped_product(xp, weights.astype(v.dtype), v).astype(dtype, copy=False)


@op("RotaryEmbedding", since=23)
@in_float32
def rotary_embedding_23(
    xp: Xp,
    x: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Array:
    """Rotate pairs of each head's first elements by angles that depend on the position.

    A pair is an element of the first half and one of the second half; with `interleaved` it is two
    neighbours.
    """
    flat, shape = x.ndim == 3, x.shape
    # (B, S, heads, D)
    x = x.reshape(*shape[:2], num_heads or 1, -1) if flat else x.transpose(0, 2, 1, 3)
    if flat and not num_heads:
        raise ValueError(f"num_heads: expected a number for an input of shape {shape}, got none")
    rotated = rotary_embedding_dim or x.shape[3]
    cos, sin = cos_cache, sin_cache
    if position_ids is not None:
        if not are_within(position_ids, 0, len(cos)):
            raise IndexError(f"position_ids: expected numbers from 0 to {len(cos) - 1}")
        cos, sin = cos[position_ids], sin[position_ids]
    if cos.shape != (*x.shape[:2], rotated // 2) or sin.shape != cos.shape or rotated % 2:
        raise ValueError(
            f"cos_cache and sin_cache: expected shape {(*x.shape[:2], rotated // 2)} at the "
            f"positions, got {cos.shape} and {sin.shape}"
        )
    cos, sin = cos[:, :, None], sin[:, :, None]
    half = rotated // 2
    first, second = slice(half), slice(half, rotated)
    if interleaved:
        first, second = slice(0, rotated, 2), slice(1, rotated, 2)
    a, b = x[..., first], x[..., second]
    y = x.copy()
    y[..., first] = a * cos - b * sin
    y[..., second] = a * sin + b * cos
    return y.reshape(shape) if flat else y.transpose(0, 2, 1, 3)
