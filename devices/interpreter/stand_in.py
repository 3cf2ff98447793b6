"""Stand-ins for arrays: they tell their shapes and types, and write down what is done to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Final, NoReturn

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from devices.interpreter.calls import Call
from devices.interpreter.copies import copy_call
from devices.interpreter.tape import Place, Recording, Step, copying, edited, layouts_of

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


#: Function of numpy's -> what puts its steps on a tape.
_STEPS: Final[dict[Any, Callable[..., Any]]] = {}


def steps_of(function: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function, ``(tape, *arguments)``, for a function of numpy's."""

    def register(steps: Callable[..., Any]) -> Callable[..., Any]:
        _STEPS[function] = steps
        return steps

    return register


class CannotRecord(Exception):  # noqa: N818 - no error, but an answer
    """The kernel looks at an element, or does what no call does in memory that is given."""


class Tape:
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

    def array(self, real: np.ndarray, buffer: int) -> StandIn:
        """Return the stand-in for an array that lies in a buffer."""
        if real.dtype.hasobject:
            raise CannotRecord
        return StandIn(self, real, buffer)

    def made(self, real: Any) -> StandIn:
        """Return the stand-in for a new array."""
        real = np.asarray(real)
        buffer, self._count = self._count, self._count + 1
        self._addresses[buffer] = np.lib.array_utils.byte_bounds(real)[0]
        self._sizes[buffer] = real.nbytes
        return self.array(real, buffer)

    def place(self, array: StandIn | np.ndarray) -> Place:
        """Return where an array lies, a constant's memory as a buffer of its own."""
        if isinstance(array, StandIn):
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
        *arrays: StandIn | np.ndarray,
        lead: int = 0,
        fixed: frozenset[int] = frozenset(),
    ) -> StandIn:
        """Add a step and return what it writes to, which is the last of the arrays."""
        to = arrays[-1]
        if not isinstance(to, StandIn) or to.buffer in range(len(self._layouts)):
            raise CannotRecord
        if len(self._steps) >= _MOST_STEPS:
            raise CannotRecord
        if not to.size:
            return to
        self._steps.append(Step(make, tuple(map(self.place, arrays)), lead, fixed=fixed))
        return to

    def elementwise(self, make: Callable[..., Call], *arrays: Any) -> StandIn:
        """Add a step that takes each element by itself, other arrays broadcast to the last."""
        to = self.step(make, *arrays)
        if not to.size:
            return to
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

    def copied(self, x: StandIn | np.ndarray, to: StandIn) -> StandIn:
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
            if not isinstance(given, StandIn) or given.shape != result.shape:
                return None
            own = self._sizes.get(given.buffer) == given.nbytes and given.buffer not in buffers
            if not own or given.real.strides != result.strides or given.dtype != result.dtype:
                given = self.copied(given, self.made(np.empty_like(result)))
            buffers.append(given.buffer)
        return edited(self._steps, self._layouts, buffers, self._constants, self._sizes, in_pieces)


def real_of(value: Any) -> Any:
    """Return the array that a stand-in stands for; anything else as it is."""
    return value.real if isinstance(value, StandIn) else value


class StandIn(NDArrayOperatorsMixin):
    """Stands for an array whose elements are known in the run alone; the tape sees its uses.

    `real` has elements of the run that was traced, which tell what type and layout results have.
    """

    #: Where kernels take it to be: what they check there, they check in each run.
    device: Final = "cpu"

    def __init__(self, tape: Tape, real: np.ndarray, buffer: int) -> None:
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

    def _view(self, real: np.ndarray) -> StandIn:
        if self.size and real.size and not np.may_share_memory(real, self.real):
            raise CannotRecord
        return StandIn(self._tape, real, self.buffer)

    def __getitem__(self, key: Any) -> Any:
        for axis, index in enumerate(key if isinstance(key, tuple) else ()):
            if isinstance(index, np.ndarray):  # one of positions, beside whole axes
                taken: Any = np.take(self[key[:axis]], index, axis=axis)
                return taken[(*(slice(None),) * (axis + index.ndim), *key[axis + 1 :])]
        return self._view(np.asarray(self.real[key]))

    def __setitem__(self, key: Any, value: Any) -> None:
        part = self[key]
        if not isinstance(value, StandIn):
            value = np.asarray(value, self.dtype)
        elif value is part or (value.buffer == part.buffer and value.real is part.real):
            return  # y[key] += x has written there already
        self._tape.copied(value, part)

    @property
    def T(self) -> StandIn:  # noqa: N802 - an array's name for it
        """The array with its axes reversed."""
        return self._view(self.real.T)

    def transpose(self, *axes: Any) -> StandIn:
        """Return the array with its axes in another order."""
        return self._view(self.real.transpose(*axes))

    def swapaxes(self, a: int, b: int) -> StandIn:
        """Return the array with two axes exchanged."""
        return self._view(self.real.swapaxes(a, b))

    def view(self, dtype: Any) -> StandIn:
        """Return the bits as another type."""
        return self._view(self.real.view(dtype))

    def reshape(self, *shape: Any) -> StandIn:
        """Return the elements in another shape, copied where they do not lie so."""
        real = self.real.reshape(*shape)
        if np.may_share_memory(real, self.real):
            return self._view(real)
        to = self._tape.made(real)
        self._tape.step(_reshaping, self, to)
        return to

    def astype(self, dtype: Any, *, copy: bool = True) -> StandIn:
        """Return the array in another type."""
        if not copy and self.dtype == dtype:
            return self
        return self._tape.copied(self, self._tape.made(self.real.astype(dtype)))

    def copy(self) -> StandIn:
        """Return a copy."""
        return self.astype(self.dtype)

    def __pow__(self, exponent: Any) -> Any:
        """Return the power, as arrays compute those of a few numbers."""
        known: dict[Any, np.ufunc] = {2: np.square, 0.5: np.sqrt, -1: np.reciprocal}
        if isinstance(exponent, int | float) and self.dtype.kind == "f" and exponent in known:
            return known[exponent](self)
        return np.power(self, exponent)

    def _reduced(ufunc: np.ufunc) -> Any:  # type: ignore[misc]  # noqa: N805 - no method itself
        def reduced(self: StandIn, axis: Any = None, keepdims: bool = False) -> Any:
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
            to = self._tape.made(ufunc(*map(real_of, arrays)))
        if where is not True:
            return self._tape.elementwise(partial(_masked, ufunc), *arrays, where, to)
        return self._tape.elementwise(_MAKERS.get(ufunc, partial(partial, ufunc)), *arrays, to)

    def _reduce(
        self, ufunc: np.ufunc, x: StandIn, axis: Any = 0, dtype: Any = None, *, to: Any = None,
        keepdims: bool = False, initial: Any = None,
    ) -> StandIn:  # fmt: skip
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
        self, ufunc: np.ufunc, x: StandIn, axis: int = 0, dtype: Any = None, *, to: Any = None
    ) -> StandIn:
        if to is None:
            to = self._tape.made(ufunc.accumulate(x.real, axis, dtype))
        return self._tape.step(partial(_accumulating, ufunc, axis, dtype), x, to)

    def _product(self, a: Any, b: Any, *, to: Any) -> StandIn:
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
        return _STEPS[function](self._tape, *args, **keywords)


def _operands(ufunc: Any, inputs: Sequence[Any]) -> list[Any]:
    """Return a ufunc's operands as arrays: the numbers of the type that numpy gives them."""
    kinds = [type(x) if isinstance(x, bool | int | float) else x.dtype for x in inputs]
    settled = ufunc.resolve_dtypes((*kinds, *(None,) * ufunc.nout))
    return [
        np.asarray(x, settled[i]) if isinstance(x, bool | int | float) else
        x if isinstance(x, StandIn) else np.asarray(x)
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
