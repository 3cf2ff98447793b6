"""Linear attention with a recurrent state, and the causal convolution that precedes it."""

from __future__ import annotations

from math import sqrt

from hetero.devices.kernels.element_types import Array, Xp, to_float32
from hetero.devices.kernels.registry import op


def _by_head(x: Array, heads: int, name: str) -> Array:
    """Return (B, T, heads * D) as (T, B, heads, D)."""
    if x.ndim != 3 or heads < 1 or x.shape[2] % heads:
        raise ValueError(f"{name}: expected rank 3 and {heads} heads, got shape {x.shape}")
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).swapaxes(0, 1)


_RULES = {"update_rule": ("linear", "gated", "delta", "gated_delta")}


@op("LinearAttention", since=27, choices=_RULES)
def linear_attention_27(
    xp: Xp,
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Array, Array]:
    """Apply each token's query to a state that keys and values update; also return the state.

    ``S = exp(decay) S + beta k (v - exp(decay) S' k)'``; rules without `gated` have no decay, rules
    without `delta` no correction. The state is float32 or wider. `chunk_size` is a hint that does
    not change the result.
    """
    for name, tensor, is_needed in (
        ("decay", decay, "gated" in update_rule),
        ("beta", beta, "delta" in update_rule),
    ):
        if (tensor is not None) != is_needed:
            raise ValueError(
                f"update_rule {update_rule!r} {'needs' if is_needed else 'has no'} {name}"
            )
    dtype = query.dtype
    state_dtype = dtype if past_state is None else past_state.dtype
    query, key, value, past_state, decay, beta = to_float32(
        xp, query, key, value, past_state, decay, beta
    )
    q = _by_head(query, q_num_heads, "query")
    k, v = _by_head(key, kv_num_heads, "key"), _by_head(value, kv_num_heads, "value")
    if q_num_heads % kv_num_heads or q.shape[3] != k.shape[3]:
        raise ValueError(f"query {query.shape} and key {key.shape} do not fit the head counts")
    steps, batch, _, dk = k.shape
    gates = None if decay is None else xp.exp(_by_head(decay, kv_num_heads, "decay"))
    rates = None if beta is None else beta.swapaxes(0, 1)[..., None]
    shape = (batch, kv_num_heads, dk, v.shape[3])
    state = xp.zeros(shape, q.dtype) if past_state is None else past_state
    if state.shape != shape:
        raise ValueError(f"past_state: expected shape {shape}, got {state.shape}")
    # Query heads that share a key head are rows of one matrix product.
    q = q.reshape(steps, batch, kv_num_heads, q_num_heads // kv_num_heads, dk)
    outputs = xp.empty((*q.shape[:4], v.shape[3]), q.dtype)
    for t in range(steps):
        if gates is not None:
            state = state * gates[t][..., None]
        update = v[t]
        if rates is not None:
            prediction = xp.matmul(k[t][..., None, :], state)[..., 0, :]
            update = rates[t] * (update - prediction)
        state = state + k[t][..., :, None] * update[..., None, :]
        outputs[t] = xp.matmul(q[t], state)
    outputs *= outputs.dtype.type(scale or 1 / sqrt(dk))
    y = outputs.swapaxes(0, 1).reshape(batch, steps, q_num_heads * v.shape[3])
    return y.astype(dtype, copy=False), state.astype(state_dtype, copy=False)


@op("CausalConvWithState", since=27, choices={"activation": ("none", "silu", "swish")})
def causal_conv_with_state_27(
    xp: Xp,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
    *,
    activation: str = "none",
) -> tuple[Array, Array]:
    """Return a depthwise convolution over past inputs (B, C, L), and the last k - 1 inputs."""
    if x.ndim != 3 or weight.ndim != 3 or weight.shape[:2] != (x.shape[1], 1):
        raise ValueError(
            "expected an input of shape (B, C, L) and a weight of shape (C, 1, k), got "
            f"{x.shape} and {weight.shape}"
        )
    k, length = weight.shape[2], x.shape[2]
    shape = (*x.shape[:2], k - 1)
    past = xp.zeros(shape, x.dtype) if past_state is None else past_state
    if past.shape != shape:
        raise ValueError(f"past_state: expected shape {shape}, got {past.shape}")
    padded = xp.concatenate((past, x), axis=2)
    signal, taps, offset = to_float32(xp, padded, weight, bias)
    y = sum(signal[:, :, i : i + length] * taps[:, :, i] for i in range(k))
    if offset is not None:
        y = y + offset[:, None]
    if activation != "none":
        y = y / (1 + xp.exp(-y))
    return y.astype(x.dtype, copy=False), padded[:, :, length:]
