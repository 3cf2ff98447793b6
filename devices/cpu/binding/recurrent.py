"""Binding of the LSTM: every step's calls, on states that stay where they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from devices.cpu.binding.registry import Call, Scratch, binds

#: Steps of all directions up to which each has calls of its own.
_MOST_STEPS: Final = 1024
_DEFAULTS: Final = ("sigmoid", "tanh", "tanh")


@binds("LSTM", 7, many=True)
def bind_lstm(
    scratch: Scratch, outputs: Sequence[np.ndarray | None], x: np.ndarray, w: np.ndarray,
    r: np.ndarray, b: np.ndarray | None = None, sequence_lens: np.ndarray | None = None,
    initial_h: np.ndarray | None = None, initial_c: np.ndarray | None = None,
    p: np.ndarray | None = None, *,
    activations: Sequence[str] | None = None, direction: str = "forward",
    hidden_size: int | None = None, **others: Any,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind the plain LSTM: its own activations, whole sequences, no peepholes, time first."""
    if others or sequence_lens is not None or p is not None or x.dtype != np.float32:
        return None
    if b is None or b.flags.writeable or len(x) * len(w) > _MOST_STEPS or not x.size:
        return None
    if activations and tuple(map(str.lower, activations)) != _DEFAULTS * len(w):
        return None
    y, *ends = (*outputs, None, None, None)[:3]
    steps, batch, size = x.shape
    rows = x.reshape(-1, size) if x.flags.c_contiguous else scratch((steps * batch, size), x.dtype)
    calls: list[Call] = []
    if not x.flags.c_contiguous:
        calls.append(partial(np.copyto, rows.reshape(x.shape), x))
    hidden = r.shape[-1]
    states = scratch((steps + 1, hidden, batch), x.dtype)
    cells = scratch((hidden, batch), x.dtype)
    gates = scratch((4 * hidden, batch), x.dtype)
    by_row = scratch((steps * batch, 4 * hidden), x.dtype)
    projected = scratch((steps, 4 * hidden, batch), x.dtype)
    for d in range(len(w)):
        calls.append(partial(np.matmul, rows, w[d].T, by_row))
        calls.append(partial(np.add, by_row, b[d, : 4 * hidden] + b[d, 4 * hidden :], by_row))
        shown = by_row.reshape(steps, batch, -1).swapaxes(1, 2)
        calls.append(partial(np.copyto, projected, shown))
        for state, initial in ((states[0], initial_h), (cells, initial_c)):
            if initial is None:
                calls.append(partial(state.fill, 0))
            else:
                calls.append(partial(np.copyto, state, initial[d].T))
        in_time = slice(None, None, -1 if direction == "reverse" or d == 1 else 1)
        for t, inputs in enumerate(projected[in_time]):
            calls += _step(r[d], inputs, states[t], cells, gates, states[t + 1])
        if y is not None:
            calls.append(partial(np.copyto, y[in_time, d], states[1:].swapaxes(1, 2)))
        for end, state in zip(ends, (states[-1], cells), strict=True):
            if end is not None:
                calls.append(partial(np.copyto, end[d].T, state))
    return calls


def _step(
    r: np.ndarray, inputs: np.ndarray, h: np.ndarray, c: np.ndarray, gates: np.ndarray,
    new: np.ndarray,
) -> Iterator[Call]:  # fmt: skip
    """Yield the calls of one step from state h to `new`, which leave its cells in c."""
    n = len(h)
    smooth, cell = gates[: 3 * n], gates[3 * n :]
    # The gates' order is input i, output o, forget f, cell c.
    i, o, forget = smooth[:n], smooth[n : 2 * n], smooth[2 * n :]
    yield partial(r.dot, h, gates)  # less to decide than in matmul
    yield partial(np.add, gates, inputs, gates)
    half = np.asarray(0.5, h.dtype)
    yield partial(np.multiply, smooth, half, smooth)
    yield partial(np.tanh, gates, gates)  # the sigmoid of x is (tanh(x / 2) + 1) / 2
    yield partial(np.multiply, smooth, half, smooth)
    yield partial(np.add, smooth, half, smooth)
    yield partial(np.multiply, forget, c, c)
    yield partial(np.multiply, i, cell, cell)
    yield partial(np.add, c, cell, c)
    yield partial(np.tanh, c, cell)
    yield partial(np.multiply, o, cell, new)
