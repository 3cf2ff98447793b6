"""Fused layers: activations with biases, normalisations of sums, products with activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetero.devices.kernels.activation import gelu, hard_swish, swish
from hetero.devices.kernels.conv import conv_1
from hetero.devices.kernels.element_types import Array, Xp, in_float32, to_float32, to_stash_type
from hetero.devices.kernels.linear_attention import causal_conv_with_state_27
from hetero.devices.kernels.matmul import gemm_7, matmul_1
from hetero.devices.kernels.microsoft import MICROSOFT
from hetero.devices.kernels.norm import layer_normalization_17, rms_normalization_23
from hetero.devices.kernels.recurrent import named_activation
from hetero.devices.kernels.registry import op, with_attributes_of


@op("Gelu", since=1, domain=MICROSOFT)
def gelu_exact(xp: Xp, x: Array) -> Array:
    """Return x / 2 * (1 + erf(x / sqrt(2)))."""
    return gelu(xp, x)


@op("BiasGelu", since=1, domain=MICROSOFT)
@in_float32
def bias_gelu(xp: Xp, a: Array, b: Array) -> Array:
    """Return Gelu(a + b)."""
    return gelu(xp, a + b)


@op("FastGelu", since=1, domain=MICROSOFT)
@in_float32
def fast_gelu(xp: Xp, x: Array, bias: Array | None = None) -> Array:
    """Return Gelu(x + bias) in its approximation by tanh."""
    return gelu(xp, x if bias is None else x + bias, approximate="tanh")


@op("QuickGelu", since=1, domain=MICROSOFT)
def quick_gelu(xp: Xp, x: Array, *, alpha: float = 1.702) -> Array:
    """Return x * sigmoid(alpha * x)."""
    return swish(xp, x, alpha=alpha)


@op("BiasAdd", since=1, domain=MICROSOFT)
def bias_add(xp: Xp, x: Array, bias: Array, skip: Array) -> Array:
    """Return x + bias + skip."""
    return x + bias + skip


def _inverse_rms(xp: Xp, x: Array, epsilon: float, axis: int = -1) -> Array:
    axes = tuple(range(axis % x.ndim, x.ndim))
    x = to_stash_type(xp, x, 1)
    return 1 / xp.sqrt(xp.mean(x * x, axis=axes, keepdims=True) + epsilon)


@op("SimplifiedLayerNormalization", since=1)
def simplified_layer_normalization(
    xp: Xp,
    x: Array,
    scale: Array,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    n_outputs: int = 1,
) -> Array | tuple[Array, ...]:
    """Return RMSNormalization, and 1 / root mean square.

    ONNX Runtime defines this operator in ONNX's domain.
    """
    y = rms_normalization_23(xp, x, scale, axis=axis, epsilon=epsilon, stash_type=stash_type)
    return y if n_outputs == 1 else (y, _inverse_rms(xp, x, epsilon, axis))


@op("SkipLayerNormalization", since=1, domain=MICROSOFT)
def skip_layer_normalization(
    xp: Xp,
    x: Array,
    skip: Array,
    gamma: Array,
    beta: Array | None = None,
    bias: Array | None = None,
    *,
    epsilon: float = 1e-12,
    n_outputs: int = 1,
) -> tuple[Array, ...]:
    """Return LayerNormalization(x + skip + bias), mean, 1 / deviation, and that sum."""
    total = x + skip if bias is None else x + skip + bias
    results = layer_normalization_17(xp, total, gamma, beta, epsilon=epsilon, n_outputs=3)
    return (*results, total)[:n_outputs]


@op("SkipSimplifiedLayerNormalization", since=1, domain=MICROSOFT)
def skip_simplified_layer_normalization(
    xp: Xp,
    x: Array,
    skip: Array,
    gamma: Array,
    bias: Array | None = None,
    *,
    epsilon: float = 1e-12,
    n_outputs: int = 1,
) -> tuple[Array | None, ...]:
    """Return RMSNormalization(x + skip + bias), no mean, 1 / root mean square, and that sum."""
    total = x + skip if bias is None else x + skip + bias
    y = rms_normalization_23(xp, total, gamma, epsilon=epsilon)
    inverse = _inverse_rms(xp, total, epsilon) if n_outputs > 2 else None
    return (y, None, inverse, total)[:n_outputs]


@op("EmbedLayerNormalization", since=1, domain=MICROSOFT)
def embed_layer_normalization(
    xp: Xp,
    input_ids: Array,
    segment_ids: Array | None,
    word_embedding: Array,
    position_embedding: Array,
    segment_embedding: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None = None,
    position_ids: Array | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
    n_outputs: int = 1,
) -> tuple[Array, ...]:
    """Return the normalised sum of three embeddings, the number of unmasked ids, and that sum."""
    places = slice(input_ids.shape[1]) if position_ids is None else position_ids
    total = word_embedding[input_ids] + position_embedding[places]
    if segment_embedding is not None and segment_ids is not None:
        total = total + segment_embedding[segment_ids]
    y = layer_normalization_17(xp, total, gamma, beta, epsilon=epsilon)
    flags = xp.zeros_like(input_ids) if mask is None else mask
    count = xp.sum(flags == 1, axis=1).astype(xp.int32)
    return (y, count, total)[:n_outputs]


def _transpose(x: Array, matrix: int, batch: int) -> Array:
    """Move x's first axis before the last with `batch`; then swap the last two with `matrix`."""
    if batch:
        x = x.transpose(*range(1, x.ndim - 1), 0, x.ndim - 1)
    return x.swapaxes(-1, -2) if matrix and x.ndim > 1 else x


@op("TransposeMatMul", since=1, domain=MICROSOFT)
@op("FusedMatMul", since=1, domain=MICROSOFT)
def fused_matmul(
    xp: Xp,
    a: Array,
    b: Array,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Array:
    """Return ``alpha * a @ b``, each transposed if its attributes are set."""
    y = matmul_1(xp, _transpose(a, transA, transBatchA), _transpose(b, transB, transBatchB))
    return y if alpha == 1 else y * y.dtype.type(alpha)


@op("FusedGemm", since=1, domain=MICROSOFT)
def fused_gemm(
    xp: Xp,
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    activation: str = "",
    activation_alpha: float = 0.0,
    activation_beta: float = 0.0,
    activation_gamma: float = 0.0,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """Return ``activation(Gemm(a, b, c))``."""
    y = gemm_7(xp, a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return _activate(xp, y, activation, (activation_alpha, activation_beta))


@op("FusedConv", since=1, domain=MICROSOFT)
@with_attributes_of(conv_1)
def fused_conv(
    xp: Xp,
    x: Array,
    w: Array,
    b: Array | None = None,
    z: Array | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    **window: Any,
) -> Array:
    """Return ``activation(Conv(x, w, b) + z)``."""
    y = conv_1(xp, x, w, b, **window)
    return _activate(xp, y if z is None else y + z, activation, activation_params)


@op("NhwcFusedConv", since=1, domain=MICROSOFT)
@with_attributes_of(fused_conv)
def nhwc_fused_conv(
    xp: Xp, x: Array, w: Array, b: Array | None = None, z: Array | None = None, **attributes: Any
) -> Array:
    """Return FusedConv of x, w and z in channels-last layout."""
    x, w, z = (None if a is None else xp.moveaxis(a, -1, 1) for a in (x, w, z))
    return xp.moveaxis(fused_conv(xp, x, w, b, z, **attributes), 1, -1)


def _activate(xp: Xp, y: Array, name: str, parameters: Sequence[float]) -> Array:
    if not name:
        return y
    dtype = y.dtype
    (y,) = to_float32(xp, y)
    if name == "Clip":
        y = xp.clip(y, *parameters)
    elif name == "HardSwish":
        y = hard_swish(xp, y)
    else:
        alpha, beta, *_ = (*parameters, 0.0, 0.0)
        y = named_activation(xp, name, alpha, beta)(y)
    return y.astype(dtype, copy=False)


@op(
    "CausalConvWithState",
    since=1,
    domain=MICROSOFT,
    choices={
        "activation": ("none", "silu", "swish"),
        "ndim": (1,),
        "dilation": (1,),
        "state_window": (0,),
        "channels_last": (0,),
    },
)
def causal_conv_with_state(
    xp: Xp,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    past_state: Array | None = None,
    *,
    activation: str = "none",
    ndim: int = 1,
    dilation: int = 1,
    state_window: int = 0,
    channels_last: int = 0,
) -> tuple[Array, Array]:
    """Return a depthwise convolution over past inputs (B, C, L), and the last k - 1 inputs."""
    y, state = causal_conv_with_state_27(xp, x, weight, bias, past_state, activation=activation)
    return y, state
