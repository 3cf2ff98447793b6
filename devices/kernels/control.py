"""Control flow: operators with a graph attribute, a callable ``body(*inputs) -> tuple``.

The callable holds the values that the graph captures from outside. ``body.outputs(*inputs)``
returns the element type and shape of each output for inputs of these types; they become the type
of the scan outputs if a loop makes no trip. The tensors that a body returns stay in use while later
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
        """Return the element type and shape of each output; unknown parts are None."""


@op("If", since=1, host=(0,))
def if_(xp: Xp, cond: Array, *, then_branch: Body, else_branch: Body) -> tuple[Any, ...]:
    """Run one of two graphs, selected by the condition."""
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
    is_running = cond is None or bool(cond.item())
    states = tuple(initial)
    trips: list[tuple[Any, ...]] = []
    trip = 0
    while is_running and (limit is None or trip < limit):
        condition, *results = body(xp.asarray(trip, dtype=xp.int64), xp.asarray(True), *states)
        states = tuple(results[: len(initial)])
        trips.append(tuple(results[len(initial) :]))
        is_running = bool(condition.item())
        trip += 1
    if trips:
        scans = tuple(xp.stack(values) for values in zip(*trips, strict=True))
    elif n_outputs > len(initial):
        types = body.outputs(xp.asarray(0, dtype=xp.int64), xp.asarray(True), *initial)
        scans = tuple(_empty_stack(xp, *output, 0) for output in types[1 + len(initial) :])
    else:
        scans = ()
    return states + scans


def _empty_stack(xp: Xp, dtype: Any, shape: Sequence[Any] | None, axis: int) -> Array:
    """Return the stack of no tensors of this type; axes of unknown size get size 0."""
    if dtype is None:
        raise ValueError(
            "the loop makes no trip, and the element type of its body's output is unknown. Declare "
            "the type in the body"
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
    """Scan each batch entry separately; tensors have the batch first, scanned ones time next.

    Scan outputs of an entry shorter than the longest end with zeros.
    """
    states = len(inputs) - num_scan_inputs
    batch, steps = inputs[-1].shape[:2]
    lengths = [steps] * batch if sequence_lens is None else sequence_lens.tolist()
    if len(lengths) != batch or not all(0 <= n <= steps for n in lengths):
        raise ValueError(
            f"sequence_lens: expected {batch} numbers from 0 to {steps}, got {lengths}"
        )
    if not batch:
        own = [xp.empty(x.shape[1:], dtype=x.dtype) for x in inputs[:states]]
        slices = [xp.empty(x.shape[2:], dtype=x.dtype) for x in inputs[states:]]
        stacks = [_empty_stack(xp, *y, 0) for y in body.outputs(*own, *slices)[states:]]
        scans = (xp.empty((0, steps, *y.shape[1:]), dtype=y.dtype) for y in stacks)
        return (*inputs[:states], *scans)
    entries = []
    for entry, length in enumerate(lengths):
        own = [x[entry] for x in inputs[:states]]
        scanned = [x[entry, :length] for x in inputs[states:]]
        results = _scan(xp, body, own, scanned, directions)
        scans = (pad(xp, y, (0, steps - length), axes=(0,)) for y in results[states:])
        entries.append((*results[:states], *scans))
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

    The body maps (states..., slices...) to (states..., output slices...). The scan returns the last
    states, and each output's slices stacked on its axis. Direction 1 is backward.
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
        raise ValueError(f"expected scanned tensors of one length, got {sorted(lengths)}")
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
        empty = (_empty_stack(xp, *output, axis) for output, axis in zip(types, axes, strict=True))
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
    """Run a graph on each tensor of a sequence; return one sequence per output of the graph.

    Each run takes one tensor of every further sequence, and every further tensor whole.
    """
    length = len(input_sequence)
    if any(len(x) != length for x in inputs if isinstance(x, list)):
        raise ValueError(f"expected sequences of {length} tensors each")
    sequences = [x if isinstance(x, list) else [x] * length for x in inputs]
    runs = [body(*each) for each in zip(input_sequence, *sequences, strict=True)]
    return tuple([run[i] for run in runs] for i in range(n_outputs))
