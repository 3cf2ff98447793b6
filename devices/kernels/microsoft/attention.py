"""Fused attention operators of ONNX Runtime: masks, cache buffers, rotary embeddings, sinks.

Sizes are written B (batch), H (query heads), G (key and value heads), S (queries), T (keys and
values, cached ones included), D (head size).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from hetero.devices.kernels.attention import (
    allowed_keys,
    append_to_cache,
    attend,
    join_heads,
    key_bias,
    rotary_embedding_23,
    split_heads,
)
from hetero.devices.kernels.element_types import Array, Xp, to_float32
from hetero.devices.kernels.microsoft import MICROSOFT
from hetero.devices.kernels.norm import rms_normalization_23
from hetero.devices.kernels.registry import op


def _mask_bias(xp: Xp, mask: Array, b: int, s: int, t: int, filter_value: float) -> Array:
    """Return the term added to scores, (B, 1, S or 1, T), for any form of mask."""
    if mask.ndim == 1:  # (B) numbers of keys; (2 B) ends, then begins; (3 B + 2) lengths, offsets
        key = xp.arange(t)
        allowed = key < mask[:b, None]
        if mask.shape[0] == 2 * b:
            allowed = allowed & (key >= mask[b:, None])
        mask = allowed
    mask = mask.reshape(b, 1, -1 if mask.ndim > 2 else 1, mask.shape[-1])
    return xp.where(mask[:, :, -s:] > 0, xp.float32(0), xp.float32(filter_value))


def _attention(
    xp: Xp,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    attention_bias: Array | None,
    *,
    mask_filter_value: float,
    scale: float,
    unidirectional: int,
    cached: int,
    wants_scores: bool,
) -> tuple[Array, Array | None]:
    """Return attention as (B, S, H * D), and the scores before the softmax."""
    (b, _, s, _), t = q.shape, k.shape[2]
    bias = None if mask is None else _mask_bias(xp, mask, b, s, t, mask_filter_value)
    if unidirectional:
        earlier = allowed_keys(xp, xp.arange(s)[:, None] + cached, t, is_causal=1)
        lowest = xp.float32(xp.finfo(xp.float32).min)
        bias = xp.where(earlier, xp.float32(0) if bias is None else bias, lowest)
    if attention_bias is not None:
        (attention_bias,) = to_float32(xp, attention_bias)
        bias = attention_bias if bias is None else bias + attention_bias
    y, scores = attend(
        xp, q, k, v, scale=scale or None, bias=bias, scores_mode=2 if wants_scores else None
    )
    return join_heads(y), scores


@op("MultiHeadAttention", since=1, domain=MICROSOFT)
def multi_head_attention(
    xp: Xp,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    key_padding_mask: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    scale: float = 0.0,
    unidirectional: int = 0,
    n_outputs: int = 1,
) -> tuple[Array | None, ...]:
    """Return attention (B, S, H * D), the keys and values including the cached ones, and scores."""
    if query.ndim != 3:
        raise ValueError(f"query: expected shape (batch, length, hidden), got {query.shape}")
    if bias is not None:
        width, inner = query.shape[2], query.shape[2] * 2
        query = query + bias[:width]
        key = key + bias[width:inner] if key.ndim == 3 else key
        value = value + bias[inner:] if value.ndim == 3 else value
    q, k, v = (split_heads(x, num_heads, "input") for x in (query, key, value))
    k, v = append_to_cache(xp, past_key, k), append_to_cache(xp, past_value, v)
    y, scores = _attention(
        xp,
        q,
        k,
        v,
        key_padding_mask,
        attention_bias,
        mask_filter_value=mask_filter_value,
        scale=scale,
        unidirectional=unidirectional,
        cached=0 if past_key is None else past_key.shape[2],
        wants_scores=n_outputs > 3,
    )
    return (y, k, v, scores)[:n_outputs]


@op("Attention", since=1, domain=MICROSOFT)
def attention(
    xp: Xp,
    x: Array,
    weights: Array,
    bias: Array | None = None,
    mask_index: Array | None = None,
    past: Array | None = None,
    attention_bias: Array | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    qkv_hidden_sizes: Sequence[int] | None = None,
    scale: float = 0.0,
    unidirectional: int = 0,
    n_outputs: int = 1,
) -> tuple[Array, ...]:
    """Return attention of query, key and value from one projection of x, and the cache (2, ...)."""
    dtype = x.dtype
    x, weights, bias = to_float32(xp, x, weights, bias)
    projection = xp.matmul(x, weights)
    if bias is not None:
        projection = projection + bias
    projection = projection.astype(dtype, copy=False)
    sizes = qkv_hidden_sizes or (projection.shape[2] // 3,) * 3
    parts = (projection[..., i:j] for i, j in pairwise(accumulate(sizes, initial=0)))
    q, k, v = (split_heads(part, num_heads, "weights") for part in parts)
    if past is not None:
        k, v = append_to_cache(xp, past[0], k), append_to_cache(xp, past[1], v)
    y, _ = _attention(
        xp,
        q,
        k,
        v,
        mask_index,
        attention_bias,
        mask_filter_value=mask_filter_value,
        scale=scale,
        unidirectional=unidirectional,
        cached=k.shape[2] - q.shape[2],
        wants_scores=False,
    )
    return y if n_outputs == 1 else (y, xp.stack((k, v)))


@op("RotaryEmbedding", since=1, domain=MICROSOFT, choices={"is_packed_batching": (0,)})
def rotary_embedding(
    xp: Xp,
    x: Array,
    position_ids: Array,
    cos_cache: Array,
    sin_cache: Array,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Array:
    """Apply ONNX's RotaryEmbedding.

    One-dimensional `position_ids` hold the first token's position; later tokens count up from it.
    """
    batch, length = x.shape[0], x.shape[1 if x.ndim == 3 else 2]
    if position_ids.ndim == 1:
        position_ids = xp.broadcast_to(position_ids + xp.arange(length), (batch, length))
    if x.ndim == 3 and not num_heads:
        num_heads = x.shape[2] // (2 * cos_cache.shape[1])
    return rotary_embedding_23(
        xp,
        x,
        cos_cache,
        sin_cache,
        position_ids,
        interleaved=interleaved,
        num_heads=num_heads,
        rotary_embedding_dim=rotary_embedding_dim,
    )


@op(
    "GroupQueryAttention",
    since=1,
    domain=MICROSOFT,
    host=(5, 6),
    choices={
        "k_quant_type": ("NONE",),
        "v_quant_type": ("NONE",),
        "kv_cache_bit_width": (0,),
        "sliding_window_cache": (0, 1),
        "qk_output": (0, 1, 2),
    },
)
def group_query_attention(
    xp: Xp,
    query: Array,
    key: Array | None,
    value: Array | None,
    past_key: Array | None,
    past_value: Array | None,
    seqlens_k: Array,
    total_sequence_length: Array,
    cos_cache: Array | None = None,
    sin_cache: Array | None = None,
    position_ids: Array | None = None,
    attention_bias: Array | None = None,
    head_sink: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    q_norm_weight: Array | None = None,
    k_norm_weight: Array | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sliding_window_cache: int = 0,
    smooth_softmax: int = 0,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
    n_outputs: int = 1,
) -> tuple[Array | None, ...]:
    """Return causal attention of grouped heads, and the buffers of keys and values.

    `seqlens_k` + 1 is the number of tokens of each sequence, cached ones included; the new tokens
    are written into the buffers after the cached ones. A prompt has no cached tokens. `head_sink`,
    or 0 with `smooth_softmax`, is one more score in the softmax. With `sliding_window_cache`, the
    buffers hold only the last tokens of the sequence.
    """
    if key is None or value is None:  # the query is packed with key and value
        width = query.shape[2] // (num_heads + 2 * kv_num_heads)
        at = (num_heads * width, (num_heads + kv_num_heads) * width)
        query, key, value = query[..., : at[0]], query[..., at[0] : at[1]], query[..., at[1] :]
    q = split_heads(query, num_heads, "query")
    k, v = split_heads(key, kv_num_heads, "key"), split_heads(value, kv_num_heads, "value")
    if q_norm_weight is not None:
        q = rms_normalization_23(xp, q, q_norm_weight, epsilon=qk_norm_epsilon)
    if k_norm_weight is not None:
        k = rms_normalization_23(xp, k, k_norm_weight, epsilon=qk_norm_epsilon)
    b, s, total = q.shape[0], q.shape[2], int(total_sequence_length.reshape(()))
    num_cached = 0 if past_key is None else past_key.shape[2]
    window = _WindowedCache(num_cached, local_window_size) if sliding_window_cache else None
    if window is None and num_cached < total != num_cached + s:
        raise ValueError(
            f"total_sequence_length is {total}; expected {num_cached + s}, the cached and the new "
            f"tokens, or at most {num_cached}, the size of the cache"
        )
    ends = [int(n) + 1 for n in seqlens_k.reshape(-1)]
    begins = [0 if s == total else end - s for end in ends]
    if min(begins, default=0) < 0 or not all(0 < end <= total for end in ends):
        raise ValueError(
            f"seqlens_k + 1 is {ends}; expected numbers of cached and {s} new tokens, at most "
            f"total_sequence_length, {total}"
        )
    first = xp.asarray(begins)[:, None]
    if do_rotary and cos_cache is not None:
        if position_ids is None:
            position_ids = first + xp.arange(s)
            position_ids = xp.where(position_ids < xp.asarray(ends)[:, None], position_ids, 1)
        q, k = (
            rotary_embedding_23(
                xp,
                x,
                cos_cache,
                sin_cache,
                position_ids,
                interleaved=rotary_interleaved,
                rotary_embedding_dim=2 * cos_cache.shape[1],
            )
            for x in (q, k)
        )
    capacity = total if window else max(total, num_cached)
    if window:
        past_key, past_value = (
            window.expand(xp, past, begins, total) for past in (past_key, past_value)
        )
    k = _write_cache(xp, past_key, k, begins, capacity)
    v = _write_cache(xp, past_value, v, begins, capacity)
    place = (first + xp.arange(s))[:, None, :, None]
    allowed = allowed_keys(
        xp,
        place,
        total,
        None if causal else xp.asarray(ends).reshape(b, 1, 1, 1),
        is_causal=causal,
        left=local_window_size - 1 if local_window_size > 0 else -1,
    )
    if attention_bias is not None:
        attention_bias = attention_bias[..., :total]
    if head_sink is None and smooth_softmax:
        head_sink = xp.zeros(num_heads, q.dtype)
    y, scores = attend(
        xp,
        q,
        k[:, :, :total],
        v[:, :, :total],
        scale=scale or None,
        softcap=softcap,
        bias=key_bias(xp, attention_bias, allowed, total),
        sink=head_sink,
        scores_mode=None if n_outputs < 4 else 3 if qk_output == 2 else 2,
    )
    if scores is not None and qk_output != 2:
        scores = xp.where(allowed, scores, scores.dtype.type(0))
    if window:
        k, v = (window.shrink(xp, whole, ends) for whole in (k, v))
    return (join_heads(y), k, v, scores)[:n_outputs]


class _WindowedCache:
    """A KV cache of the last tokens; ONNX Runtime's docs/contrib_ops/cpu/gqa.md specifies it.

    Its first rows are the last tokens in order; their number depends on the length of the sequence
    alone, and is between the window and the capacity once the cache is full.
    """

    def __init__(self, capacity: int, window: int) -> None:
        if not 0 < window <= capacity:
            raise ValueError(
                f"sliding_window_cache with local_window_size {window} and a cache of {capacity} "
                "tokens; expected a window of at least 1, and a cache of at least the window"
            )
        self._capacity = capacity
        self._num_evicted = capacity - window + 1

    def num_rows(self, length: int) -> int:
        """Return the number of last tokens that the cache holds after `length` tokens."""
        excess = max(length - self._capacity, 0)
        return length - self._num_evicted * -(-excess // self._num_evicted)

    def expand(self, xp: Xp, past: Array, lengths: Sequence[int], total: int) -> Array:
        """Return a cache of the whole sequences; evicted tokens, which no query reads, are 0."""
        b, heads, _, size = past.shape
        whole = xp.zeros((b, heads, total, size), past.dtype)
        for i, length in enumerate(lengths):
            rows = self.num_rows(length)
            whole[i, :, length - rows : length] = past[i, :, :rows]
        return whole

    def shrink(self, xp: Xp, whole: Array, lengths: Sequence[int]) -> Array:
        """Return the cache of the last tokens of whole sequences."""
        b, heads, _, size = whole.shape
        cache = xp.zeros((b, heads, self._capacity, size), whole.dtype)
        for i, length in enumerate(lengths):
            rows = self.num_rows(length)
            cache[i, :, :rows] = whole[i, :, length - rows : length]
        return cache


def _write_cache(
    xp: Xp, past: Array | None, new: Array, begins: Sequence[int], capacity: int
) -> Array:
    """Return a buffer of `capacity` tokens with the cached and, from `begins` on, the new ones."""
    b, heads, s, size = new.shape
    buffer = xp.zeros((b, heads, capacity, size), new.dtype)
    for i, begin in enumerate(begins):
        if past is not None and begin:
            buffer[i, :, :begin] = past[i, :, :begin]
        buffer[i, :, begin : begin + s] = new[i]
    return buffer
