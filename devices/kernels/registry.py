"""The kernel registry: which function computes which operator, and since which opset.

A kernel is one pure function of arrays whose signature is the ONNX operator's::

    @op("Softmax", since=13)
    def softmax_13(xp, x, *, axis=-1):
        shifted = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
        return shifted / xp.sum(shifted, axis=axis, keepdims=True)

* `xp` is the array namespace (numpy, or CuPy with numpy's API); no kernel file imports either.
* Inputs follow, positional, in the specification's order; an absent optional input is ``None``;
  variadic inputs are ``*inputs``.
* Attributes are keyword-only, under their ONNX names with their ONNX defaults. They arrive as
  int, float, str, tuples of those, arrays (tensor attributes), TypeProto, or for a graph attribute
  a callable ``body(*inputs) -> tuple`` over host or device arrays.
* A kernel returns one array, or a tuple as the specification has outputs.
* It never writes into an input. Keyword-only parameters with these reserved names are not
  attributes; the interpreter fills them when the kernel declares them:

  ``n_outputs``  how many outputs the node names (trailing absent ones cut off)
  ``version``    the version of the operator's domain that the model imports
  ``memo``       a dict of the node's own, the same in every run, for values that a kernel computes
                 from attributes alone

The registration says which values an attribute may have (`choices`), and which opset brought an
input or attribute that the first one lacks (`added`) or took an attribute away (`dropped`); a query
refuses others, so that a kernel need not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final

from onnx import TensorProto

#: Keyword-only kernel parameters that are not ONNX attributes.
RESERVED: Final = frozenset({"memo", "n_outputs", "version"})

#: `host=ALL`: every input is wanted on the host (strings, Python objects, data-dependent loops).
ALL: Final = -1

KernelFunction = Callable[..., Any]
_POSITIONAL: Final = inspect.Parameter.POSITIONAL_OR_KEYWORD
#: Attribute -> its valid values; of a list, those of each entry.
Choices = Mapping[str, tuple[Any, ...]]

_TYPES: Final = tuple(n for n in TensorProto.DataType.values() if n != TensorProto.UNDEFINED)
_FLOATS: Final = (
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
)
#: Attributes that mean the same wherever they are.
_EVERYWHERE: Final[Choices] = {
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", ""),
    "dtype": _TYPES,
    "output_datatype": _TYPES,
    "output_dtype": (TensorProto.UNDEFINED, *_TYPES),
    "softmax_precision": _FLOATS,
    "stash_type": _FLOATS,
    "to": _TYPES,
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One operator's implementation for the opsets from `since` to the next registered one."""

    domain: str
    op_type: str
    #: First opset with these semantics.
    since: int
    function: KernelFunction
    #: Positions of inputs wanted as host (numpy) arrays; `(ALL,)` for every one.
    host: tuple[int, ...] = ()
    #: Names of the keyword-only parameters, reserved and absent ones left out.
    attributes: frozenset[str] = field(default=frozenset())
    #: Reserved parameters that the function declares.
    wants: frozenset[str] = field(default=frozenset())
    #: Valid values of attributes that have few.
    choices: Choices = field(default_factory=dict, hash=False)
    #: Parameters of the function that only other opsets have.
    absent: frozenset[str] = field(default=frozenset())

    def reads_on_host(self, position: int) -> bool:
        """Whether the input there is wanted as a host array."""
        return self.host == (ALL,) or position in self.host


class KernelRegistry:
    """Kernels by (domain, operator), each with its `since` versions."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[str, str], dict[int, Kernel]] = {}

    def add(self, kernel: Kernel) -> None:
        """Register a kernel; a second one for the same operator and opset is an error."""
        versions = self._kernels.setdefault((kernel.domain, kernel.op_type), {})
        if kernel.since in versions:
            first, second = (_where(k.function) for k in (versions[kernel.since], kernel))
            raise ValueError(
                f"{kernel.domain or 'ai.onnx'}::{kernel.op_type} since opset {kernel.since} is "
                f"registered twice: at {first} and at {second}. Remove one."
            )
        versions[kernel.since] = kernel

    def find(self, domain: str, op_type: str, opset: int) -> Kernel | None:
        """Return the kernel with the greatest ``since <= opset``; below the lowest: None."""
        versions = self._kernels.get((domain, op_type), {})
        since = max((s for s in versions if s <= opset), default=None)
        return None if since is None else versions[since]

    def versions(self, domain: str, op_type: str) -> tuple[int, ...]:
        """Return the `since` versions registered for an operator, ascending."""
        return tuple(sorted(self._kernels.get((domain, op_type), {})))

    def __iter__(self) -> Iterator[Kernel]:
        for versions in self._kernels.values():
            yield from versions.values()


#: Every kernel of this package.
KERNELS: Final = KernelRegistry()


def op(
    op_type: str,
    *,
    since: int | tuple[int, ...],
    domain: str = "",
    host: tuple[int, ...] = (),
    choices: Choices | None = None,
    added: Mapping[str, int] | None = None,
    dropped: Mapping[str, int] | None = None,
    registry: KernelRegistry | None = None,
) -> Callable[[KernelFunction], KernelFunction]:
    """Register the decorated function as `op_type`'s kernel.

    Parameters
    ----------
    op_type : str
        The operator's name in the specification.
    since : int or tuple of int
        First opset(s) with these semantics; several when the schema changed but not what the
        function computes, so that a test can compare signatures at each.
    domain : str
        ``""`` is ai.onnx; ``"hetero"`` holds fused operators that `transform_model` makes.
    host : tuple of int
        Positions of inputs wanted as host arrays, or ``(ALL,)``.
    choices : mapping of str to tuple, optional
        The valid values of attributes, beside those that mean the same in every operator.
    added : mapping of str to int, optional
        Input or attribute -> the opset that brought it, where that is later than `since`.
    dropped : mapping of str to int, optional
        Attribute -> the first opset without it.
    registry : KernelRegistry, optional
        Where a device's own kernel goes; without it the kernel is every device's.

    Raises
    ------
    ValueError
        The operator has a kernel of this opset already, or `choices` names no attribute, or
        `added` or `dropped` no parameter.
    """

    def register(function: KernelFunction) -> KernelFunction:
        parameters = inspect.signature(function).parameters
        keywords = {n for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
        if unknown := sorted((choices or {}).keys() - keywords):
            raise ValueError(f"{_where(function)} has no attribute {unknown[0]!r} to choose for")
        came, went = dict(added or {}), dict(dropped or {})
        if unknown := sorted((came | went).keys() - parameters.keys()):
            raise ValueError(
                f"{_where(function)} has no parameter {unknown[0]!r} to be added or dropped"
            )
        valid = {n: v for n, v in _EVERYWHERE.items() if n in keywords} | dict(choices or {})
        own = {since} if isinstance(since, int) else {*since}
        for version in sorted(own | {*came.values(), *went.values()}):
            absent = frozenset(
                [n for n, brought in came.items() if brought > version]
                + [n for n, gone in went.items() if gone <= version]
            )
            (KERNELS if registry is None else registry).add(
                Kernel(
                    domain,
                    op_type,
                    version,
                    function,
                    tuple(p for p in host if p == ALL or [*parameters][p + 1] not in absent),
                    frozenset(keywords - RESERVED - absent),
                    frozenset(keywords & RESERVED),
                    {n: v for n, v in valid.items() if n not in absent},
                    absent,
                )
            )
        return function

    return register


def taking(
    shared: Callable[..., Any], *, but: Collection[str] = ()
) -> Callable[[KernelFunction], KernelFunction]:
    """Give a kernel, in place of its ``**keywords``, the attributes of a function that takes them.

    They are the keyword-only parameters of `shared`, without those named in `but` and the
    kernel's own.
    """

    def register(function: KernelFunction) -> KernelFunction:
        signature = inspect.signature(function)
        own = {n: p for n, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
        handed = {
            n: p
            for n, p in inspect.signature(shared).parameters.items()
            if p.kind is p.KEYWORD_ONLY and n not in but
        }
        parameters = [*own.values(), *(p for n, p in handed.items() if n not in own)]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by `op`
        return function

    return register


def as_inputs(kernel: KernelFunction, *names: str) -> KernelFunction:
    """Return the kernel of a later version, in which these attributes are inputs on the host."""
    signature = inspect.signature(kernel)

    @wraps(kernel)
    def function(xp: Any, x: Any, *inputs: Any, **attributes: Any) -> Any:
        given = {
            n: v.reshape(-1).tolist() for n, v in zip(names, inputs, strict=False) if v is not None
        }
        return kernel(xp, x, **given, **attributes)

    kept = [p for n, p in signature.parameters.items() if n not in names]
    moved = [signature.parameters[n].replace(kind=_POSITIONAL) for n in names]
    function.__signature__ = signature.replace(parameters=[*kept[:2], *moved, *kept[2:]])  # type: ignore[attr-defined]  # read by `op`
    return function


def _where(function: KernelFunction) -> str:
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"
