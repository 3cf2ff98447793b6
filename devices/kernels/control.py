"""Control flow: operators whose attribute is a graph, here a callable ``body(*inputs) -> tuple``.

What the graph captures from outside is bound already. ``body.outputs(*inputs)`` gives one pair
(element type, shape) for each of its outputs, were it called with inputs of these types: it shapes
the scan outputs of a loop that makes no trip. The tensors that a body returns are kept while later
trips run, so a body must not reuse their memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from hetero.devices.kernels.axes import axis_of
from hetero.devices.kernels.element_types import Array, Xp
from hetero.devices.kernels.registry import op
from hetero.devices.kernels.slicing import pad


class Body(Protocol):
    """A graph as a function."""

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the graph's outputs."""

    def outputs(self, *inputs: Any) -> Sequence[tuple[Any, Sequence[Any] | None]]:
        """Return element type and shape of each, None if unknown, as is the size of an axis."""


@op("If", since=1, host=(0,))
def if_(xp: Xp, cond: Array, *, then_branch: Body, else_branch: Body) -> tuple[Any, ...]:
    """Run one of two graphs."""
    return then_branch() if cond.item() else else_branch()


@op("Loop", since=1, host=(0, 1))
def loop(
    xp: Xp,
    trip_count: Array | None = None,
    cond: Array | None = None,
    *initial: Any,
    body: Body,
    n_outputs: int,
) -> tuple[Any, ...]:
    """Run a graph at most `trip_count` times, while its condition holds.

    The body maps (trip number, condition, carried values...) to (condition, carried values...,
    scan outputs...); the loop returns the last carried values, and each scan output stacked over
    the trips.
    """
    limit = None if trip_count is None else int(trip_count.item())
    going = cond is None or bool(cond.item())
    carried = tuple(initial)
    trips: list[tuple[Any, ...]] = []
    trip = 0
    while going and (limit is None or trip < limit):
        number, condition = xp.asarray(trip, dtype=xp.int64), xp.asarray(True)
        again, *results = body(number, condition, *carried)
        carried = tuple(results[: len(initial)])
        trips.append(tuple(results[len(initial) :]))
        going = bool(again.item())
        trip += 1
    if trips:
        scanned = tuple(xp.stack(values) for values in zip(*trips, strict=True))
    elif n_outputs > len(initial):
        types = body.outputs(xp.asarray(0, dtype=xp.int64), xp.asarray(True), *initial)
        scanned = tuple(_of_no_trips(xp, *output, 0) for output in types[1 + len(initial) :])
    else:
        scanned = ()
    return carried + scanned


def _of_no_trips(xp: Xp, dtype: Any, shape: Sequence[Any] | None, axis: int) -> Array:
    """Return the stack of no tensors of this type; axes of unknown size are empty."""
    if dtype is None:
        raise ValueError(
            "the loop makes no trip, and the element type of what its body would return is not "
            "known. Declare it in the body"
        )
    sizes = [size if isinstance(size, int) else 0 for size in shape or ()]
    sizes.insert(axis_of(axis, len(sizes) + 1), 0)
    return xp.empty(sizes, dtype=dtype)


@op("Scan", since=8)
def scan_8(
    xp: Xp,
    sequence_lens: Array | None,
    *inputs: Array,
    body: Body,
    num_scan_inputs: int,
    directions: Sequence[int] | None = None,
) -> tuple[Array, ...]:
    """Scan each batch entry on its own; every tensor has the batch first, scanned ones time next.

    Scan outputs of an entry shorter than the longest are filled up with zeros.
    """
    states = len(inputs) - num_scan_inputs
    batch, steps = inputs[-1].shape[:2]
    lengths = [steps] * batch if sequence_lens is None else sequence_lens.tolist()
    if len(lengths) != batch or not all(0 <= n <= steps for n in lengths):
        raise ValueError(f"sequence_lens {lengths} must be {batch} numbers from 0 to {steps}")
    if not batch:
        own = [xp.empty(x.shape[1:], dtype=x.dtype) for x in inputs[:states]]
        slices = [xp.empty(x.shape[2:], dtype=x.dtype) for x in inputs[states:]]
        types = body.outputs(*own, *slices)[states:]
        scans = (_of_no_trips(xp, kind, shape, 0) for kind, shape in types)
        return (
            *inputs[:states],
            *(xp.empty((0, steps, *y.shape[1:]), dtype=y.dtype) for y in scans),
        )
    entries = []
    for entry, length in enumerate(lengths):
        own = [x[entry] for x in inputs[:states]]
        scanned = [x[entry, :length] for x in inputs[states:]]
        results = _scan(xp, body, own, scanned, directions)
        filled = (pad(xp, y, (0, steps - length), axes=(0,)) for y in results[states:])
        entries.append((*results[:states], *filled))
    return tuple(xp.stack(values) for values in zip(*entries, strict=True))


@op("Scan", since=9)
def scan_9(
    xp: Xp,
    *inputs: Array,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
) -> tuple[Array, ...]:
    """Run a graph over the slices of tensors, carrying state from step to step.

    The body maps (states..., slices...) to (states..., output slices...); the scan returns the last
    states, and each output's slices stacked on its axis. A direction of 1 goes backwards.
    """
    states = len(inputs) - num_scan_inputs
    axes = scan_input_axes or (0,) * num_scan_inputs
    scanned = [
        xp.moveaxis(x, axis_of(axis, x.ndim), 0)
        for x, axis in zip(inputs[states:], axes, strict=True)
    ]
    return _scan(
        xp,
        body,
        inputs[:states],
        scanned,
        scan_input_directions,
        scan_output_axes,
        scan_output_directions,
    )


def _scan(
    xp: Xp,
    body: Body,
    states: Sequence[Array],
    scanned: Sequence[Array],
    input_directions: Sequence[int] | None,
    output_axes: Sequence[int] | None = None,
    output_directions: Sequence[int] | None = None,
) -> tuple[Array, ...]:
    lengths = {x.shape[0] for x in scanned}
    if len(lengths) != 1:
        raise ValueError(f"the scanned tensors must be equally long, not {sorted(lengths)}")
    directions = input_directions or (0,) * len(scanned)
    forward = [x[::-1] if backward else x for x, backward in zip(scanned, directions, strict=True)]
    current = tuple(states)
    steps: list[tuple[Array, ...]] = []
    for slices in zip(*forward, strict=True):
        results = tuple(body(*current, *(xp.asarray(x) for x in slices)))
        current = results[: len(states)]
        steps.append(results[len(states) :])
    if not steps:
        slices = tuple(xp.empty(x.shape[1:], dtype=x.dtype) for x in scanned)
        types = body.outputs(*current, *slices)[len(states) :]
        axes = output_axes or (0,) * len(types)
        empty = (_of_no_trips(xp, *output, axis) for output, axis in zip(types, axes, strict=True))
        return (*current, *empty)
    columns = list(zip(*steps, strict=True))
    axes = output_axes or (0,) * len(columns)
    backward = output_directions or (0,) * len(columns)
    outputs = (
        xp.stack(column[::-1] if reverse else column, axis=axis_of(axis, column[0].ndim + 1))
        for column, axis, reverse in zip(columns, axes, backward, strict=True)
    )
    return (*current, *outputs)


@op("SequenceMap", since=17)
def sequence_map(
    xp: Xp, input_sequence: list[Array], *inputs: Any, body: Body, n_outputs: int
) -> tuple[list[Array], ...]:
    """Run a graph on each tensor of a sequence; return one sequence for each of its outputs.

    Further sequences are walked in step; further tensors go to each run as they are.
    """
    length = len(input_sequence)
    if any(len(x) != length for x in inputs if isinstance(x, list)):
        raise ValueError(f"the sequences must all have {length} tensors")
    walked = [x if isinstance(x, list) else [x] * length for x in inputs]
    runs = [body(*each) for each in zip(input_sequence, *walked, strict=True)]
    return tuple([run[i] for run in runs] for i in range(n_outputs))
