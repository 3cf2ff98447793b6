"""The recorder: runs a kernel once on stand-ins for arrays that write down what is done to them.

What it computes from shapes, types and constants is settled then; what is done to elements becomes
steps on a tape. A kernel that looks at an element cannot be recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero.devices.interpreter.block import Task
from hetero.devices.interpreter.calls import Scratch
from hetero.devices.interpreter.implementations import ONLY_IN_A_RUN
from hetero.devices.interpreter.stand_in import CannotRecord, StandIn, Tape
from hetero.devices.interpreter.tape import Recording, bytes_of
from hetero.devices.kernels import ALL

_log = logging.getLogger(__name__)


def recorded(
    task: Task, inputs: Sequence[Any], varying: Sequence[bool], outputs: Sequence[Any]
) -> Recording | None:
    """Return what a task's kernel does, held to what it gave; None if it cannot be recorded.

    `varying`: which of the inputs that it was given have other elements in another run; `outputs`:
    what it returned, None for what nobody wants. In later runs they lie in memory likewise.
    """
    kernel = task.implementation.definition
    if task.call is None or kernel.host == (ALL,) or task.node.op_type in ONLY_IN_A_RUN:
        return None
    given = partial(kernel.function, **task.attributes)
    recording = _record(given, inputs, varying, outputs)
    if recording is None or _gives(recording, inputs, outputs):
        return recording
    _log.warning(
        "node %r (%s) is not bound: what was recorded of its kernel gives other elements",
        task.node.name,
        task.node.op_type,
    )
    return None


def _record(
    kernel: Callable[..., Any],
    inputs: Sequence[Any],
    varying: Sequence[bool],
    outputs: Sequence[Any],
) -> Recording | None:
    tape = Tape(inputs)
    try:
        given = [
            tape.array(x, i) if is_varying and x is not None else x
            for i, (x, is_varying) in enumerate(zip(inputs, varying, strict=True))
        ]
        found = kernel(_Namespace(tape), *given)
        return tape.recording(found if isinstance(found, tuple) else (found,), outputs)
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
    return all(  # of floats NaN is equal to NaN, and -0 to 0
        np.array_equal(bytes_of(a), bytes_of(b))
        or (a.dtype.kind in "fc" and np.array_equal(a, b, equal_nan=True))
        for a, b in pairs
    )


class _Namespace:
    """numpy, but memory that may be written to is the tape's."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def __getattr__(self, name: str) -> Any:
        if name == "random":
            raise CannotRecord
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any = float) -> StandIn:
        return self._tape.made(np.empty(shape, dtype))

    def full(self, shape: Any, value: Any, dtype: Any = None) -> StandIn:
        if isinstance(value, StandIn):
            raise CannotRecord
        to = self._tape.made(np.full(shape, value, dtype))
        return self._tape.copied(np.asarray(value, to.dtype), to)

    def zeros(self, shape: Any, dtype: Any = float) -> StandIn:
        return self.full(shape, 0, dtype)

    def asarray(self, x: Any, dtype: Any = None) -> Any:
        if not isinstance(x, StandIn):
            return np.asarray(x, dtype)
        return x if dtype is None else x.astype(dtype, copy=False)

    def ascontiguousarray(self, x: Any) -> Any:
        if not isinstance(x, StandIn):
            return np.ascontiguousarray(x)
        if x.flags.c_contiguous:
            return x
        return self._tape.copied(x, self._tape.made(np.ascontiguousarray(x.real)))
