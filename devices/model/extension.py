"""Extensions: operators that a user defines by a function of arrays.

A model names the extensions of its operators in its metadata, by module and attribute, so that its
subgraphs, blobs and cache keys have them wherever they go. What a model names is imported only
where the configuration allows it: a file from elsewhere runs no code.
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
import xxhash

from hetero.devices.errors import ArgumentError, ModelError
from hetero.devices.model.model import Model, Node, header_with
from hetero.devices.model.tensor_spec import TensorSpec

#: Before an operator's name, the key of the model's metadata that names its extension.
_KEY: Final = "hetero.extension:"
#: Suffixes of libraries of operators.
LIBRARIES: Final = (".so", ".dll", ".dylib")
#: Domain and operator.
Operator = tuple[str, str]


@dataclass(frozen=True)
class Extension:
    """A custom operator that Python computes.

    Attributes
    ----------
    domain, op_type : str
        The operator.
    function : callable
        Computes the outputs, one array or a tuple, from the input arrays; absent inputs are None,
        attributes are keyword-only. It never writes into an input.
    infer : callable
        The type-and-shape rule: the outputs' `TensorSpec`, one or a tuple, from the inputs' and the
        same attributes; their names do not matter.
    since : int
        The version of the domain from which on the operator means this.
    """

    domain: str
    op_type: str
    function: Callable[..., Any]
    infer: Callable[..., Any]
    since: int = 1

    def __call__(self, *inputs: Any, **attributes: Any) -> Any:
        """Compute the outputs: what `function` does."""
        return self.function(*inputs, **attributes)

    @property
    def name(self) -> str:
        """The operator with its domain."""
        return f"{self.domain}::{self.op_type}"

    @cached_property
    def origin(self) -> str:
        """Where it is imported from, and what its module contains: ``module:attr#digest``.

        ArgumentError if it is not to be imported.
        """
        module, attribute = self.function.__module__, self.function.__qualname__
        if _imported(module, attribute) is not self:
            raise ArgumentError(
                f"extension {self.name}: {module}:{attribute} is something else, so devices' "
                "processes cannot import it. Put the decorated function at the top of a module."
            )
        return f"{module}:{attribute}#{_digest(module)}"

    def outputs(self, inputs: Sequence[TensorSpec | None], node: Node) -> tuple[TensorSpec, ...]:
        """Return the outputs' types by the rule, under the node's names.

        ModelError if the rule fails, or returns something other than tensor types.
        """
        try:
            found = self.infer(*inputs, **node.attributes)
            specs = found if isinstance(found, tuple) else (found,)
            named = zip(specs, node.outputs, strict=False)
            return tuple(replace(spec, name=name, layout="") for spec, name in named if name)
        except Exception as error:
            raise ModelError(
                f"node {node.name!r}: the type-and-shape rule of extension {self.name} fails: "
                f"{type(error).__name__}: {error}. It returns a TensorSpec for each output, or one."
            ) from error

    def checked(self, inputs: Sequence[Any], outputs: Any, attributes: Mapping[str, Any]) -> Any:
        """Return what the function gave, as its rule says of these inputs.

        ValueError if it is of another type or shape than the rule says.
        """
        given = [None if x is None else TensorSpec.from_array("", np.asarray(x)) for x in inputs]
        promised = self.infer(*given, **attributes)
        promised = promised if isinstance(promised, tuple) else (promised,)
        made = outputs if isinstance(outputs, tuple) else (outputs,)
        for i, (value, wanted) in enumerate(zip(made, promised, strict=False)):
            spec = TensorSpec.from_array("", np.asarray(value))
            if spec.type != wanted.type or not wanted.accepts(np.shape(value)):
                raise ValueError(
                    f"output {i} of extension {self.name} is {spec}; its type-and-shape rule says "
                    f"{wanted}. Mend the one that is wrong"
                )
        return outputs


def custom_operator(
    name: str, *, infer: Callable[..., Any], since: int = 1
) -> Callable[[Callable[..., Any]], Extension]:
    """Make an `Extension` of the decorated function.

    Parameters
    ----------
    name : str
        Domain and operator, as ``org.example::Gelu``.
    infer, since
        As in `Extension`.

    Raises
    ------
    ArgumentError
        The name has no domain.
    """
    domain, separator, op_type = name.partition("::")
    if not (separator and domain and op_type) or domain == "ai.onnx":
        raise ArgumentError(
            f"custom operator {name!r}: wanted a domain of your own and a name, as "
            "'org.example::Gelu'."
        )
    return lambda function: Extension(domain, op_type, function, infer, since)


def find_extension(text: str) -> Extension:
    """Return the extension that ``module:attr`` names.

    ArgumentError if there is none.
    """
    module, _, attribute = text.partition("#")[0].partition(":")
    try:
        found = _imported(module, attribute)
    except (ImportError, ValueError) as error:
        raise ArgumentError(
            f"extension {text!r}: its module cannot be imported: {error}"
        ) from error
    if not isinstance(found, Extension):
        raise ArgumentError(
            f"extension {text!r} is {found!r}; wanted module:attr of a function that is decorated "
            "with hetero.custom_operator."
        )
    return found


def named_extensions(model: Model) -> dict[Operator, str]:
    """Return the origin of each extension that a model names."""
    found = {}
    for key, origin in model.metadata.items():
        if key.startswith(_KEY):
            domain, _, op_type = key.removeprefix(_KEY).partition("::")
            found[domain, op_type] = origin
    return found


def with_extensions(model: Model, origins: Mapping[Operator, str]) -> Model:
    """Return the model with these extensions, and no others, named."""
    if named_extensions(model) == dict(origins):
        return model
    entries: dict[str, str | None] = {k: None for k in model.metadata if k.startswith(_KEY)}
    for (domain, op_type), origin in sorted(origins.items()):
        entries[f"{_KEY}{domain}::{op_type}"] = origin
    return model.replace(header=header_with(model, entries), specs=model.specs)


def allowed_extensions(model: Model, allowed: Collection[str]) -> Model:
    """Return the model with those of its extensions named that may be imported here."""
    named = named_extensions(model)
    return with_extensions(model, {k: origin for k, origin in named.items() if origin in allowed})


def load_extension(origin: str) -> Extension:
    """Import an extension that a model names.

    ArgumentError if it is not there, or its module is another than where the model comes from.
    """
    found = find_extension(origin)
    if found.origin != origin:
        raise ArgumentError(
            f"extension {found.name}: the model was made with {origin}, here is {found.origin}: "
            "the module's contents differ. Install the same on every node, and compile again."
        )
    return found


def _imported(module: str, attribute: str) -> object:
    found: object = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return found


def _digest(module: str) -> str:
    """Return a hash of a module's source: another text may compute something else."""
    file = getattr(sys.modules[module], "__file__", None)
    return xxhash.xxh3_64_hexdigest(Path(file).read_bytes()) if file else "interactive"


def library_origin(path: str | Path) -> str:
    """Return where a library of operators is, and what it contains: ``path#digest``.

    ArgumentError if it cannot be read.
    """
    path = Path(path).resolve()
    try:
        return f"{path}#{xxhash.xxh3_64_hexdigest(path.read_bytes())}"
    except OSError as error:
        raise ArgumentError(
            f"extension {str(path)!r} cannot be read: {error.strerror}. Give the path of a library "
            "that is there on every node."
        ) from error


def library_path(origin: str) -> str | None:
    """Return the library that an extension's origin names, if it names one.

    ArgumentError if it is not the same here.
    """
    path, _, digest = origin.rpartition("#")
    if Path(path).suffix not in LIBRARIES:
        return None
    if library_origin(path) != origin:
        raise ArgumentError(
            f"extension {path!r} is another library here: its contents have no digest {digest}. "
            "Install the same on every node, and compile again."
        )
    return path
