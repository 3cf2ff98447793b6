"""Stand-ins for arrays: they tell their shapes and types, and write down what is done to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn

import numpy as np
from numpy._core import umath
from numpy.lib.array_utils import byte_bounds
from numpy.lib.mixins import NDArrayOperatorsMixin

from hetero.devices.interpreter.calls import Call, copy_call
from hetero.devices.interpreter.tape import (
    Place,
    Recording,
    Step,
    copying,
    layouts_of,
    recording_of,
)

#: Steps beyond which a call of the kernel costs no more than they do.
_MOST_STEPS: Final = 500
#: The ufunc inside `numpy.clip`, which itself takes three times as long to call.
CLIP: Final[Any] = vars(umath)["clip"]
#: Those that numpy's own checks make slower with a positional output.
_NAMED_OUTPUT: Final = (np.maximum, np.minimum)


class CannotRecord(Exception):  # noqa: N818 - no error, but an answer
    """The kernel looks at an element, or does what no call does in memory that is given."""


class Tape:
    """The steps so far, and where the buffers that they touch start: the inputs' are the first.

    Only addresses are kept, so that the kernel frees its arrays as it would unrecorded.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._layouts = layouts_of(inputs)
        self._starts = [byte_bounds(x)[0] if isinstance(x, np.ndarray) else 0 for x in inputs]
        self._steps: list[Step] = []
        self._sizes: dict[int, int] = {}
        self._constants: dict[int, np.ndarray] = {}

    def array(self, real: np.ndarray, buffer: int) -> StandIn:
        """Return the stand-in for an array that lies in a buffer."""
        if real.dtype.hasobject:
            raise CannotRecord
        return StandIn(self, real, buffer)

    def made(self, real: Any) -> StandIn:
        """Return the stand-in for a new array."""
        real = np.asarray(real)
        self._sizes[len(self._starts)] = real.nbytes
        self._starts.append(byte_bounds(real)[0])
        return self.array(real, len(self._starts) - 1)

    def place(self, array: StandIn | np.ndarray) -> Place:
        """Return where an array lies, a constant's memory as a buffer of its own."""
        if isinstance(array, StandIn):
            buffer, real = array.buffer, array.real
        else:
            buffer, real = len(self._starts), array
            self._constants[buffer] = real
            self._starts.append(byte_bounds(real)[0])
        offset = real.__array_interface__["data"][0] - self._starts[buffer]
        return Place(buffer, offset, real.shape, real.strides, real.dtype)

    def step(self, make: Callable[..., Call], *arrays: StandIn | np.ndarray) -> StandIn:
        """Add a step and return what it writes to, which is the last of the arrays."""
        to = arrays[-1]
        if not isinstance(to, StandIn) or to.buffer < len(self._layouts):
            raise CannotRecord
        if len(self._steps) >= _MOST_STEPS:
            raise CannotRecord
        if to.size:
            self._steps.append(Step(make, tuple(map(self.place, arrays))))
        return to

    def copied(self, x: StandIn | np.ndarray, to: StandIn) -> StandIn:
        """Add a step that copies x to `to`, with which it may broadcast."""
        return self.step(copying, x, to)

    def chosen(self, x: Any, condition: Any, to: StandIn) -> StandIn:
        """Add a step that copies x to `to` where a condition is True."""
        return self.step(lambda a, c, y: partial(np.copyto, y, a, where=c), x, condition, to)

    def recording(
        self, found: Sequence[Any], results: Sequence[np.ndarray | None]
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
        return recording_of(self._steps, self._layouts, buffers, self._constants, self._sizes)


def _real(value: Any) -> Any:
    """Return the array that a stand-in stands for; anything else as it is."""
    return value.real if isinstance(value, StandIn) else value


def _reduced(ufunc: np.ufunc) -> Any:
    """Return the method, or the function, that reduces by a ufunc."""

    def reduced(x: StandIn, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Any:
        return ufunc.reduce(x, axis=axis, keepdims=keepdims, dtype=dtype)

    return reduced


class StandIn(NDArrayOperatorsMixin):
    """Stands for an array whose elements are known in the run alone; the tape sees its uses.

    `real` has elements of the run that was traced, which tell what type and layout results have.
    """

    #: Where kernels take it to be: what they check there, they check in each run.
    device: Final = "cpu"

    def __init__(self, tape: Tape, real: np.ndarray, buffer: int) -> None:
        self.tape = tape
        self.real = real
        self.buffer = buffer

    def __getattr__(self, name: str) -> Any:
        """Return what an array tells of its layout."""
        if name in ("dtype", "flags", "itemsize", "nbytes", "ndim", "shape", "size", "strides"):
            return getattr(self.real, name)
        if name in ("swapaxes", "transpose", "view"):
            return lambda *arguments: self.viewed(getattr(self.real, name)(*arguments))
        raise AttributeError(name)

    def _look(self, *_: Any, **__: Any) -> NoReturn:
        raise CannotRecord

    __array__ = __bool__ = __complex__ = __float__ = __index__ = __int__ = __iter__ = _look
    max, min, sum = _reduced(np.maximum), _reduced(np.minimum), _reduced(np.add)

    def __len__(self) -> int:
        return len(self.real)

    def viewed(self, real: np.ndarray) -> StandIn:
        """Return the stand-in for a view of the array."""
        if self.size and real.size and not np.may_share_memory(real, self.real):
            raise CannotRecord
        return StandIn(self.tape, real, self.buffer)

    def __getitem__(self, key: Any) -> Any:
        return self.viewed(np.asarray(self.real[key]))

    def __setitem__(self, key: Any, value: Any) -> None:
        part = self[key]
        if not isinstance(value, StandIn):
            value = np.asarray(value, self.dtype)
        elif value is part or (value.buffer == part.buffer and value.real is part.real):
            return  # y[key] += x has written there already
        self.tape.copied(value, part)

    @property
    def T(self) -> StandIn:  # noqa: N802 - an array's name for it
        """The array with its axes reversed."""
        return self.viewed(self.real.T)

    def reshape(self, *shape: Any) -> StandIn:
        """Return the elements in another shape, copied where they do not lie so."""
        real = self.real.reshape(*shape)
        if np.may_share_memory(real, self.real):
            return self.viewed(real)
        to = self.tape.made(real)
        return self.tape.step(lambda x, y: copy_call(y.reshape(x.shape, copy=False), x), self, to)

    def astype(self, dtype: Any, *, copy: bool = True) -> StandIn:
        """Return the array in another type."""
        if not copy and self.dtype == dtype:
            return self
        return self.tape.copied(self, self.tape.made(self.real.astype(dtype)))

    def copy(self) -> StandIn:
        """Return a copy."""
        return self.astype(self.dtype)

    def __pow__(self, exponent: Any) -> Any:
        """Return the power, as arrays compute those of a few numbers."""
        known: dict[Any, np.ufunc] = {2: np.square, 0.5: np.sqrt, -1: np.reciprocal}
        if isinstance(exponent, int | float) and self.dtype.kind == "f" and exponent in known:
            return known[exponent](self)
        return np.power(self, exponent)

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
        if method != "__call__" or keywords:
            raise CannotRecord
        if ufunc is np.matmul:
            return self._product(*inputs, to=to)
        arrays = _operands(ufunc, inputs)
        if to is None:
            to = self.tape.made(ufunc(*map(_real, arrays)))
        if ufunc in _NAMED_OUTPUT:
            return self.tape.step(lambda *xs: partial(ufunc, *xs[:-1], out=xs[-1]), *arrays, to)
        return self.tape.step(partial(partial, ufunc), *arrays, to)

    def _reduce(
        self,
        ufunc: Any,
        x: StandIn,
        axis: Any = 0,
        dtype: Any = None,
        *,
        to: Any = None,
        keepdims: bool = False,
    ) -> StandIn:
        given = range(x.ndim) if axis is None else np.atleast_1d(axis).tolist()
        axes = tuple(sorted(a - x.ndim if a >= 0 else a for a in given))
        if to is None:
            to = self.tape.made(ufunc.reduce(x.real, axes, dtype, keepdims=keepdims))
        return self.tape.step(
            lambda x, y: partial(ufunc.reduce, x, axes, dtype, y, keepdims), x, to
        )

    def _product(self, a: Any, b: Any, *, to: Any) -> StandIn:
        if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2] or a.dtype != b.dtype:
            raise CannotRecord
        if to is None:
            stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            shape = (*stack, a.shape[-2], b.shape[-1])
            to = self.tape.made(np.ones(shape, a.dtype))  # nobody looks at what it would be
        return self.tape.step(partial(partial, np.matmul), a, b, to)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        """Add the steps that one of numpy's functions is."""
        name = function.__name__
        if name in _VIEWING:
            x, *others = args
            return x.viewed(function(x.real, *others, **keywords))
        if (found := getattr(_Functions, name, None)) is None:
            raise CannotRecord
        return found(*args, **keywords)


def _operands(ufunc: Any, inputs: Sequence[Any]) -> list[Any]:
    """Return a ufunc's operands as arrays: the numbers of the type that numpy gives them."""
    kinds = [type(x) if isinstance(x, bool | int | float) else x.dtype for x in inputs]
    settled = ufunc.resolve_dtypes((*kinds, *(None,) * ufunc.nout))
    return [
        np.asarray(x, settled[i])
        if isinstance(x, bool | int | float)
        else x
        if isinstance(x, StandIn)
        else np.asarray(x)
        for i, x in enumerate(inputs)
    ]


#: Functions that look at their first argument in another way.
_VIEWING: Final = frozenset(
    ("broadcast_to", "expand_dims", "flip", "moveaxis", "squeeze", "swapaxes", "transpose")
)


class _Functions:
    """What numpy's functions of these names do to stand-ins."""

    sum, prod = map(staticmethod, (_reduced(np.add), _reduced(np.multiply)))
    max, min = map(staticmethod, (_reduced(np.maximum), _reduced(np.minimum)))

    @staticmethod
    def clip(x: Any, low: Any, high: Any, out: Any = None) -> Any:
        return CLIP(x, low, high, out=out) if out is not None else CLIP(x, low, high)

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> StandIn:
        real = np.where(_real(condition), _real(a), _real(b))
        tape = next(x.tape for x in (condition, a, b) if isinstance(x, StandIn))
        a, b = (x if isinstance(x, StandIn) else np.asarray(x, real.dtype) for x in (a, b))
        return tape.chosen(a, condition, tape.copied(b, tape.made(real)))

    @staticmethod
    def copyto(to: Any, x: Any, where: Any) -> None:
        to.tape.chosen(x if isinstance(x, StandIn) else np.asarray(x, to.dtype), where, to)

    @staticmethod
    def take(x: Any, indices: Any, axis: Any = None) -> StandIn:
        # In range they are the same for `clip`, which alone writes without a copy of its own.
        known = not isinstance(indices, StandIn) and np.min(indices, initial=0) >= 0
        mode: Any = "clip" if known else "raise"
        indices = indices if isinstance(indices, StandIn) else np.asarray(indices)
        tape = x.tape if isinstance(x, StandIn) else indices.tape
        to = tape.made(_real(x).take(_real(indices), axis))
        taken: StandIn = tape.step(
            lambda x, at, y: partial(x.take, at, axis, y, mode), x, indices, to
        )
        return taken

    @staticmethod
    def concatenate(arrays: Sequence[Any], axis: int = 0) -> StandIn:
        tape = next(x.tape for x in arrays if isinstance(x, StandIn))
        to: StandIn = tape.made(np.concatenate([_real(x) for x in arrays], axis))
        end = 0
        for x in arrays:
            begin, end = end, end + x.shape[axis]
            tape.copied(x, to[(slice(None),) * (axis % to.ndim) + (slice(begin, end),)])
        return to

    @staticmethod
    def empty_like(x: StandIn, dtype: Any = None, shape: Any = None) -> StandIn:
        return x.tape.made(np.empty_like(x.real, dtype, shape=shape))

    @staticmethod
    def full_like(x: StandIn, value: Any, dtype: Any = None, shape: Any = None) -> StandIn:
        to = _Functions.empty_like(x, dtype, shape)
        return x.tape.copied(np.asarray(value, to.dtype), to)

    @staticmethod
    def zeros_like(x: StandIn) -> StandIn:
        return _Functions.full_like(x, 0)

    @staticmethod
    def mean(x: StandIn, axis: Any = None, keepdims: bool = False) -> StandIn:
        if x.dtype.kind != "f" or x.itemsize < 4:
            raise CannotRecord
        total: StandIn = x.sum(axis, keepdims)
        total /= x.dtype.type(x.size // total.size)
        return total
