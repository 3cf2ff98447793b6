"""The recorder: runs a kernel once on stand-ins for arrays that write down what is done to them.

What it computes from shapes, types and constants is settled then; what is done to elements becomes
steps on a tape. A kernel that looks at an element cannot be recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Final, NoReturn

import numpy as np
from numpy._core import umath
from numpy.lib.mixins import NDArrayOperatorsMixin

from devices.interpreter.binding.copies import copy_call
from devices.interpreter.binding.registry import Call, Scratch
from devices.interpreter.block import Task
from devices.interpreter.implementations import ONLY_IN_A_RUN
from devices.interpreter.tape import (
    Place,
    Recording,
    Step,
    bytes_of,
    copying,
    edited,
    layouts_of,
)
from devices.kernels import ALL

_log = logging.getLogger(__name__)

#: The ufunc inside `numpy.clip`, which itself takes three times as long to call.
_CLIP: Final[Any] = vars(umath)["clip"]
#: Steps beyond which a call of the kernel costs no more than they do.
_MOST_STEPS: Final = 500
#: Functions that reduce by a ufunc, and that ufunc.
_REDUCING: Final[dict[Any, np.ufunc]] = {
    np.sum: np.add, np.prod: np.multiply, np.max: np.maximum, np.min: np.minimum,
    np.amax: np.maximum, np.amin: np.minimum,
}  # fmt: skip
#: Functions that accumulate by a ufunc.
_ACCUMULATING: Final[dict[Any, np.ufunc]] = {np.cumsum: np.add, np.cumprod: np.multiply}
#: Functions that look at their first argument in another way.
_VIEWING: Final = frozenset(
    [np.broadcast_to, np.expand_dims, np.flip, np.moveaxis, np.reshape, np.squeeze, np.swapaxes,
     np.transpose]
)  # fmt: skip


class CannotRecord(Exception):  # noqa: N818 - no error, but an answer
    """The kernel looks at an element, or does what no call does in memory that is given."""


def recorded(
    task: Task, inputs: Sequence[Any], varying: Sequence[bool], outputs: Sequence[Any]
) -> Recording | None:
    """Return what a task's kernel does, held to what it gave; None if it cannot be recorded.

    Parameters
    ----------
    task : Task
        A node and its kernel.
    inputs : sequence
        What the kernel has been given.
    varying : sequence of bool
        Which of the inputs have other elements in another run.
    outputs : sequence of ndarray or None
        What it returned, None for what nobody wants; in later runs they lie in memory likewise.
    """
    kernel = task.implementation.what
    if task.call is None or kernel.host == (ALL,) or task.node.op_type in ONLY_IN_A_RUN:
        return None
    given = partial(kernel.function, **task.attributes)
    for in_pieces in (True, False):
        recording = _record(given, inputs, varying, outputs, in_pieces)
        if recording is None or _gives(recording, inputs, outputs):
            return recording
    _log.warning(
        "node %r (%s) is not bound: what was recorded of its kernel gives other elements",
        task.node.name, task.node.op_type,
    )  # fmt: skip
    return None


def _record(
    kernel: Callable[..., Any],
    inputs: Sequence[Any],
    varying: Sequence[bool],
    outputs: Sequence[Any],
    in_pieces: bool,
) -> Recording | None:
    tape = _Tape(inputs)
    try:
        given = [
            tape.array(x, i) if is_varying and x is not None else x
            for i, (x, is_varying) in enumerate(zip(inputs, varying, strict=True))
        ]
        found = kernel(_Namespace(tape), *given)
        return tape.recording(found if isinstance(found, tuple) else (found,), outputs, in_pieces)
    except Exception:  # the kernel ran before: what it trips over are the stand-ins
        return None


def _gives(recording: Recording, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Tell whether the calls give the outputs, to the last bit."""
    made = [None if y is None else np.empty_like(y) for y in outputs]
    for y in made:
        if y is not None:
            bytes_of(y).fill(0xA5)  # what is left of an earlier array may be the result
    calls = recording.calls(Scratch(), made, inputs)
    if calls is None:
        return False
    for call in calls:
        call()
    pairs = [(a, b) for a, b in zip(made, outputs, strict=True) if a is not None]
    return all(bytes_of(a).tobytes() == bytes_of(b).tobytes() or _same(a, b) for a, b in pairs)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether floats are equal, NaN equal to NaN and -0 to 0."""
    return a.dtype.kind in "fc" and np.array_equal(a, b, equal_nan=True)


class _Tape:
    """The steps so far, and the buffers that they touch."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._layouts = layouts_of(inputs)
        #: The address of each buffer that is the inputs' or made by a step.
        self._addresses: dict[int, int] = {}
        self._count = len(inputs)
        self._steps: list[Step] = []
        self._sizes: dict[int, int] = {}
        self._constants: dict[int, np.ndarray] = {}
        for i, x in enumerate(inputs):
            if isinstance(x, np.ndarray):
                self._addresses[i] = np.lib.array_utils.byte_bounds(x)[0]

    def array(self, real: np.ndarray, buffer: int) -> Recorded:
        """Return the stand-in for an array that lies in a buffer."""
        if not real.size or real.dtype.hasobject:
            raise CannotRecord
        return Recorded(self, real, buffer)

    def made(self, real: Any) -> Recorded:
        """Return the stand-in for a new array."""
        real = np.asarray(real)
        buffer, self._count = self._count, self._count + 1
        self._addresses[buffer] = np.lib.array_utils.byte_bounds(real)[0]
        self._sizes[buffer] = real.nbytes
        return self.array(real, buffer)

    def place(self, array: Recorded | np.ndarray) -> Place:
        """Return where an array lies, a constant's memory as a buffer of its own."""
        if isinstance(array, Recorded):
            buffer, real = array.buffer, array.real
        else:
            buffer, real = self._count, array
            self._count += 1
            self._constants[buffer] = real
            self._addresses[buffer] = np.lib.array_utils.byte_bounds(real)[0]
        offset = real.__array_interface__["data"][0] - self._addresses[buffer]
        return Place(buffer, offset, real.shape, real.strides, real.dtype)

    def step(
        self,
        make: Callable[..., Call],
        *arrays: Recorded | np.ndarray,
        lead: int = 0,
        fixed: frozenset[int] = frozenset(),
    ) -> Recorded:
        """Add a step and return what it writes to, which is the last of the arrays."""
        to = arrays[-1]
        if not isinstance(to, Recorded) or to.buffer in range(len(self._layouts)):
            raise CannotRecord
        if len(self._steps) >= _MOST_STEPS:
            raise CannotRecord
        self._steps.append(Step(make, tuple(map(self.place, arrays)), lead, fixed=fixed))
        return to

    def elementwise(self, make: Callable[..., Call], *arrays: Any) -> Recorded:
        """Add a step that takes each element by itself, other arrays broadcast to the last."""
        to = self.step(make, *arrays)
        rank, places = to.ndim, list(self._steps[-1].places)
        fixed = set()
        for i, place in enumerate(places):
            added = rank - len(place.shape)
            if prod(place.shape) == 1 < to.size:
                places[i] = place._replace(shape=(), strides=())
                fixed.add(i)
            elif added:
                shape, strides = (1,) * added + place.shape, (0,) * added + place.strides
                places[i] = place._replace(shape=shape, strides=strides)
        self._steps[-1] = Step(make, tuple(places), rank, True, frozenset(fixed))
        return to

    def copied(self, x: Recorded | np.ndarray, to: Recorded) -> Recorded:
        """Add a step that copies x to `to`, with which it may broadcast."""
        return self.elementwise(copying, x, to)

    def recording(
        self, found: Sequence[Any], results: Sequence[np.ndarray | None], in_pieces: bool
    ) -> Recording | None:
        """Return what is on the tape, each result in a buffer of its own as the outputs lie."""
        buffers: list[int] = []
        for given, result in zip(found, results, strict=False):
            if result is None:
                buffers.append(-1)
                continue
            if not isinstance(given, Recorded) or given.shape != result.shape:
                return None
            own = self._sizes.get(given.buffer) == given.nbytes and given.buffer not in buffers
            if not own or given.real.strides != result.strides or given.dtype != result.dtype:
                given = self.copied(given, self.made(np.empty_like(result)))
            buffers.append(given.buffer)
        return edited(self._steps, self._layouts, buffers, self._constants, self._sizes, in_pieces)


def _real(value: Any) -> Any:
    return value.real if isinstance(value, Recorded) else value


class Recorded(NDArrayOperatorsMixin):
    """Stands for an array whose elements are known in the run alone; the tape sees its uses.

    `real` has elements of the run that was traced, which tell what type and layout results have.
    """

    #: Where kernels take it to be: what they check there, they check in each run.
    device: Final = "cpu"

    def __init__(self, tape: _Tape, real: np.ndarray, buffer: int) -> None:
        self._tape = tape
        self.real = real
        self.buffer = buffer

    def __getattr__(self, name: str) -> Any:
        """Return what an array tells of its layout."""
        if name in ("dtype", "flags", "itemsize", "nbytes", "ndim", "shape", "size", "strides"):
            return getattr(self.real, name)
        raise AttributeError(name)

    def _look(self, *_: Any, **__: Any) -> NoReturn:
        raise CannotRecord

    __array__ = __bool__ = __complex__ = __float__ = __index__ = __int__ = __iter__ = _look

    def __len__(self) -> int:
        return len(self.real)

    def _view(self, real: np.ndarray) -> Recorded:
        if not np.may_share_memory(real, self.real):
            raise CannotRecord
        return Recorded(self._tape, real, self.buffer)

    def __getitem__(self, key: Any) -> Recorded:
        return self._view(np.asarray(self.real[key]))

    def __setitem__(self, key: Any, value: Any) -> None:
        part = self[key]
        if not isinstance(value, Recorded):
            value = np.asarray(value, self.dtype)
        elif value is part or (value.buffer == part.buffer and value.real is part.real):
            return  # y[key] += x has written there already
        self._tape.copied(value, part)

    @property
    def T(self) -> Recorded:  # noqa: N802 - an array's name for it
        """The array with its axes reversed."""
        return self._view(self.real.T)

    def transpose(self, *axes: Any) -> Recorded:
        """Return the array with its axes in another order."""
        return self._view(self.real.transpose(*axes))

    def swapaxes(self, a: int, b: int) -> Recorded:
        """Return the array with two axes exchanged."""
        return self._view(self.real.swapaxes(a, b))

    def view(self, dtype: Any) -> Recorded:
        """Return the bits as another type."""
        return self._view(self.real.view(dtype))

    def reshape(self, *shape: Any) -> Recorded:
        """Return the elements in another shape, copied where they do not lie so."""
        real = self.real.reshape(*shape)
        if np.may_share_memory(real, self.real):
            return self._view(real)
        to = self._tape.made(real)
        self._tape.step(_reshaping, self, to)
        return to

    def astype(self, dtype: Any, *, copy: bool = True) -> Recorded:
        """Return the array in another type."""
        if not copy and self.dtype == dtype:
            return self
        return self._tape.copied(self, self._tape.made(self.real.astype(dtype)))

    def copy(self) -> Recorded:
        """Return a copy."""
        return self.astype(self.dtype)

    def __pow__(self, exponent: Any) -> Any:
        """Return the power, as arrays compute those of a few numbers."""
        known: dict[Any, np.ufunc] = {2: np.square, 0.5: np.sqrt, -1: np.reciprocal}
        if isinstance(exponent, int | float) and self.dtype.kind == "f" and exponent in known:
            return known[exponent](self)
        return np.power(self, exponent)

    def _reduced(ufunc: np.ufunc) -> Any:  # type: ignore[misc]  # noqa: N805 - no method itself
        def reduced(self: Recorded, axis: Any = None, keepdims: bool = False) -> Any:
            return ufunc.reduce(self, axis=axis, keepdims=keepdims)

        return reduced

    max, min, sum = _reduced(np.maximum), _reduced(np.minimum), _reduced(np.add)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **keywords: Any
    ) -> Any:
        """Add the step that a ufunc is."""
        keywords = {k: v for k, v in keywords.items() if v is not np._NoValue}
        (to,) = out or (None,)
        if ufunc.nout != 1:
            raise CannotRecord
        if method == "reduce":
            return self._reduce(ufunc, *inputs, to=to, **keywords)
        if method == "accumulate":
            return self._accumulate(ufunc, *inputs, to=to, **keywords)
        where = keywords.pop("where", True)
        if method != "__call__" or keywords:
            raise CannotRecord
        if ufunc is np.matmul:
            return self._product(*inputs, to=to)
        arrays = _operands(ufunc, inputs)
        if to is None:
            to = self._tape.made(ufunc(*map(_real, arrays)))
        if where is not True:
            return self._tape.elementwise(partial(_masked, ufunc), *arrays, where, to)
        return self._tape.elementwise(_MAKERS.get(ufunc, partial(partial, ufunc)), *arrays, to)

    def _reduce(
        self, ufunc: np.ufunc, x: Recorded, axis: Any = 0, dtype: Any = None, *, to: Any = None,
        keepdims: bool = False, initial: Any = None,
    ) -> Recorded:  # fmt: skip
        if initial is not None:
            raise CannotRecord
        given = range(x.ndim) if axis is None else np.atleast_1d(axis).tolist()
        # Counted from the end, they are the same whatever leading axes are cut or merged.
        axes = tuple(sorted(a - x.ndim if a >= 0 else a for a in given))
        if to is None:
            to = self._tape.made(ufunc.reduce(x.real, axes, dtype, keepdims=keepdims))
        make = partial(_reducing, ufunc, axes, dtype, keepdims)
        return self._tape.step(make, x, to, lead=x.ndim + min(axes, default=0))

    def _accumulate(
        self, ufunc: np.ufunc, x: Recorded, axis: int = 0, dtype: Any = None, *, to: Any = None
    ) -> Recorded:
        if to is None:
            to = self._tape.made(ufunc.accumulate(x.real, axis, dtype))
        return self._tape.step(partial(_accumulating, ufunc, axis, dtype), x, to)

    def _product(self, a: Any, b: Any, *, to: Any) -> Recorded:
        if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2] or a.dtype != b.dtype:
            raise CannotRecord
        if to is None:
            stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            shape = (*stack, a.shape[-2], b.shape[-1])
            to = self._tape.made(np.zeros(shape, a.dtype))  # nobody looks at what it would be
        # Rows times one column come out the same however many there are; those of a wider matrix
        # may not.
        if a.ndim == b.ndim == 2:
            lead, fixed = int(b.shape[1] == 1), frozenset([1])
        else:
            lead, fixed = (a.ndim - 2, frozenset[int]()) if a.ndim == b.ndim else (0, frozenset())
        return self._tape.step(partial(partial, np.matmul), a, b, to, lead=lead, fixed=fixed)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        """Add the steps that one of numpy's functions is."""
        if function in _VIEWING:
            x, *others = args
            if function is np.reshape:
                return x.reshape(*others)
            return x._view(function(x.real, *others, **keywords))
        if function in _REDUCING:
            return _REDUCING[function].reduce(*args, **({"axis": None} | keywords))
        if function in _ACCUMULATING:
            return _ACCUMULATING[function].accumulate(*args, **keywords)
        return _FUNCTIONS[function](self._tape, *args, **keywords)


def _operands(ufunc: Any, inputs: Sequence[Any]) -> list[Any]:
    """Return a ufunc's operands as arrays: the numbers of the type that numpy gives them."""
    kinds = [type(x) if isinstance(x, bool | int | float) else x.dtype for x in inputs]
    settled = ufunc.resolve_dtypes((*kinds, *(None,) * ufunc.nout))
    return [
        np.asarray(x, settled[i]) if isinstance(x, bool | int | float) else
        x if isinstance(x, Recorded) else np.asarray(x)
        for i, x in enumerate(inputs)
    ]  # fmt: skip


def _reshaping(x: np.ndarray, y: np.ndarray) -> Call:
    return copy_call(y.reshape(x.shape, copy=False), x)


def _masked(ufunc: np.ufunc, *arrays: np.ndarray) -> Call:
    *read, where, to = arrays
    return partial(ufunc, *read, out=to, where=where)


def _named_output(ufunc: np.ufunc, *arrays: np.ndarray) -> Call:
    *read, to = arrays
    return partial(ufunc, *read, out=to)


#: Those that numpy's own checks make slower with a positional output.
_MAKERS: Final[dict[Any, Callable[..., Call]]] = {
    ufunc: partial(_named_output, ufunc) for ufunc in (np.maximum, np.minimum)
}


def _reducing(
    ufunc: Any, axes: Any, dtype: Any, keepdims: bool, x: np.ndarray, y: np.ndarray
) -> Call:
    return partial(ufunc.reduce, x, axes, dtype, y, keepdims)


def _accumulating(ufunc: np.ufunc, axis: int, dtype: Any, x: np.ndarray, y: np.ndarray) -> Call:
    return partial(ufunc.accumulate, x, axis, dtype, y)


def _clip(tape: _Tape, x: Any, low: Any, high: Any, out: Any = None) -> Any:
    return _CLIP(x, low, high, out=out) if out is not None else _CLIP(x, low, high)


def _where(tape: _Tape, condition: Any, a: Any, b: Any) -> Recorded:
    real = np.where(_real(condition), _real(a), _real(b))
    to = tape.made(real)
    a, b = (x if isinstance(x, Recorded) else np.asarray(x, real.dtype) for x in (a, b))
    tape.copied(b, to)
    return tape.elementwise(_choosing, a, condition, to)


def _choosing(x: np.ndarray, condition: np.ndarray, y: np.ndarray) -> Call:
    return partial(np.copyto, y, x, where=condition)


def _copyto(tape: _Tape, to: Any, x: Any, casting: str = "same_kind", where: Any = True) -> None:
    x = x if isinstance(x, Recorded) else np.asarray(x, to.dtype)
    if where is True:
        tape.copied(x, to)
    else:
        tape.elementwise(_choosing, x, where, to)


def _sums(tape: _Tape, subscripts: str, x: Recorded, out: Any = None) -> Recorded:
    """Record the one sum that kernels leave to `einsum`: that of short rows."""
    if subscripts != "...i->..." or out is not None:
        raise CannotRecord
    to = tape.made(np.einsum(subscripts, x.real))
    return tape.step(_summing, x, to, lead=to.ndim)


def _summing(x: np.ndarray, y: np.ndarray) -> Call:
    return partial(np.einsum, "...i->...", x, out=y)


def _argmax(tape: _Tape, x: Recorded, axis: Any = None, keepdims: bool = False) -> Recorded:
    to = tape.made(np.argmax(x.real, axis, keepdims=keepdims))
    if axis not in (-1, x.ndim - 1):
        raise CannotRecord
    tape.step(_finding, x, to[..., 0] if keepdims else to, lead=x.ndim - 1)
    return to


def _finding(x: np.ndarray, y: np.ndarray) -> Call:
    return partial(x.argmax, -1, y)


def _take(tape: _Tape, x: Any, indices: Any, axis: Any = None) -> Recorded:
    # In range they are the same for `clip`, which alone writes without a copy of its own.
    known = not isinstance(indices, Recorded) and np.min(indices, initial=0) >= 0
    indices = indices if isinstance(indices, Recorded) else np.asarray(indices)
    to = tape.made(_real(x).take(_real(indices), axis))
    return tape.step(partial(_taking, axis, "clip" if known else "raise"), x, indices, to)


def _taking(axis: Any, mode: Any, x: np.ndarray, indices: np.ndarray, y: np.ndarray) -> Call:
    return partial(x.take, indices, axis, y, mode)


def _take_along_rows(tape: _Tape, x: Recorded, indices: Any, axis: int) -> Recorded:
    """Record the taking of one element of each row, found by `argmax`."""
    if axis % x.ndim != x.ndim - 1 or not x.flags.c_contiguous or indices.shape[-1] != 1:
        raise CannotRecord
    to = tape.made(np.take_along_axis(x.real, indices.real, axis))
    return tape.step(_picking, x, indices, to, lead=x.ndim - 1)


def _picking(x: np.ndarray, indices: np.ndarray, y: np.ndarray) -> Call:
    flat, places, to = (a.reshape(-1, copy=False) for a in (x, indices, y))
    return partial(_pick, flat, np.arange(0, x.size, x.shape[-1]), places, to)


def _pick(flat: np.ndarray, first: np.ndarray, places: np.ndarray, y: np.ndarray) -> None:
    flat.take(first + places, None, y, "clip")


def _concatenate(tape: _Tape, arrays: Sequence[Any], axis: int = 0) -> Recorded:
    to = tape.made(np.concatenate([_real(x) for x in arrays], axis))
    end = 0
    for x in arrays:
        begin, end = end, end + x.shape[axis]
        part = to[(slice(None),) * (axis % to.ndim) + (slice(begin, end),)]
        tape.copied(x, part)
    return to


def _empty_like(tape: _Tape, x: Recorded, dtype: Any = None) -> Recorded:
    return tape.made(np.empty_like(x.real, dtype))


def _full_like(tape: _Tape, x: Recorded, value: Any, dtype: Any = None) -> Recorded:
    to = tape.made(np.empty_like(x.real, dtype))
    return tape.copied(np.asarray(value, to.dtype), to)


def _contiguous(tape: _Tape, x: Recorded) -> Recorded:
    if x.flags.c_contiguous:
        return x
    return tape.copied(x, tape.made(np.ascontiguousarray(x.real)))


def _mean(tape: _Tape, x: Recorded, axis: Any = None, keepdims: bool = False) -> Recorded:
    if x.dtype.kind != "f" or x.itemsize < 4:
        raise CannotRecord
    total: Recorded = np.add.reduce(x, axis=axis, keepdims=keepdims)  # type: ignore[call-overload]
    total /= x.dtype.type(x.size // total.size)
    return total


_FUNCTIONS: Final[dict[Any, Callable[..., Any]]] = {
    np.argmax: _argmax, np.ascontiguousarray: _contiguous, np.clip: _clip,
    np.concatenate: _concatenate, np.copyto: _copyto, np.einsum: _sums,
    np.empty_like: _empty_like, np.full_like: _full_like, np.mean: _mean, np.take: _take,
    np.take_along_axis: _take_along_rows, np.where: _where,
    np.zeros_like: partial(_full_like, value=0),
}  # fmt: skip


class _Namespace:
    """numpy, but memory that may be written to is the tape's."""

    def __init__(self, tape: _Tape) -> None:
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        if name == "random":
            raise CannotRecord
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any = float) -> Recorded:
        return self._tape.made(np.empty(shape, dtype))

    def full(self, shape: Any, value: Any, dtype: Any = None) -> Recorded:
        if isinstance(value, Recorded):
            raise CannotRecord
        to = self._tape.made(np.full(shape, value, dtype))
        return self._tape.copied(np.asarray(value, to.dtype), to)

    def zeros(self, shape: Any, dtype: Any = float) -> Recorded:
        return self.full(shape, 0, dtype)

    def asarray(self, x: Any, dtype: Any = None) -> Any:
        if not isinstance(x, Recorded):
            return np.asarray(x, dtype)
        return x if dtype is None else x.astype(dtype, copy=False)
