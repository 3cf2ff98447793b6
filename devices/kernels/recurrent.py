"""Recurrent layers: RNN, GRU and LSTM.

All time steps' input projections are one matrix product; only the recurrence runs step by step.
It works on columns, one per batch entry: a product of the square weights with a few columns is
over twice as fast in BLAS as one of a few rows with the weights. A gate of all directions that run
at once lies in one piece.
Sizes are written T (time), B (batch), H (hidden), I (input), D (directions).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from hetero.devices.kernels.axes import are_within
from hetero.devices.kernels.element_types import Array, Xp, is_on_host, wide
from hetero.devices.kernels.registry import op, taking

Floats = Sequence[float]
Strings = Sequence[str]
Activation = Callable[[Array], Array]

#: Bytes of recurrent weights up to which both directions run at once: of more, one's would have
#: left the cache before its next step.
_TOGETHER_BYTES = 1 << 19


def _sigmoid(xp: Xp, x: Array) -> Array:
    y = x * 0.5
    xp.tanh(y, out=y)
    y *= 0.5
    y += 0.5
    return y


#: Activation -> the defaults of alpha and of beta, of those that it has, and what makes it of them.
_ACTIVATIONS: dict[str, tuple[tuple[float, ...], Callable[..., Activation]]] = {
    "Affine": ((1.0, 0.0), lambda xp, alpha, beta: lambda x: alpha * x + beta),
    "Elu": ((1.0,), lambda xp, alpha: lambda x: xp.where(x < 0, alpha * xp.expm1(x), x)),
    "HardSigmoid": ((0.2, 0.5), lambda xp, alpha, beta: lambda x: xp.clip(alpha * x + beta, 0, 1)),
    "LeakyRelu": ((0.01,), lambda xp, alpha: lambda x: xp.where(x < 0, alpha * x, x)),
    "Relu": ((), lambda xp: lambda x: xp.maximum(x, 0)),
    "ScaledTanh": ((1.0, 1.0), lambda xp, alpha, beta: lambda x: alpha * xp.tanh(beta * x)),
    "Sigmoid": ((), lambda xp: partial(_sigmoid, xp)),
    "Softplus": ((), lambda xp: lambda x: xp.logaddexp(x, x.dtype.type(0))),
    "Softsign": ((), lambda xp: lambda x: x / (1 + abs(x))),
    "Tanh": ((), lambda xp: xp.tanh),
    "ThresholdedRelu": (
        (1.0,),
        lambda xp, alpha: lambda x: xp.where(x > alpha, x, xp.zeros_like(x)),
    ),
}
#: ONNX Runtime, and so we, take the names in any case.
_NAMES = {name.lower(): name for name in _ACTIVATIONS}


def named_activation(xp: Xp, name: str, *parameters: float) -> Activation:
    """Return the activation function of that name, with as many parameters bound as it has."""
    defaults, make = _ACTIVATIONS[_NAMES[name.lower()]]
    return make(xp, *parameters[: len(defaults)])


def _activations(
    xp: Xp, names: Strings, alphas: Floats | None, betas: Floats | None, count: int
) -> list[Activation]:
    """Return `count` activations; alphas and betas are consumed by those that take them.

    Those of one name and parameters are the same.
    """
    if len(names) < count:
        raise ValueError(f"activations {tuple(names)}: {count} wanted")
    given = (iter(alphas or ()), iter(betas or ()))
    made: dict[tuple[Any, ...], Activation] = {}
    chosen = []
    for name in names[:count]:
        defaults, _ = _ACTIVATIONS[_NAMES[name.lower()]]
        parameters = tuple(next(v, d) for v, d in zip(given, defaults, strict=False))
        activation = named_activation(xp, name, *parameters)
        chosen.append(made.setdefault((name.lower(), *parameters), activation))
    return chosen


class _Layer(NamedTuple):
    """What the three cells share, checked and in time-major layout."""

    #: (T, B, I), and per direction W (gates * H, I), R (gates * H, H), biases (gates * H) each.
    x: Array
    w: Array
    r: Array
    input_bias: Array
    hidden_bias: Array
    #: Per direction (B, H).
    initial_h: Array
    #: Steps per batch entry, or None where all run to the end.
    lengths: Array | None
    gates: int
    hidden: int
    #: Those of all directions, one after the other.
    activations: list[Activation]
    clip: float | None
    direction: str
    layout: int
    #: The element type of the results.
    dtype: Any


#: The usual activations of a cell, by its gates.
_USUAL = {1: ("Tanh",), 3: ("Sigmoid", "Tanh"), 4: ("Sigmoid", "Tanh", "Tanh")}


def _layer(
    xp: Xp,
    gates: int,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    lengths: Array | None,
    initial_h: Array | None,
    *,
    activation_alpha: Floats | None = None,
    activation_beta: Floats | None = None,
    activations: Strings | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> _Layer:
    if x.ndim != 3 or w.ndim != 3 or r.ndim != 3:
        raise ValueError(f"X, W and R have shapes {x.shape}, {w.shape}, {r.shape}: rank 3 wanted")
    directions = 2 if direction == "bidirectional" else 1
    hidden = r.shape[-1]
    dtype = x.dtype
    x, w, r, b, initial_h = wide(xp, x, w, r, b, initial_h)
    x = x.swapaxes(0, 1) if layout else x
    steps, batch, size = x.shape
    wanted = {
        "W": (w, (directions, gates * hidden, size)),
        "R": (r, (directions, gates * hidden, hidden)),
        "B": (b, (directions, 2 * gates * hidden)),
    }
    for name, (array, shape) in wanted.items():
        if array is not None and array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}; {shape} wanted for X {x.shape}")
    if hidden_size not in (None, hidden):
        raise ValueError(f"hidden_size is {hidden_size}, but R has shape {r.shape}")
    if b is None:
        b = xp.zeros((directions, 2 * gates * hidden), x.dtype)
    if lengths is not None:
        lengths = xp.asarray(lengths)
        if lengths.shape != (batch,) or not are_within(lengths, 0, steps + 1):
            raise ValueError(f"sequence_lens must be {batch} numbers from 0 to {steps}")
        if is_on_host(lengths) and bool((lengths == steps).all()):
            lengths = None
    usual = _USUAL[gates] * directions
    names = activations or usual
    return _Layer(
        x,
        w,
        r,
        b[:, : gates * hidden],
        b[:, gates * hidden :],
        _initial(xp, x, initial_h, directions, hidden, layout, "initial_h"),
        lengths,
        gates,
        hidden,
        _activations(xp, names, activation_alpha, activation_beta, len(usual)),
        clip,
        direction,
        layout,
        dtype,
    )


def _initial(
    xp: Xp, x: Array, state: Array | None, directions: int, hidden: int, layout: int, name: str
) -> Array:
    """Return an initial state as (D, B, H), zeros if absent; x is (T, B, I)."""
    shape = (directions, x.shape[1], hidden)
    if state is None:
        return xp.zeros(shape, x.dtype)
    state = state.swapaxes(0, 1) if layout else state
    if state.shape != shape:
        raise ValueError(f"{name} has shape {state.shape}; {shape} wanted")
    return state


def _clipped(xp: Xp, x: Array, clip: float | None) -> Array:
    return x if clip is None else xp.clip(x, -clip, clip)


#: (projected input of a step, (gates, D, H, B), to which it may add; states) -> states (D, H, B),
#: the step's output first.
Step = Callable[..., tuple[Array, ...]]
#: Directions that run at once, and their activations -> their step.
_MakeStep = Callable[[slice, list[Activation]], Step]


def _scan(
    xp: Xp, layer: _Layer, bias: Array, initial: Sequence[Array], make_step: _MakeStep
) -> tuple[Array, ...]:
    """Run every direction over time; return Y and the final states, in the node's layout.

    `bias` (D, gates * H) is added to the projected inputs.
    """
    (steps, batch, size), directions, dtype = layer.x.shape, len(layer.w), layer.x.dtype
    backward = [layer.direction == "reverse" or d == 1 for d in range(directions)]
    orders = [slice(None, None, -1 if reverse else 1) for reverse in backward]
    count = len(layer.activations) // directions
    alike = layer.activations == layer.activations[:count] * directions
    together = directions if alike and layer.r.nbytes <= _TOGETHER_BYTES else 1
    active = None if layer.lengths is None else xp.arange(steps)[:, None, None] < layer.lengths
    y = xp.empty((steps, directions, layer.hidden, batch), dtype)
    finals = []
    rows = layer.x.reshape(steps * batch, size)
    for first in range(0, directions, together):
        part = slice(first, first + together)
        projected = xp.empty((steps, layer.gates, together, layer.hidden, batch), dtype)
        for d, order in enumerate(orders[part]):
            product = xp.matmul(rows, layer.w[first + d].T)
            product += bias[first + d]
            product = product.reshape(steps, batch, layer.gates, layer.hidden)
            projected[order, :, d] = product.transpose(0, 2, 3, 1)
        states = tuple(xp.ascontiguousarray(state[part].swapaxes(1, 2)) for state in initial)
        step = make_step(part, layer.activations[first * count :][:count])
        outputs = xp.empty((steps, together, layer.hidden, batch), dtype)
        for t in range(steps):
            new = step(projected[t], *states)
            if active is not None:
                now = xp.stack([active[order][t] for order in orders[part]])
                new = tuple(xp.where(now, a, b) for a, b in zip(new, states, strict=True))
            states = new
            outputs[t] = states[0]
        finals.append(states)
        for d, order in enumerate(orders[part]):
            y[order, first + d] = outputs[:, d]
    if active is not None:
        y = xp.where(active[:, None], y, dtype.type(0))
    # From (..., H, B) to (..., B, H), or with the batch first.
    ends = [xp.concatenate(final) for final in zip(*finals, strict=True)]
    y = y.transpose(3, 0, 1, 2) if layer.layout else y.swapaxes(2, 3)
    ends = [end.transpose(2, 0, 1) if layer.layout else end.swapaxes(1, 2) for end in ends]
    return tuple(
        xp.ascontiguousarray(array).astype(layer.dtype, copy=False) for array in (y, *ends)
    )


_CHOICES = {
    "direction": ("forward", "reverse", "bidirectional"),
    "activations": tuple(s for name in _ACTIVATIONS for s in (name, name.lower(), name.upper())),
}


@op("RNN", since=7, added={"layout": 14}, choices=_CHOICES)
@taking(_layer)
def rnn_7(
    xp: Xp,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activations: Strings = ("Tanh", "Tanh"),
    **attributes: Any,
) -> tuple[Array, ...]:
    """Return Y (T, D, B, H) and Y_h of ``H = f(X W' + H R' + b)``; `layout` 1: batch first."""
    layer = _layer(
        xp, 1, x, w, r, b, sequence_lens, initial_h, activations=activations, **attributes
    )

    def make_step(part: slice, activations: list[Activation]) -> Step:
        (f,), recurrent = activations, layer.r[part]

        def step(gates: Array, h: Array) -> tuple[Array, ...]:
            gate = gates[0]
            gate += xp.matmul(recurrent, h)
            return (f(_clipped(xp, gate, layer.clip)),)

        return step

    return _scan(xp, layer, layer.input_bias + layer.hidden_bias, (layer.initial_h,), make_step)


@op("GRU", since=7, added={"layout": 14}, choices=_CHOICES)
@taking(_layer)
def gru_7(
    xp: Xp,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    linear_before_reset: int = 0,
    **attributes: Any,
) -> tuple[Array, ...]:
    """Return Y (T, D, B, H) and Y_h of the gated recurrent unit; `layout` 1: batch first."""
    layer = _layer(xp, 3, x, w, r, b, sequence_lens, initial_h, **attributes)
    n, batch, clip = layer.hidden, layer.x.shape[1], layer.clip
    # The gates' order is update z, reset r, hidden h.
    late = layer.hidden_bias[:, 2 * n :]
    bias = layer.input_bias.copy()
    bias[:, : 2 * n] += layer.hidden_bias[:, : 2 * n]
    if not linear_before_reset:
        bias[:, 2 * n :] += late

    def make_step(part: slice, activations: list[Activation]) -> Step:
        (f, g), recurrent, late_bias = activations, layer.r[part], late[part, :, None]
        early = recurrent if linear_before_reset else recurrent[:, : 2 * n]
        shape = (len(recurrent), 3 if linear_before_reset else 2, n, batch)

        def step(gates: Array, h: Array) -> tuple[Array, ...]:
            products = xp.matmul(early, h).reshape(shape).swapaxes(0, 1)
            zr, hidden = gates[:2], gates[2]
            zr += products[:2]
            zr = f(_clipped(xp, zr, clip))
            if linear_before_reset:
                hidden += zr[1] * (products[2] + late_bias)
            else:
                hidden += xp.matmul(recurrent[:, 2 * n :], zr[1] * h)
            new = g(_clipped(xp, hidden, clip))
            return (new + zr[0] * (h - new),)

        return step

    return _scan(xp, layer, bias, (layer.initial_h,), make_step)


@op("LSTM", since=7, added={"layout": 14}, choices=_CHOICES)
@taking(_layer)
def lstm_7(
    xp: Xp,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
    *,
    input_forget: int = 0,
    **attributes: Any,
) -> tuple[Array, ...]:
    """Return Y (T, D, B, H), Y_h and Y_c of the long short-term memory; `layout` 1: batch first."""
    return long_short_term_memory(
        xp,
        x,
        w,
        r,
        b,
        sequence_lens,
        initial_h,
        initial_c,
        p,
        lambda h: h,
        input_forget=input_forget,
        **attributes,
    )


def long_short_term_memory(
    xp: Xp,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    sequence_lens: Array | None,
    initial_h: Array | None,
    initial_c: Array | None,
    p: Array | None,
    seen: Activation,
    *,
    input_forget: int,
    **attributes: Any,
) -> tuple[Array, ...]:
    """Return what LSTM does; `seen` is what of the hidden state meets the recurrent weights."""
    layer = _layer(xp, 4, x, w, r, b, sequence_lens, initial_h, **attributes)
    n, batch, clip = layer.hidden, layer.x.shape[1], layer.clip
    initial_c, p = wide(xp, initial_c, p)
    start = _initial(xp, layer.x, initial_c, w.shape[0], n, layer.layout, "initial_c")
    if p is not None and p.shape != (w.shape[0], 3 * n):
        raise ValueError(f"P has shape {p.shape}; {(w.shape[0], 3 * n)} wanted")
    uniform = p is None and not input_forget

    def make_step(part: slice, activations: list[Activation]) -> Step:
        # The gates' order is input i, output o, forget f, cell c; peepholes are (i, o, f).
        (f, g, h_of), recurrent = activations, layer.r[part]
        peep = None if p is None else p[part].reshape(-1, 3, n, 1).swapaxes(0, 1)
        shape = (len(recurrent), 4, n, batch)

        def step(gates: Array, h: Array, c: Array) -> tuple[Array, ...]:
            gates += xp.matmul(recurrent, seen(h)).reshape(shape).swapaxes(0, 1)
            if peep is not None:
                gates[0] += peep[0] * c
                gates[2] += peep[2] * c
            if uniform:
                iof = f(_clipped(xp, gates[:3], clip))
                i, o, forget = iof[0], iof[1], iof[2]
            else:
                i = f(_clipped(xp, gates[0], clip))
                forget = 1 - i if input_forget else f(_clipped(xp, gates[2], clip))
            new_c = forget * c
            new_c += i * g(_clipped(xp, gates[3], clip))
            if not uniform:
                if peep is not None:
                    gates[1] += peep[1] * new_c
                o = f(_clipped(xp, gates[1], clip))
            return o * h_of(new_c), new_c

        return step

    bias = layer.input_bias + layer.hidden_bias
    return _scan(xp, layer, bias, (layer.initial_h, start), make_step)
