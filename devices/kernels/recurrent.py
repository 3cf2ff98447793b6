"""Recurrent layers: RNN, GRU and LSTM.

One matrix product projects the inputs of all time steps; the recurrence runs step by step, one
direction after the other. Sizes are written T (time), B (batch), H (hidden), I (input) and
D (directions).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from hetero.devices.kernels.axes import are_within
from hetero.devices.kernels.element_types import Array, Xp, to_float32
from hetero.devices.kernels.registry import op, with_attributes_of

Floats = Sequence[float]
Strings = Sequence[str]
Activation = Callable[[Array], Array]


def _sigmoid(xp: Xp, x: Array) -> Array:
    y = x * 0.5
    xp.tanh(y, out=y)
    y *= 0.5
    y += 0.5
    return y


#: Activation -> the defaults of its parameters (alpha, beta), and its factory.
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
#: Lower-case name -> name: ONNX Runtime, and so we, accept names in any case.
_NAMES = {name.lower(): name for name in _ACTIVATIONS}


def named_activation(xp: Xp, name: str, *parameters: float) -> Activation:
    """Return an activation function with its parameters bound; surplus ones are ignored."""
    defaults, make = _ACTIVATIONS[_NAMES[name.lower()]]
    return make(xp, *parameters[: len(defaults)])


def _activations(
    xp: Xp, names: Strings, alphas: Floats | None, betas: Floats | None, count: int
) -> list[Activation]:
    """Return `count` activations; each takes its parameters from the next alphas and betas."""
    if len(names) < count:
        raise ValueError(f"expected {count} activations, got {tuple(names)}")
    values = (iter(alphas or ()), iter(betas or ()))
    activations = []
    for name in names[:count]:
        defaults, _ = _ACTIVATIONS[_NAMES[name.lower()]]
        parameters = [next(v, default) for v, default in zip(values, defaults, strict=False)]
        activations.append(named_activation(xp, name, *parameters))
    return activations


class _Layer(NamedTuple):
    """Inputs and attributes that the three cells share, checked and in time-major layout."""

    #: (T, B, I).
    x: Array
    #: (D, gates * H, I), (D, gates * H, H), and (D, gates * H) each.
    w: Array
    r: Array
    input_bias: Array
    hidden_bias: Array
    #: (D, B, H).
    initial_h: Array
    #: Steps per batch entry; None if all entries have every step.
    lengths: Array | None
    gates: int
    hidden: int
    #: A list per direction.
    activations: list[list[Activation]]
    clip: float | None
    direction: str
    layout: int
    #: The element type of the results.
    dtype: Any


#: Number of gates -> the default activations of the cell.
_DEFAULTS = {1: ("Tanh",), 3: ("Sigmoid", "Tanh"), 4: ("Sigmoid", "Tanh", "Tanh")}


def _has_default_activations(names: Strings | None, gates: int) -> bool:
    """Return whether names, for one or two directions, are the default activations of a cell."""
    defaults = tuple(name.lower() for name in _DEFAULTS[gates])
    return not names or tuple(name.lower() for name in names) in (defaults, defaults * 2)


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
        raise ValueError(f"X, W and R: expected rank 3, got shapes {x.shape}, {w.shape}, {r.shape}")
    directions = 2 if direction == "bidirectional" else 1
    hidden = r.shape[-1]
    dtype = x.dtype
    x, w, r, b, initial_h = to_float32(xp, x, w, r, b, initial_h)
    x = x.swapaxes(0, 1) if layout else x
    steps, batch, size = x.shape
    shapes = {
        "W": (w, (directions, gates * hidden, size)),
        "R": (r, (directions, gates * hidden, hidden)),
        "B": (b, (directions, 2 * gates * hidden)),
    }
    for name, (array, shape) in shapes.items():
        if array is not None and array.shape != shape:
            raise ValueError(
                f"{name}: expected shape {shape} for X of shape {x.shape}, got {array.shape}"
            )
    if hidden_size not in (None, hidden):
        raise ValueError(f"hidden_size: expected {hidden}, as in R, got {hidden_size}")
    if b is None:
        b = xp.zeros((directions, 2 * gates * hidden), x.dtype)
    if lengths is not None:
        lengths = xp.asarray(lengths)
        if lengths.shape != (batch,) or not are_within(lengths, 0, steps + 1):
            raise ValueError(f"sequence_lens: expected {batch} numbers from 0 to {steps}")
    defaults = _DEFAULTS[gates] * directions
    functions = _activations(
        xp, activations or defaults, activation_alpha, activation_beta, len(defaults)
    )
    count = len(defaults) // directions
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
        [functions[d * count :][:count] for d in range(directions)],
        clip,
        direction,
        layout,
        dtype,
    )


def _initial(
    xp: Xp, x: Array, state: Array | None, directions: int, hidden: int, layout: int, name: str
) -> Array:
    """Return an initial state as (D, B, H), zeros if it is absent; x is (T, B, I)."""
    shape = (directions, x.shape[1], hidden)
    if state is None:
        return xp.zeros(shape, x.dtype)
    state = state.swapaxes(0, 1) if layout else state
    if state.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {state.shape}")
    return state


def _clip_gates(xp: Xp, x: Array, clip: float | None) -> Array:
    return x if clip is None else xp.clip(x, -clip, clip)


#: (projected input of a step (B, gates * H), states (B, H)...) -> new states, the output first.
Cell = Callable[..., tuple[Array, ...]]


def _scan(
    xp: Xp, layer: _Layer, bias: Array, initial: Sequence[Array], make_cell: Callable[[int], Cell]
) -> tuple[Array, ...]:
    """Run every direction over time; return Y and the final states, in the node's layout.

    `bias` (D, gates * H) is added to the projected inputs; `initial` are states (D, B, H);
    `make_cell` returns the cell of a direction.
    """
    (steps, batch, _), directions = layer.x.shape, len(layer.w)
    active = (
        None if layer.lengths is None else xp.arange(steps)[:, None, None] < layer.lengths[:, None]
    )
    y = xp.empty((steps, directions, batch, layer.hidden), layer.x.dtype)
    finals = []
    for d in range(directions):
        cell = make_cell(d)
        projected = xp.matmul(layer.x, layer.w[d].T) + bias[d]
        states = tuple(state[d] for state in initial)
        is_backward = layer.direction == "reverse" or d == 1
        for t in reversed(range(steps)) if is_backward else range(steps):
            results = cell(projected[t], *states)
            if active is not None:
                pairs = zip(results, states, strict=True)
                results = tuple(xp.where(active[t], new, old) for new, old in pairs)
            states = results
            y[t, d] = states[0]
        finals.append(states)
    if active is not None:
        y = xp.where(active[:, None], y, y.dtype.type(0))
    ends = [xp.stack(states) for states in zip(*finals, strict=True)]
    if layer.layout:
        y, ends = y.transpose(2, 0, 1, 3), [end.swapaxes(0, 1) for end in ends]
    return tuple(array.astype(layer.dtype, copy=False) for array in (y, *ends))


_CHOICES = {
    "direction": ("forward", "reverse", "bidirectional"),
    "activations": tuple(s for name in _ACTIVATIONS for s in (name, name.lower(), name.upper())),
}


@op("RNN", since=7, additions={"layout": 14}, choices=_CHOICES)
@with_attributes_of(_layer)
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

    def cell(d: int) -> Cell:
        (f,), recurrent = layer.activations[d], layer.r[d].T

        def step(gate: Array, h: Array) -> tuple[Array, ...]:
            return (f(_clip_gates(xp, gate + xp.matmul(h, recurrent), layer.clip)),)

        return step

    bias = layer.input_bias + layer.hidden_bias
    return _scan(xp, layer, bias, (layer.initial_h,), cell)


@op("GRU", since=7, additions={"layout": 14}, choices=_CHOICES)
@with_attributes_of(_layer)
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
    n, clip = layer.hidden, layer.clip
    # The gates are update z, reset r and hidden h. The bias of h on the recurrent side is added
    # to its product, which `linear_before_reset` multiplies by r.
    bias = layer.input_bias.copy()
    bias[:, : 2 * n] += layer.hidden_bias[:, : 2 * n]

    def cell(d: int) -> Cell:
        (f, g), hidden_bias = layer.activations[d], layer.hidden_bias[d, 2 * n :]
        recurrent_zr, recurrent_h = layer.r[d, : 2 * n].T, layer.r[d, 2 * n :].T

        def step(gates: Array, h: Array) -> tuple[Array, ...]:
            zr = f(_clip_gates(xp, gates[:, : 2 * n] + xp.matmul(h, recurrent_zr), clip))
            z, r = zr[:, :n], zr[:, n:]
            if linear_before_reset:
                product = r * (xp.matmul(h, recurrent_h) + hidden_bias)
            else:
                product = xp.matmul(r * h, recurrent_h) + hidden_bias
            new = g(_clip_gates(xp, gates[:, 2 * n :] + product, clip))
            return ((1 - z) * new + z * h,)

        return step

    return _scan(xp, layer, bias, (layer.initial_h,), cell)


@op("LSTM", since=7, additions={"layout": 14}, choices=_CHOICES)
@with_attributes_of(_layer)
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
    recurrent_input: Activation,
    *,
    input_forget: int,
    **attributes: Any,
) -> tuple[Array, ...]:
    """Return the outputs of LSTM; `recurrent_input` maps h before the recurrent product."""
    layer = _layer(xp, 4, x, w, r, b, sequence_lens, initial_h, **attributes)
    n, clip, directions = layer.hidden, layer.clip, w.shape[0]
    initial_c, p = to_float32(xp, initial_c, p)
    start = _initial(xp, layer.x, initial_c, directions, n, layer.layout, "initial_c")
    if p is not None and p.shape != (directions, 3 * n):
        raise ValueError(f"P: expected shape {(directions, 3 * n)}, got {p.shape}")

    # One operation for a whole cell, which array libraries with slow launches offer.
    whole_cell: Any = getattr(xp, "lstm_cell", None)
    is_plain = p is None and clip is None and not input_forget
    is_plain = is_plain and _has_default_activations(attributes.get("activations"), 4)

    def cell(d: int) -> Cell:
        (f, g, h_of), recurrent = layer.activations[d], layer.r[d].T
        peep_i, peep_o, peep_f = (None,) * 3 if p is None else p[d].reshape(3, n)

        def add_peephole(gate: Array, weights: Array | None, c: Array) -> Array:
            return gate if weights is None else gate + weights * c

        def whole_step(gates: Array, h: Array, c: Array) -> tuple[Array, ...]:
            product = xp.matmul(recurrent_input(h), recurrent)
            states: tuple[Array, ...] = whole_cell(gates, product, c)
            return states

        def step(gates: Array, h: Array, c: Array) -> tuple[Array, ...]:
            gates = gates + xp.matmul(recurrent_input(h), recurrent)
            gate_i, gate_o, gate_f, gate_c = (gates[:, k * n : (k + 1) * n] for k in range(4))
            i = f(_clip_gates(xp, add_peephole(gate_i, peep_i, c), clip))
            forget = (
                1 - i if input_forget else f(_clip_gates(xp, add_peephole(gate_f, peep_f, c), clip))
            )
            new_c = forget * c + i * g(_clip_gates(xp, gate_c, clip))
            o = f(_clip_gates(xp, add_peephole(gate_o, peep_o, new_c), clip))
            return o * h_of(new_c), new_c

        return whole_step if whole_cell and is_plain else step

    bias = layer.input_bias + layer.hidden_bias
    return _scan(xp, layer, bias, (layer.initial_h, start), cell)
