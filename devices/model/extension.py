"""Extensions: custom operators that are Python functions of arrays.

A model's metadata records the origin of its extensions (module and attribute), so that subgraphs,
blobs and cache keys include them. An extension is imported only if the configuration allows it:
reading a model file never runs code.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import xxhash

from hetero.devices.errors import ArgumentError, ModelError
from hetero.devices.file_reader import read_regular
from hetero.devices.model.attributes import with_bodies
from hetero.devices.model.model import Model, Node, header_with
from hetero.devices.model.tensor_spec import TensorSpec

#: Prefix of the metadata keys that record extensions; the operator's name follows.
_KEY: Final = "hetero.extension:"
#: File name suffixes of operator libraries.
LIBRARIES: Final = (".so", ".dll", ".dylib")
#: Domain and operator name.
Operator = tuple[str, str]


@dataclass(frozen=True)
class Extension:
    """A custom operator as a Python function.

    Attributes
    ----------
    domain, op_type : str
        The operator.
    function : callable
        Computes the outputs (one array or a tuple) from the input arrays. Absent inputs are None;
        attributes are keyword-only arguments. The function must not modify its inputs.
    infer : callable
        The type-and-shape rule: returns the `TensorSpec` of each output (one or a tuple) from those
        of the inputs and the same attributes. Names in the specs are ignored.
    since : int
        The first version of the domain with this definition of the operator.
    """

    domain: str
    op_type: str
    function: Callable[..., Any]
    infer: Callable[..., Any]
    since: int = 1

    def __call__(self, *inputs: Any, **attributes: Any) -> Any:
        """Call `function`."""
        return self.function(*inputs, **attributes)

    @property
    def name(self) -> str:
        """The operator's name with its domain."""
        return f"{self.domain}::{self.op_type}"

    @cached_property
    def origin(self) -> str:
        """The import location and a digest of the module's source: ``module:attr#digest``.

        Raises ArgumentError if the extension cannot be imported from there.
        """
        module, attribute = self.function.__module__, self.function.__qualname__
        if _import_attribute(module, attribute) is not self:
            raise ArgumentError(
                f"extension {self.name}: devices' processes cannot import it, because "
                f"{module}:{attribute} is another object. Define the decorated function at the top "
                "level of a module."
            )
        return f"{module}:{attribute}#{_digest(module)}"

    def outputs(self, inputs: Sequence[TensorSpec | None], node: Node) -> tuple[TensorSpec, ...]:
        """Return the types of a node's outputs, with the node's value names.

        Raises ModelError if the rule fails or does not return tensor types.
        """
        try:
            result = self.infer(*inputs, **node.attributes)
            specs = result if isinstance(result, tuple) else (result,)
            pairs = zip(specs, node.outputs, strict=False)
            return tuple(replace(spec, name=name, layout="") for spec, name in pairs if name)
        except Exception as error:
            raise ModelError(
                f"node {node.name!r}: the type-and-shape rule of extension {self.name} fails: "
                f"{type(error).__name__}: {error}. The rule must return one TensorSpec, or a tuple "
                "with one for each output."
            ) from error

    def checked_outputs(
        self, inputs: Sequence[Any], outputs: Any, attributes: Mapping[str, Any]
    ) -> Any:
        """Return the outputs of the function after checking them against the type-and-shape rule.

        Raises ValueError if the type or shape of an output differs from the rule.
        """
        specs = [None if x is None else TensorSpec.from_array("", np.asarray(x)) for x in inputs]
        rule_result = self.infer(*specs, **attributes)
        expected = rule_result if isinstance(rule_result, tuple) else (rule_result,)
        values = outputs if isinstance(outputs, tuple) else (outputs,)
        for i, (value, port) in enumerate(zip(values, expected, strict=False)):
            spec = TensorSpec.from_array("", np.asarray(value))
            if spec.type != port.type or not port.accepts(np.shape(value)):
                raise ValueError(
                    f"output {i} of extension {self.name}: expected {port} by its type-and-shape "
                    f"rule, got {spec}. Correct the function or the rule"
                )
        return outputs


def custom_operator(
    name: str, *, infer: Callable[..., Any], since: int = 1
) -> Callable[[Callable[..., Any]], Extension]:
    """Decorate a function to make an `Extension` of it.

    Parameters
    ----------
    name : str
        Domain and operator, such as ``org.example::Gelu``.
    infer, since
        See `Extension`.

    Raises
    ------
    ArgumentError
        The name has no domain.
    """
    domain, separator, op_type = name.partition("::")
    if not (separator and domain and op_type) or domain == "ai.onnx":
        raise ArgumentError(
            f"custom operator: expected a custom domain and a name such as 'org.example::Gelu', "
            f"got {name!r}."
        )
    return lambda function: Extension(domain, op_type, function, infer, since)


def find_extension(text: str) -> Extension:
    """Import the extension at ``module:attr``; ArgumentError if there is none."""
    module, _, attribute = text.partition("#")[0].partition(":")
    try:
        extension = _import_attribute(module, attribute)
    except (ImportError, ValueError) as error:
        raise ArgumentError(
            f"extension {text!r}: its module cannot be imported: {error}"
        ) from error
    if not isinstance(extension, Extension):
        raise ArgumentError(
            f"extension {text!r}: expected the module:attr of a function with the decorator "
            f"hetero.custom_operator, got {extension!r}."
        )
    return extension


def extension_origins(model: Model) -> dict[Operator, str]:
    """Return the origin of each extension in a model's metadata."""
    origins = {}
    for key, origin in model.metadata.items():
        if key.startswith(_KEY):
            domain, _, op_type = key.removeprefix(_KEY).partition("::")
            origins[domain, op_type] = origin
    return origins


def operators_of(model: Model) -> set[Operator]:
    """Return the operators of a model, including those in bodies and functions."""
    outer = [node.proto for node in model.nodes]
    outer += [node for function in model.header.functions for node in function.node]
    return {(node.domain, node.op_type) for proto in outer for node in with_bodies(proto)}


def uses_library_operators(model: Model) -> bool:
    """Return whether a model has operators that only a library may define."""
    functions = {(f.domain, f.name) for f in model.header.functions}
    known_operators = functions | extension_origins(model).keys()
    return any(
        key not in known_operators
        and not onnx.defs.has(key[1], "" if key[0] == "ai.onnx" else key[0])
        for key in operators_of(model)
    )


def with_extensions(model: Model, origins: Mapping[Operator, str]) -> Model:
    """Return the model with exactly these extensions in its metadata."""
    if extension_origins(model) == dict(origins):
        return model
    entries: dict[str, str | None] = {k: None for k in model.metadata if k.startswith(_KEY)}
    for (domain, op_type), origin in sorted(origins.items()):
        entries[f"{_KEY}{domain}::{op_type}"] = origin
    return model.replace(header=header_with(model, entries), specs=model.specs)


def with_allowed_extensions(model: Model, allowed: Collection[str]) -> Model:
    """Return the model without the extensions whose import is not allowed."""
    origins = extension_origins(model)
    return with_extensions(model, {k: origin for k, origin in origins.items() if origin in allowed})


def load_extension(origin: str) -> Extension:
    """Import an extension from a model's metadata.

    Raises ArgumentError if it does not exist, or if its module has another digest than the model
    records.
    """
    extension = find_extension(origin)
    if extension.origin != origin:
        raise ArgumentError(
            f"extension {extension.name}: expected {origin}, as in the compiled model; got "
            f"{extension.origin}. Install the same module on every node, and compile again."
        )
    return extension


def _import_attribute(module: str, attribute: str) -> object:
    value: object = importlib.import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part, None)
    return value


def _digest(module: str) -> str:
    """Return a hash of a module's source code."""
    file = getattr(sys.modules[module], "__file__", None)
    return xxhash.xxh3_64_hexdigest(read_regular(Path(file))) if file else "interactive"


def library_origin(path: str | Path) -> str:
    """Return the path of an operator library and a digest of its contents: ``path#digest``.

    Raises ArgumentError if the file cannot be read.
    """
    path = Path(path).resolve()
    try:
        return f"{path}#{xxhash.xxh3_64_hexdigest(read_regular(path, 2**31))}"
    except OSError as error:
        raise ArgumentError(
            f"extension {str(path)!r} cannot be read: {error.strerror}. Pass the path of a library "
            "that exists on every node."
        ) from error


def library_path(origin: str) -> str | None:
    """Return the path of the operator library at an extension's origin; None for a module.

    Raises ArgumentError if the library has another digest.
    """
    path, _, digest = origin.rpartition("#")
    if Path(path).suffix not in LIBRARIES:
        return None
    if library_origin(path) != origin:
        raise ArgumentError(
            f"extension {path!r}: expected a library with digest {digest}, got other contents. "
            "Install the same library on every node, and compile again."
        )
    return path
