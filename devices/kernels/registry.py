"""The kernel registry: maps an operator and an opset to the function that computes it.

A kernel is one pure function of arrays whose signature is the ONNX operator's::

    @op("Softmax", since=13)
    def softmax_13(xp, x, *, axis=-1):
        shifted = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
        return shifted / xp.sum(shifted, axis=axis, keepdims=True)

* `xp` is the array namespace (numpy, or CuPy with numpy's API); no kernel file imports either.
* Inputs follow, positional, in the specification's order; an absent optional input is ``None``;
  variadic inputs are ``*inputs``.
* Attributes are keyword-only, under their ONNX names with their ONNX defaults. Their values are
  int, float, str, tuples of those, arrays (tensor attributes), TypeProto, or for a graph attribute
  a callable ``body(*inputs) -> tuple`` over host or device arrays.
* A kernel returns one array, or a tuple if the operator has several outputs.
* A kernel never writes into an input.
* Keyword-only parameters with these reserved names are not attributes; the interpreter passes them
  to kernels that declare them:

  ``n_outputs``  number of outputs that the node names, without absent ones at the end
  ``version``    version of the operator's domain that the model imports
  ``memo``       dict of this node, the same in every run, for values that depend on attributes
                 only

The registration lists the valid values of attributes (`choices`), the opsets that added an input
or attribute (`additions`), and those that removed an attribute (`removals`). A query refuses
everything else, so kernels need not check it.
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

#: `host=(ALL,)`: the kernel needs every input on the host (strings, data-dependent loops).
ALL: Final = -1

KernelFunction = Callable[..., Any]
_POSITIONAL: Final = inspect.Parameter.POSITIONAL_OR_KEYWORD
#: Attribute -> its valid values; for a list, the valid values of each entry.
Choices = Mapping[str, tuple[Any, ...]]

_TYPES: Final = tuple(n for n in TensorProto.DataType.values() if n != TensorProto.UNDEFINED)
_FLOATS: Final = (
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
)
#: Attributes that mean the same in every operator.
_COMMON_CHOICES: Final[Choices] = {
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
    #: Positions of inputs that the kernel needs as host (numpy) arrays; `(ALL,)` for all.
    host: tuple[int, ...] = ()
    #: Names of the keyword-only parameters, without reserved and absent ones.
    attributes: frozenset[str] = field(default=frozenset())
    #: Reserved parameters that the function declares.
    reserved: frozenset[str] = field(default=frozenset())
    #: Valid values of attributes that take one of a few.
    choices: Choices = field(default_factory=dict, hash=False)
    #: Parameters of the function that the operator does not have at this opset.
    absent: frozenset[str] = field(default=frozenset())

    def reads_on_host(self, position: int) -> bool:
        """Tell whether the kernel needs the input at a position as a host array."""
        return self.host == (ALL,) or position in self.host


class KernelRegistry:
    """Kernels by domain, operator and first opset."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[str, str], dict[int, Kernel]] = {}

    def add(self, kernel: Kernel) -> None:
        """Register a kernel; ValueError if its operator already has one at this opset."""
        versions = self._kernels.setdefault((kernel.domain, kernel.op_type), {})
        if kernel.since in versions:
            first, second = (_location_text(k.function) for k in (versions[kernel.since], kernel))
            raise ValueError(
                f"{kernel.domain or 'ai.onnx'}::{kernel.op_type} since opset {kernel.since} is "
                f"registered twice: at {first} and at {second}. Remove one."
            )
        versions[kernel.since] = kernel

    def find(self, domain: str, op_type: str, opset: int) -> Kernel | None:
        """Return the kernel with the greatest ``since <= opset``, or None."""
        versions = self._kernels.get((domain, op_type), {})
        since = max((s for s in versions if s <= opset), default=None)
        return None if since is None else versions[since]

    def versions(self, domain: str, op_type: str) -> tuple[int, ...]:
        """Return the `since` versions registered for an operator, ascending."""
        return tuple(sorted(self._kernels.get((domain, op_type), {})))

    def __iter__(self) -> Iterator[Kernel]:
        for versions in self._kernels.values():
            yield from versions.values()


#: The kernels of this package, shared by all devices that interpret.
KERNELS: Final = KernelRegistry()


def op(
    op_type: str,
    *,
    since: int | tuple[int, ...],
    domain: str = "",
    host: tuple[int, ...] = (),
    choices: Choices | None = None,
    additions: Mapping[str, int] | None = None,
    removals: Mapping[str, int] | None = None,
    registry: KernelRegistry | None = None,
) -> Callable[[KernelFunction], KernelFunction]:
    """Register the decorated function as `op_type`'s kernel.

    Parameters
    ----------
    op_type : str
        The operator's name in the specification.
    since : int or tuple of int
        First opset(s) with these semantics. Several opsets mean that the schema changed and the
        function did not; a test compares the signature with each schema.
    domain : str
        ``""`` is ai.onnx; ``"hetero"`` holds fused operators that `transform_model` makes.
    host : tuple of int
        Positions of inputs that the kernel needs as host arrays, or ``(ALL,)``.
    choices : mapping of str to tuple, optional
        Valid values of attributes, in addition to those that are the same in every operator.
    additions : mapping of str to int, optional
        Input or attribute -> the opset that added it, if later than `since`.
    removals : mapping of str to int, optional
        Attribute -> the first opset without it.
    registry : KernelRegistry, optional
        Registry of one device's own kernels; by default the kernel is shared by all devices.

    Raises
    ------
    ValueError
        If the operator already has a kernel at this opset, `choices` names a parameter that is no
        attribute, or `additions` or `removals` name something that is no parameter.
    """

    def register(function: KernelFunction) -> KernelFunction:
        parameters = inspect.signature(function).parameters
        keywords = {n for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
        if unknown := sorted((choices or {}).keys() - keywords):
            raise ValueError(
                f"{_location_text(function)} has no attribute {unknown[0]!r} to choose for"
            )
        first, end = dict(additions or {}), dict(removals or {})
        if unknown := sorted((first | end).keys() - parameters.keys()):
            raise ValueError(
                f"{_location_text(function)} has no parameter {unknown[0]!r} to be added or removed"
            )
        valid = {n: v for n, v in _COMMON_CHOICES.items() if n in keywords} | dict(choices or {})
        own = {since} if isinstance(since, int) else {*since}
        for version in sorted(own | {*first.values(), *end.values()}):
            absent = frozenset(
                [n for n, opset in first.items() if version < opset]
                + [n for n, opset in end.items() if version >= opset]
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


def with_attributes_of(
    shared: Callable[..., Any], *, exclude: Collection[str] = ()
) -> Callable[[KernelFunction], KernelFunction]:
    """Replace a kernel's ``**keywords`` in its signature by the attributes of another function.

    The attributes are the keyword-only parameters of `shared`, except those in `exclude` and those
    that the kernel declares itself.
    """

    def register(function: KernelFunction) -> KernelFunction:
        signature = inspect.signature(function)
        own = {n: p for n, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
        attributes = {
            n: p
            for n, p in inspect.signature(shared).parameters.items()
            if p.kind is p.KEYWORD_ONLY and n not in exclude
        }
        parameters = [*own.values(), *(p for n, p in attributes.items() if n not in own)]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by `op`
        return function

    return register


def as_inputs(kernel: KernelFunction, *names: str) -> KernelFunction:
    """Return the kernel of a later opset, in which these attributes became host inputs."""
    signature = inspect.signature(kernel)

    @wraps(kernel)
    def function(xp: Any, x: Any, *inputs: Any, **attributes: Any) -> Any:
        values = {
            n: v.reshape(-1).tolist() for n, v in zip(names, inputs, strict=False) if v is not None
        }
        return kernel(xp, x, **values, **attributes)

    others = [p for n, p in signature.parameters.items() if n not in names]
    host_inputs = [signature.parameters[n].replace(kind=_POSITIONAL) for n in names]
    parameters = [*others[:2], *host_inputs, *others[2:]]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by `op`
    return function


def _location_text(function: KernelFunction) -> str:
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"
