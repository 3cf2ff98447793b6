"""Bindings of RNN, GRU and LSTM: every step's calls, on states that stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from devices.cpu.binding.registry import Call, Scratch, binds

#: Steps of all directions up to which each has calls of its own.
_MOST_STEPS: Final = 1024

#: (projected inputs, state, place of the next state) -> a step's calls, which leave the other
#: states as the next step wants them.
_Step = Callable[[np.ndarray, np.ndarray, np.ndarray], Iterable[Call]]


def _is_plain(
    x: np.ndarray, w: np.ndarray, b: np.ndarray | None, activations: Sequence[str] | None,
    usual: Sequence[str], others: Sequence[Any],
) -> bool:  # fmt: skip
    """Tell whether a layer has whole sequences, time first, and the usual activations alone."""
    if any(other is not None for other in others) or x.dtype != np.float32 or not x.size:
        return False
    if b is None or b.flags.writeable or len(x) * len(w) > _MOST_STEPS:
        return False
    count = len(usual) * len(w)
    return not activations or tuple(map(str.lower, activations[:count])) == (*usual,) * len(w)


def _scan(
    scratch: Scratch, outputs: Sequence[np.ndarray | None], x: np.ndarray, w: np.ndarray,
    biases: np.ndarray, direction: str, hidden: int,
    starts: Sequence[np.ndarray | None], step_of: Callable[..., _Step],
) -> list[Call]:  # fmt: skip
    """Return the calls that project all inputs at once, then run each direction over time.

    `starts` are the initial states; the first of them is what a step puts out. ``step_of(d,
    *others)`` gives a direction's step on the other states.
    """
    y, *ends = (*outputs, None, None, None)[: 1 + len(starts)]
    (steps, batch, size), gates = x.shape, w.shape[1]
    rows = x.reshape(-1, size) if x.flags.c_contiguous else scratch((steps * batch, size), x.dtype)
    calls: list[Call] = []
    if not x.flags.c_contiguous:
        calls.append(partial(np.copyto, rows.reshape(x.shape), x))
    states = scratch((steps + 1, hidden, batch), x.dtype)
    others = [scratch((hidden, batch), x.dtype) for _ in starts[1:]]
    by_row = scratch((steps * batch, gates), x.dtype)
    projected = scratch((steps, gates, batch), x.dtype)
    for d in range(len(w)):
        calls.append(partial(np.matmul, rows, w[d].T, by_row))
        calls.append(partial(np.add, by_row, biases[d], by_row))
        shown = by_row.reshape(steps, batch, -1).swapaxes(1, 2)
        calls.append(partial(np.copyto, projected, shown))
        for state, start in zip((states[0], *others), starts, strict=True):
            if start is None:
                calls.append(partial(state.fill, 0))
            else:
                calls.append(partial(np.copyto, state, start[d].T))
        in_time = slice(None, None, -1 if direction == "reverse" or d == 1 else 1)
        step = step_of(d, *others)
        for t, inputs in enumerate(projected[in_time]):
            calls += step(inputs, states[t], states[t + 1])
        if y is not None:
            calls.append(partial(np.copyto, y[in_time, d], states[1:].swapaxes(1, 2)))
        for end, state in zip(ends, (states[-1], *others), strict=True):
            if end is not None:
                calls.append(partial(np.copyto, end[d].T, state))
    return calls


def _activated(gates: np.ndarray, smooth: np.ndarray) -> Iterator[Call]:
    """Yield the calls that put tanh into gates, of which `smooth` get the sigmoid.

    The sigmoid of x is (tanh(x / 2) + 1) / 2.
    """
    half = np.asarray(0.5, gates.dtype)
    yield partial(np.multiply, smooth, half, smooth)
    yield partial(np.tanh, gates, gates)
    yield partial(np.multiply, smooth, half, smooth)
    yield partial(np.add, smooth, half, smooth)


@binds("RNN", 7, many=True)
def bind_rnn(
    scratch: Scratch, outputs: Sequence[np.ndarray | None], x: np.ndarray, w: np.ndarray,
    r: np.ndarray, b: np.ndarray | None = None, sequence_lens: np.ndarray | None = None,
    initial_h: np.ndarray | None = None, *,
    activations: Sequence[str] | None = None, direction: str = "forward",
    hidden_size: int | None = None, **others: Any,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind the plain RNN."""
    unusual = (sequence_lens, *others.values())
    if not _is_plain(x, w, b, activations, ("tanh",), unusual) or b is None:
        return None
    n = r.shape[-1]

    def step_of(d: int) -> _Step:
        dot = r[d].dot
        return lambda inputs, h, new: [
            partial(dot, h, new),
            partial(np.add, inputs, new, new),
            partial(np.tanh, new, new),
        ]

    biases = b[:, :n] + b[:, n:]
    return _scan(scratch, outputs, x, w, biases, direction, n, (initial_h,), step_of)


@binds("GRU", 7, many=True)
def bind_gru(
    scratch: Scratch, outputs: Sequence[np.ndarray | None], x: np.ndarray, w: np.ndarray,
    r: np.ndarray, b: np.ndarray | None = None, sequence_lens: np.ndarray | None = None,
    initial_h: np.ndarray | None = None, *,
    activations: Sequence[str] | None = None, direction: str = "forward",
    hidden_size: int | None = None, linear_before_reset: int = 0, **others: Any,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind the plain GRU."""
    unusual = (sequence_lens, *others.values())
    if not _is_plain(x, w, b, activations, ("sigmoid", "tanh"), unusual) or b is None:
        return None
    n = r.shape[-1]
    biases = b[:, : 3 * n].copy()
    biases[:, : 2 * n] += b[:, 3 * n : 5 * n]
    late = b[:, 5 * n :, None]
    if not linear_before_reset:
        biases[:, 2 * n :] += late[..., 0]
    gates = scratch((3 * n, x.shape[1]), x.dtype)
    # The gates' order is update z, reset r, hidden h.
    smooth, update, reset, hidden = gates[: 2 * n], gates[:n], gates[n : 2 * n], gates[2 * n :]
    kept = scratch(hidden.shape, x.dtype)

    def step_of(d: int) -> _Step:
        told = gates if linear_before_reset else smooth
        dot, late_dot = r[d, : len(told)].dot, r[d, 2 * n :].dot
        early, tanh = list(_activated(smooth, smooth)), partial(np.tanh, hidden, hidden)
        reset_late = [
            partial(np.add, hidden, late[d], hidden),
            partial(np.multiply, reset, hidden, hidden),
        ]

        def step(inputs: np.ndarray, h: np.ndarray, new: np.ndarray) -> Iterator[Call]:
            yield partial(dot, h, told)
            yield partial(np.add, inputs[: 2 * n], smooth, smooth)
            yield from early
            if linear_before_reset:
                yield from reset_late
            else:
                yield partial(np.multiply, reset, h, kept)
                yield partial(late_dot, kept, hidden)
            yield partial(np.add, inputs[2 * n :], hidden, hidden)
            yield tanh
            yield partial(np.subtract, h, hidden, new)
            yield partial(np.multiply, update, new, new)
            yield partial(np.add, hidden, new, new)

        return step

    return _scan(scratch, outputs, x, w, biases, direction, n, (initial_h,), step_of)


@binds("LSTM", 7, many=True)
def bind_lstm(
    scratch: Scratch, outputs: Sequence[np.ndarray | None], x: np.ndarray, w: np.ndarray,
    r: np.ndarray, b: np.ndarray | None = None, sequence_lens: np.ndarray | None = None,
    initial_h: np.ndarray | None = None, initial_c: np.ndarray | None = None,
    p: np.ndarray | None = None, *,
    activations: Sequence[str] | None = None, direction: str = "forward",
    hidden_size: int | None = None, **others: Any,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind the plain LSTM, without peepholes."""
    unusual = (sequence_lens, p, *others.values())
    if not _is_plain(x, w, b, activations, ("sigmoid", "tanh", "tanh"), unusual) or b is None:
        return None
    n = r.shape[-1]
    gates = scratch((4 * n, x.shape[1]), x.dtype)
    # The gates' order is input i, output o, forget f, cell c.
    smooth, cell = gates[: 3 * n], gates[3 * n :]
    i, o, forget = smooth[:n], smooth[n : 2 * n], smooth[2 * n :]

    def step_of(d: int, c: np.ndarray) -> _Step:
        dot = r[d].dot  # less to decide than in matmul
        shared: list[Call] = [
            *_activated(gates, smooth),
            partial(np.multiply, forget, c, c),
            partial(np.multiply, i, cell, cell),
            partial(np.add, c, cell, c),
            partial(np.tanh, c, cell),
        ]
        return lambda inputs, h, new: [
            partial(dot, h, gates),
            partial(np.add, gates, inputs, gates),
            *shared,
            partial(np.multiply, o, cell, new),
        ]

    biases = b[:, : 4 * n] + b[:, 4 * n :]
    return _scan(scratch, outputs, x, w, biases, direction, n, (initial_h, initial_c), step_of)
