"""The registry of the CPU's own kernels, which come before the shared ones, and what fills it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from devices.interpreter.calls import Call, Scratch, makes_calls
from devices.kernels import KernelRegistry
from devices.kernels.registry import op

#: Filled by `fast_op`.
FAST: Final = KernelRegistry()

#: Called as ``make(scratch, y, *inputs, **attributes)``; see `fast_op`.
Make = Callable[..., tuple[Any, Iterable[Call]] | None]


def fast_op(op_type: str, *, any_order: bool = False, many: bool = False) -> Callable[[Make], Make]:
    """Register the decorated function as a fused operator: its kernel, and what makes its calls.

    It is called as `makes_calls` says, or with None for `y` or the outputs, which it makes then;
    it returns them and the calls, or None where it has none for the `y` that it was given.
    """

    def register(make: Make) -> Make:
        def kernel(xp: object, *inputs: Any, **attributes: Any) -> Any:
            made = make(Scratch(), None, *inputs, **attributes)
            assert made is not None
            for call in made[1]:
                call()
            return made[0]

        scratch, _, *rest = inspect.signature(make).parameters.values()
        signature = inspect.Signature([scratch.replace(name="xp"), *rest])
        kernel.__signature__ = signature  # type: ignore[attr-defined]  # `op` reads it
        kernel.__name__, kernel.__doc__ = make.__name__, make.__doc__
        op(op_type, since=1, domain="hetero", registry=FAST)(kernel)

        def calls(
            scratch: Scratch, y: Any, *inputs: Any, **attributes: Any
        ) -> Sequence[Call] | None:
            made = make(scratch, y, *inputs, **attributes)
            return None if made is None else list(made[1])

        register_calls = makes_calls(
            op_type, 1, domain="hetero", any_order=any_order, many=many, registry=FAST
        )
        register_calls(calls)
        return make

    return register
