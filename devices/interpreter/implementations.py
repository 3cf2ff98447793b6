"""Implementations of nodes: a kernel, a function's body, or onnx's own evaluator."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

import onnx

from hetero.devices.errors import ArgumentError
from hetero.devices.interpreter.backend import NUMPY, ArrayBackend
from hetero.devices.interpreter.delegate import is_delegated
from hetero.devices.kernels import ALL, KERNELS, Kernel
from hetero.devices.model.attributes import attribute_value, bodies
from hetero.devices.model.extension import Operator, extension_origins, load_extension
from hetero.devices.model.functions import (
    FunctionKey,
    function_key,
    function_opsets,
    instantiate,
    standard_function,
)
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.support import Refusal

#: Domain of the fused operators that `transform_model` makes.
FUSED: Final = "hetero"
#: Operators that constant folding leaves to the run: their results are random, or their time is
#: unlimited.
NOT_FOLDABLE: Final = frozenset(
    [
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Dropout",
        "Loop",
    ]
)


@dataclass(frozen=True)
class Scope:
    """The context in which a node is interpreted."""

    #: Domain -> imported version.
    opsets: Mapping[str, int]
    #: The model's own functions.
    functions: Mapping[FunctionKey, onnx.FunctionProto] = field(default_factory=dict)
    #: Custom operators, by domain and name.
    extensions: Mapping[Operator, Kernel | Refusal] = field(default_factory=dict)
    #: Function and attributes of a call -> its implementation, found once for all equal calls.
    calls: dict[tuple[Any, ...], Implementation | Refusal] = field(default_factory=dict)
    #: Function and attributes of a call -> its block.
    blocks: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    backend: ArrayBackend = NUMPY

    @classmethod
    def of_model(cls, model: Model, backend: ArrayBackend = NUMPY) -> Scope:
        """Return the scope of a model's main graph."""
        scopes = _scopes.setdefault(model, {})
        if backend not in scopes:
            functions = {(f.domain, f.name, f.overload): f for f in model.header.functions}
            origins = extension_origins(model).items()
            extensions = {operator: _extension_kernel(origin) for operator, origin in origins}
            scopes[backend] = cls(model.opset_imports, functions, extensions, backend=backend)
        return scopes[backend]

    def of_function(self, function: onnx.FunctionProto) -> Scope:
        """Return the scope of a function's body, which imports its own operator sets."""
        return replace(self, opsets=function_opsets(function))

    def opset(self, domain: str) -> int:
        """Return the imported version of a domain; that of fused operators is always 1."""
        return self.opsets.get(domain, 1 if domain == FUSED else 0)


#: One scope per model and backend: a query looks up the nodes of a model one by one.
_scopes: WeakKeyDictionary[Model, dict[ArrayBackend, Scope]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Implementation:
    """The code that runs a node: a kernel, a function's body or onnx.reference.

    A `Constant` node has kind "literal" and does not run.
    """

    kind: Literal["literal", "kernel", "function", "delegate"]
    #: The kernel or the function; None for the other kinds.
    definition: Any = None
    #: Name of the array library that a kernel computes with.
    library: str = NUMPY.name

    def reads_on_host(self, position: int) -> bool:
        """Tell whether the input at a position has to be in the host's memory."""
        return isinstance(self.definition, Kernel) and self.definition.reads_on_host(position)

    @property
    def label(self) -> str:
        """The implementation's name in the runtime model."""
        if isinstance(self.definition, Kernel):
            return f"{self.library}:{self.definition.function.__name__}"
        if isinstance(self.definition, onnx.FunctionProto):
            return f"function:{self.definition.name}"
        return "delegated to onnx.reference" if self.kind == "delegate" else self.kind


def find_implementation(node: Node, scope: Scope) -> Implementation | Refusal:
    """Return the implementation of `node`, or a refusal if there is none.

    The model's own functions come first, because they may redefine an operator. Custom operators
    and kernels are next, then delegation, then the function body in the operator's specification.
    """
    if node.is_constant:
        return Implementation("literal")
    operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    key = function_key(node)
    if key in scope.functions:
        call = (key, *(a.SerializeToString(deterministic=True) for a in node.proto.attribute))
        if call not in scope.calls:
            scope.calls[call] = _function(scope.functions[key], node, scope, operator)
        return scope.calls[call]
    if node.domain not in scope.opsets and node.domain != FUSED:
        return Refusal("opset", f"{operator}: the model imports no opset of domain {node.domain!r}")
    opset = scope.opset(node.domain)
    extension = scope.extensions.get((node.domain, node.op_type))
    if isinstance(extension, Refusal):
        return extension
    kernel = extension or scope.backend.find_kernel(node.domain, node.op_type, opset)
    if kernel is not None:
        return _check_kernel(node, kernel, scope, operator)
    if is_delegated(node.domain, node.op_type, opset):
        return Implementation("delegate")
    body = standard_function(node, opset)
    if body is not None:
        return _function(body, node, scope, operator)
    versions = KERNELS.versions(node.domain, node.op_type)
    if versions:
        return Refusal(
            "opset",
            f"{operator}: expected opset {versions[0]} or later, got {opset}; convert the model",
        )
    hint = "; register one with Core.add_extension" if node.domain else ""
    return Refusal("no_kernel", f"{operator}: no kernel at opset {opset}{hint}")


def _check_kernel(
    node: Node, kernel: Kernel, scope: Scope, operator: str
) -> Implementation | Refusal:
    for attribute in node.proto.attribute:
        if attribute.name not in kernel.attributes:
            names = ", ".join(sorted(kernel.attributes)) or "none"
            return Refusal(
                "attribute",
                f"{operator}: attribute {attribute.name!r} is unknown at opset "
                f"{scope.opset(node.domain)}; known: {names}",
            )
        if attribute.name in kernel.choices:
            value, valid = attribute_value(attribute), kernel.choices[attribute.name]
            if any(v not in valid for v in (value if isinstance(value, tuple) else (value,))):
                return Refusal(
                    "attribute",
                    f"{operator}: attribute {attribute.name!r} is {value!r}; valid values are "
                    f"{', '.join(map(repr, valid))}",
                )
    for name, graph in bodies(node.proto):
        if refusal := _first_refusal(graph.node, scope):
            return Refusal(refusal.code, f"in {name} of {operator}: {refusal.message}")
    on_host = kernel.host == (ALL,)
    return Implementation("kernel", kernel, NUMPY.name if on_host else scope.backend.name)


def _function(
    function: onnx.FunctionProto, call: Node, scope: Scope, operator: str
) -> Implementation | Refusal:
    nodes = instantiate(function, call.proto)
    if refusal := _first_refusal(nodes, scope.of_function(function)):
        return Refusal(refusal.code, f"in the body of function {operator}: {refusal.message}")
    return Implementation("function", function)


def _first_refusal(nodes: Any, scope: Scope) -> Refusal | None:
    for proto in nodes:
        result = find_implementation(Node.from_proto(proto), scope)
        if isinstance(result, Refusal):
            return result
    return None


def _extension_kernel(origin: str) -> Kernel | Refusal:
    """Return a kernel that runs and checks a custom operator, or why it cannot be loaded."""
    try:
        extension = load_extension(origin)
    except ArgumentError as error:
        return Refusal("no_kernel", str(error))
    parameters = inspect.signature(extension.function).parameters.values()
    attributes = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    def call(xp: Any, *inputs: Any, **attributes: Any) -> Any:
        return extension.checked_outputs(inputs, extension(*inputs, **attributes), attributes)

    call.__name__ = extension.origin.partition("#")[0]
    return Kernel(
        extension.domain,
        extension.op_type,
        extension.since,
        call,
        host=(ALL,),
        attributes=attributes,
    )
