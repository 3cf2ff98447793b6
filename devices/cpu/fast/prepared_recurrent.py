"""RNN, GRU and LSTM whose weights lie ready: few calls a step, for both directions at once.

Gates lie one after the other, each (D, B, H): sizes are T (time), B (batch), H (hidden), I (input)
and D (directions). The sigmoid of x is (tanh(x / 2) + 1) / 2: the first half is in the weights,
the second in what is computed of it, and as both only change exponents, results are as without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from devices.cpu.fast.fast_kernels import fast_op
from devices.interpreter.calls import Call, Scratch

#: Steps up to which each has calls of its own.
_MOST_STEPS: Final = 1024

_ONE: Final = np.ones((), np.float32)
_HALVES: Final = np.array([0.5, 0.5], np.float32)
_AND_HALF: Final = np.array([1, 0.5], np.float32)


class Weights(NamedTuple):
    """What the layers below read: w (I, gates * D * H), r (D, H, gates, H), b (blocks, D, 1, H).

    The last gates of b belong to w; any before them to r alone.
    """

    w: np.ndarray
    r: np.ndarray
    b: np.ndarray


def prepare(
    op_type: str, w: np.ndarray, r: np.ndarray, b: np.ndarray | None, linear_before_reset: bool
) -> Weights:
    """Return ONNX's weights (D, gates * H, I), (D, gates * H, H), (D, 2 * gates * H) as they lie.

    Gates are o, i, f, c in an LSTM and, of r, h, z, r in a GRU, with z, r, h of w.
    """
    (directions, rows, hidden), size = r.shape, w.shape[2]
    gates = rows // hidden
    both = np.zeros((directions, 2, gates, hidden), w.dtype)
    if b is not None:
        both = b.reshape(both.shape)
    w, r = w.reshape(directions, gates, hidden, size), r.reshape(directions, gates, hidden, hidden)
    of_w = of_r = np.ones((gates, 1, 1), w.dtype)
    biases = both.sum(1)
    if op_type == "LSTM":
        w, r, biases = (a[:, [1, 0, 2, 3]] for a in (w, r, biases))
        of_w = of_w * _column(0.5, 0.5, 0.5, 1)
        of_r = of_w / 2  # the state that it is multiplied by is twice as large
        biases = biases * of_w[..., 0]
    elif op_type == "GRU":
        r = r[:, [2, 0, 1]]
        of_w, of_r = _column(0.5, 0.5, 1), _column(0.5, 0.5, 0.5)
        if linear_before_reset:
            late = both[:, 1, 2:] / 2
            biases = np.concatenate([biases[:, :2], both[:, 0, 2:]], 1) * of_w[..., 0]
            biases = np.concatenate([late, biases], 1)
        else:
            biases = biases * of_w[..., 0]
    return Weights(
        np.ascontiguousarray((w * of_w).transpose(3, 1, 0, 2)).reshape(size, -1),
        np.ascontiguousarray((r * of_r).transpose(0, 3, 1, 2)),
        np.ascontiguousarray(biases.swapaxes(0, 1)[:, :, None]),
    )


def _column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None, None]


class _Cell:
    """A layer's buffers of one step, and the calls that all steps share.

    Attributes
    ----------
    scale : float
        How many times as large as it should be the state is that a step puts out.
    others : list of ndarray
        States that stay in one place.
    """

    scale = 1.0

    def __init__(self, scratch: Scratch, r: np.ndarray, batch: int, masked: bool) -> None:
        self._r = r
        self._shape = (len(r), batch, r.shape[-1])
        self._scratch = scratch
        self.others: list[np.ndarray] = []

    def calls(self, inputs: np.ndarray, h: np.ndarray, new: np.ndarray) -> Iterator[Call]:
        """Yield the calls of a step from h to `new`."""
        raise NotImplementedError

    def keep(self, mask: np.ndarray) -> Iterator[Call]:
        """Yield the calls after a step that change the other states where `mask` is True."""
        return iter(())

    def _gates(self, count: int) -> np.ndarray:
        return self._scratch((count, *self._shape), np.float32)

    def _product(self, h: np.ndarray, y: np.ndarray, gates: slice) -> Call:
        """Return the call that puts the products of h and some gates' weights into y."""
        r = self._r[:, :, gates]
        if h.size == h.shape[-1]:
            return partial(h[0].dot, r[0].reshape(len(r[0]), -1), y.reshape(1, -1))
        return partial(np.matmul, h, r.transpose(2, 0, 1, 3), y)


class _RNNCell(_Cell):
    def calls(self, inputs: np.ndarray, h: np.ndarray, new: np.ndarray) -> Iterator[Call]:
        yield self._product(h, new[None], slice(None))
        yield partial(np.add, inputs[0], new, new)
        yield partial(np.tanh, new, new)


class _GRUCell(_Cell):
    def __init__(self, scratch: Scratch, r: np.ndarray, batch: int, masked: bool) -> None:
        super().__init__(scratch, r, batch, masked)
        self._buffer = self._gates(3)
        self._pair = self._gates(2)  # what becomes the state, and what is added to it
        hidden, self._update, self._reset = self._buffer
        self._smooth = self._buffer[1:]
        self._smoothed: list[Call] = [
            partial(np.tanh, self._smooth, self._smooth),
            partial(np.add, self._smooth, _ONE, self._smooth),
        ]
        change = self._pair[1]
        self._late: list[Call] = [
            partial(np.multiply, self._reset, hidden, hidden),
            self._product(change, self._buffer[:1], slice(1)),
        ]
        self._candidate = partial(np.tanh, hidden, self._pair[0])
        self._updated = partial(np.multiply, self._update, change, change)

    def calls(self, inputs: np.ndarray, h: np.ndarray, new: np.ndarray) -> Iterator[Call]:
        hidden, (candidate, change) = self._buffer[0], self._pair
        linear = len(inputs) == 4  # before the reset
        own = self._buffer if linear else self._smooth
        yield self._product(h, own, slice(0 if linear else 1, None))
        yield partial(np.add, inputs[: len(own)], own, own)
        yield from self._smoothed
        if linear:
            yield self._late[0]
        else:
            yield partial(np.multiply, self._reset, h, change)
            yield self._late[1]
        yield partial(np.add, inputs[-1], hidden, hidden)
        yield self._candidate
        yield partial(np.subtract, h, candidate, change)
        yield self._updated
        yield partial(_AND_HALF.dot, self._pair.reshape(2, -1), new.reshape(-1))


class _LSTMCell(_Cell):
    scale = 2.0

    def __init__(self, scratch: Scratch, r: np.ndarray, batch: int, masked: bool) -> None:
        super().__init__(scratch, r, batch, masked)
        buffer, self._pair = self._gates(5), self._gates(2)  # o, i, f, c and the other state
        self._all, smooth, c = buffer[:4], buffer[:3], buffer[4]
        self.others.append(c)
        self._next = buffer[3] if masked else c
        self._shared: list[Call] = [
            partial(np.tanh, self._all, self._all),
            partial(np.add, smooth, _ONE, smooth),
            partial(np.multiply, buffer[1:3], buffer[3:], self._pair),
            partial(_HALVES.dot, self._pair.reshape(2, -1), self._next.reshape(-1)),
            partial(np.tanh, self._next, self._pair[0]),
        ]

    def calls(self, inputs: np.ndarray, h: np.ndarray, new: np.ndarray) -> Iterator[Call]:
        yield self._product(h, self._all, slice(None))
        yield partial(np.add, inputs, self._all, self._all)
        yield from self._shared
        yield partial(np.multiply, self._all[0], self._pair[0], new)

    def keep(self, mask: np.ndarray) -> Iterator[Call]:
        yield partial(np.copyto, self.others[0], self._next, where=mask)


_CELLS: Final[dict[str, type[_Cell]]] = {"RNN": _RNNCell, "GRU": _GRUCell, "LSTM": _LSTMCell}


def _calls(
    name: str, scratch: Scratch, outputs: Sequence[np.ndarray | None], x: np.ndarray,
    weights: Weights, lengths: np.ndarray | None, starts: Sequence[np.ndarray | None],
    direction: str,
) -> Iterator[Call]:  # fmt: skip
    """Yield the calls that project all inputs at once, then run all directions over time."""
    w, r, b = weights
    if x.ndim != 3 or x.shape[2] != len(w):
        raise ValueError(f"X has shape {x.shape}; (T, B, {len(w)}) wanted")
    (steps, batch, size), (directions, hidden, gates, _) = x.shape, r.shape
    shape = (directions, batch, hidden)
    for start in starts:
        if start is not None and start.shape != shape:
            raise ValueError(f"an initial state has shape {start.shape}; {shape} wanted")
    rows = x.reshape(-1, size) if x.flags.c_contiguous else scratch((steps * batch, size), x.dtype)
    if not x.flags.c_contiguous:
        yield partial(np.copyto, rows.reshape(x.shape), x)
    by_row = scratch((steps, batch, gates, directions, hidden), x.dtype)
    yield partial(np.matmul, rows, w, by_row.reshape(steps * batch, -1))
    inputs = scratch((steps, len(b), *shape), x.dtype)
    own = len(b) - gates
    if own:
        yield partial(np.copyto, inputs[:, :own], b[:own])
    in_time = [slice(None, None, -1 if direction == "reverse" or d else 1) for d in range(len(r))]
    for d, order in enumerate(in_time):
        read = by_row[order, :, :, d].swapaxes(1, 2)
        yield partial(np.add, read, b[own:, d], inputs[:, own:, d])
    cell = _CELLS[name](scratch, r, batch, lengths is not None)
    states = scratch((steps + 1, *shape), x.dtype)
    scales = (cell.scale, 1.0)
    for state, start, scale in zip((states[0], *cell.others), starts, scales, strict=False):
        yield partial(np.multiply, 0 if start is None else start, scale, state)
    masks = None
    if lengths is not None:
        if lengths.shape != (batch,):
            raise ValueError(f"sequence_lens has shape {lengths.shape}; {(batch,)} wanted")
        masks = scratch((steps, directions, batch, 1), np.bool_)
        yield partial(_check_lengths, lengths, steps)
        for d, order in enumerate(in_time):
            times = np.arange(steps)[order, None, None]
            yield partial(np.less, times, lengths[:, None], masks[:, d])
    made = None if masks is None else scratch(shape, x.dtype)
    for t in range(steps):
        h, new = states[t], states[t + 1]
        yield from cell.calls(inputs[t], h, new if made is None else made)
        if made is not None and masks is not None:
            yield from cell.keep(masks[t])
            yield partial(np.copyto, new, h)
            yield partial(np.copyto, new, made, where=masks[t])
    y, ends = outputs[0], outputs[1:]
    if y is not None:
        if masks is not None:
            yield partial(y.fill, 0)
        for d, order in enumerate(in_time):
            where = True if masks is None else masks[:, d]
            yield partial(np.multiply, states[1:, d], 1 / cell.scale, y[order, d], where=where)
    for end, state, scale in zip(ends, (states[-1], *cell.others), scales, strict=False):
        if end is not None:
            yield partial(np.multiply, state, 1 / scale, end)


def _check_lengths(lengths: np.ndarray, steps: int) -> None:
    if lengths.min(initial=0) < 0 or lengths.max(initial=0) > steps:
        raise ValueError(f"sequence_lens must be {len(lengths)} numbers from 0 to {steps}")


@fast_op("PreparedRecurrent", many=True)
def prepared_recurrent(
    scratch: Scratch, outputs: Sequence[np.ndarray | None] | None, x: np.ndarray, w: np.ndarray,
    r: np.ndarray, b: np.ndarray, sequence_lens: np.ndarray | None = None,
    initial_h: np.ndarray | None = None, initial_c: np.ndarray | None = None, *,
    cell: str, direction: str = "forward",
) -> tuple[tuple[np.ndarray | None, ...], Iterator[Call]] | None:  # fmt: skip
    """Return Y (T, D, B, H) and the final states of an RNN, GRU or LSTM, as `cell` says.

    Weights lie as `prepare` says.
    """
    if outputs is None:
        shape = (len(r), x.shape[1], r.shape[-1])
        shapes = [(len(x), *shape), shape, shape][: 3 if cell == "LSTM" else 2]
        outputs = [np.empty(s, x.dtype) for s in shapes]
    elif len(x) > _MOST_STEPS:
        return None
    starts, weights = (initial_h, initial_c), Weights(w, r, b)
    calls = _calls(cell, scratch, outputs, x, weights, sequence_lens, starts, direction)
    return tuple(outputs), calls
