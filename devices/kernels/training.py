"""One step of an optimiser: Adagrad, Adam and Momentum, from the training preview domain.

Each takes the learning rate, the update count, and then all tensors, all gradients, and all of
each accumulated statistic.
"""

from __future__ import annotations

from devices.kernels.element_types import Array, Xp
from devices.kernels.registry import op

_DOMAIN = "ai.onnx.preview.training"


def _grouped(tensors: tuple[Array, ...], kinds: int) -> list[tuple[Array, ...]]:
    """Return per optimised tensor: itself, its gradient, its statistics."""
    if not tensors or len(tensors) % kinds:
        raise ValueError(f"{len(tensors)} tensors are not {kinds} per optimised tensor")
    count = len(tensors) // kinds
    return [tensors[i::count] for i in range(count)]


def _flattened(updated: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Return all tensors, then all of each statistic."""
    return tuple(array for kind in zip(*updated, strict=True) for array in kind)


@op("Adagrad", since=1, domain=_DOMAIN)
def adagrad_1(
    xp: Xp, rate: Array, count: Array, *tensors: Array,
    decay_factor: float = 0.0, epsilon: float = 1e-6, norm_coefficient: float = 0.0,
) -> tuple[Array, ...]:  # fmt: skip
    """Divide each gradient element by the root of its accumulated square."""
    step = rate / (1 + count * decay_factor)
    updated = []
    for x, gradient, squares in _grouped(tensors, 3):
        g = norm_coefficient * x + gradient
        h = squares + g * g
        updated.append((_like(x, x - step * g / (xp.sqrt(h) + epsilon)), _like(x, h)))
    return _flattened(updated)


@op("Adam", since=1, domain=_DOMAIN)
def adam_1(
    xp: Xp, rate: Array, count: Array, *tensors: Array,
    alpha: float = 0.9, beta: float = 0.999, epsilon: float = 1e-6, norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Array, ...]:  # fmt: skip
    """Move against the running mean of gradients over the root of that of their squares."""
    bias = xp.sqrt(1 - beta**count) / (1 - alpha**count)
    step = xp.where(count > 0, rate * bias, rate)
    updated = []
    for x, gradient, mean, square in _grouped(tensors, 4):
        g = norm_coefficient * x + gradient
        v = alpha * mean + (1 - alpha) * g
        h = beta * square + (1 - beta) * g * g
        new = (1 - norm_coefficient_post) * (x - step * v / (xp.sqrt(h) + epsilon))
        updated.append((_like(x, new), _like(x, v), _like(x, h)))
    return _flattened(updated)


@op("Momentum", since=1, domain=_DOMAIN, choices={"mode": ("standard", "nesterov")})
def momentum_1(
    xp: Xp, rate: Array, count: Array, *tensors: Array,
    alpha: float, beta: float, mode: str, norm_coefficient: float,
) -> tuple[Array, ...]:  # fmt: skip
    """Move against the accumulated gradient; `nesterov` looks one step ahead."""
    gain = xp.where(count > 0, beta, 1.0)
    updated = []
    for x, gradient, velocity in _grouped(tensors, 3):
        g = norm_coefficient * x + gradient
        v = alpha * velocity + gain * g
        direction = v if mode == "standard" else g + alpha * v
        updated.append((_like(x, x - rate * direction), _like(x, v)))
    return _flattened(updated)


def _like(x: Array, value: Array) -> Array:
    return value.astype(x.dtype, copy=False)
