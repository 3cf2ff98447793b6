"""The extensions of a Core: custom operators, put into each model that uses them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import onnx

from hetero.cache.blob import ModelBlob
from hetero.devices.errors import ArgumentError, ArgumentTypeError, BlobError, ModelError
from hetero.devices.model.attributes import with_bodies
from hetero.devices.model.extension import (
    LIBRARIES,
    Extension,
    Operator,
    extension_origins,
    find_extension,
    library_origin,
    with_extensions,
)
from hetero.devices.model.model import Model
from hetero.devices.model.reader import check_function
from hetero.devices.plugin.properties import PropertyTable

#: The option that says what a device may import.
OPTION: Final = "EXTENSIONS"
#: The oldest format of ONNX files that has functions.
_FUNCTIONS_SINCE: Final = 8


class Extensions:
    """What was added to a Core; safe to use from several threads."""

    def __init__(self) -> None:
        self._python: dict[Operator, Extension] = {}
        self._functions: dict[Operator, onnx.FunctionProto] = {}
        self._libraries: set[str] = set()
        self._lock = threading.Lock()

    def add(self, extension: Any, *, on_ray: bool) -> None:
        """Add one; ArgumentError if its operator has another one already."""
        if isinstance(extension, str | Path) and Path(extension).suffix in LIBRARIES:
            with self._lock:
                self._libraries.add(library_origin(extension))
            return
        if isinstance(extension, str):
            extension = find_extension(extension)
        if not isinstance(extension, Extension | onnx.FunctionProto):
            raise ArgumentTypeError(
                f"extension {extension!r}: wanted a function that hetero.custom_operator "
                "decorates, its module:attr, an onnx.FunctionProto, or a library's path."
            )
        if isinstance(extension, Extension):
            key, origin = (extension.domain, extension.op_type), extension.origin
            if on_ray and origin.startswith("__main__:"):
                raise ArgumentError(
                    f"extension {extension.name} is of the program that runs, which the devices' "
                    "processes do not import. Put it into a module beside it."
                )
        else:
            key = extension.domain, extension.name
            check_function(extension, "the given extension")
        with self._lock:
            other = self._python.get(key) or self._functions.get(key)
            if other is not None and other != extension:
                raise ArgumentError(
                    f"{'::'.join(key)} has an extension already; take another name, or a Core of "
                    "its own."
                )
            if isinstance(extension, Extension):
                self._python[key] = extension
            else:
                self._functions[key] = extension

    def apply(self, model: Model) -> Model:
        """Return the model with the extensions of its operators: functions, names and types."""
        if not (self._python or self._functions):
            return model
        model = self._with_functions(model)
        used = {key: ext for key, ext in self._python.items() if key in _operators(model)}
        if not used:
            return model
        versions = model.opset_imports
        for key, extension in used.items():
            if versions.get(key[0], 0) < extension.since:
                raise ArgumentError(
                    f"model {model.name!r} imports {key[0]} {versions.get(key[0], 0)}; extension "
                    f"{extension.name} is for versions from {extension.since} on."
                )
        return _typed(with_extensions(model, {k: e.origin for k, e in used.items()}), used)

    def allow(
        self,
        model: Model,
        configs: Mapping[str, Mapping[str, Any]],
        tables: Mapping[str, PropertyTable],
    ) -> dict[str, dict[str, Any]]:
        """Return devices' options with the extensions of a model that they may import."""
        wanted = set(extension_origins(model).values()) & self._origins()
        if self._libraries and _of_libraries(model):
            wanted |= self._libraries
        allowed = {OPTION: tuple(sorted(wanted))} if wanted else {}
        return {
            device: {**options, **(allowed if OPTION in tables[device] else {})}
            for device, options in configs.items()
        }

    def require(self, blob: ModelBlob) -> None:
        """Check that what a blob wants to import was added here."""
        options = blob.head.device_options.values()
        wanted = {origin for given in options for origin in given.get(OPTION) or ()}
        if missing := sorted(wanted - self._origins()):
            names = [origin.partition("#")[0] for origin in missing]
            raise BlobError(
                f"model {blob.name!r} runs the custom operators {', '.join(names)}, which this "
                "Core does not have, or in another version. If you trust them, "
                f"core.add_extension({names[0]!r}) first."
            )

    def _origins(self) -> set[str]:
        return {extension.origin for extension in self._python.values()} | self._libraries

    def _with_functions(self, model: Model) -> Model:
        """Return the model with the functions that it calls, and those that these call."""
        there = {(f.domain, f.name) for f in model.header.functions}
        called: dict[Operator, onnx.FunctionProto] = {}
        pending = _operators(model)
        while pending:
            key = pending.pop()
            function = self._functions.get(key)
            if function is None or key in called or key in there:
                continue
            called[key] = function
            inner = (n for node in function.node for n in with_bodies(node))
            pending |= {(node.domain, node.op_type) for node in inner}
        if not called:
            return model
        header = onnx.ModelProto()
        header.CopyFrom(model.header)
        header.functions.extend(called[key] for key in sorted(called))
        header.ir_version = max(header.ir_version, _FUNCTIONS_SINCE)
        imported = {entry.domain for entry in header.opset_import}
        for domain in sorted({key[0] for key in called} - imported):
            header.opset_import.add(domain=domain, version=1)
        return model.replace(header=header)


def _operators(model: Model) -> set[Operator]:
    """Return the operators of a model, in bodies and functions as well."""
    outer = [node.proto for node in model.nodes]
    outer += [node for function in model.header.functions for node in function.node]
    return {(node.domain, node.op_type) for proto in outer for node in with_bodies(proto)}


def _of_libraries(model: Model) -> bool:
    """Return whether an operator is neither ONNX's, nor the model's function or extension."""
    known = {(f.domain, f.name) for f in model.header.functions} | extension_origins(model).keys()
    return any(
        key not in known and not onnx.defs.has(key[1], "" if key[0] == "ai.onnx" else key[0])
        for key in _operators(model)
    )


def _typed(model: Model, extensions: Mapping[Operator, Extension]) -> Model:
    """Return the model with the types that the rules give, and that ONNX infers from these."""
    waiting = [node for node in model.nodes if (node.domain, node.op_type) in extensions]
    while waiting:
        specs, found, left = model.specs, [], []
        for node in waiting:
            inputs = [specs.get(name) if name else None for name in node.inputs]
            if any(name and name not in specs for name in node.inputs):
                left.append(node)
                continue
            for spec in extensions[node.domain, node.op_type].outputs(inputs, node):
                known = specs.get(spec.name)
                if known is None:
                    found.append(spec)
                elif known.type != spec.type or not (
                    known.partial_shape.compatible(spec.partial_shape)
                ):
                    raise ModelError(
                        f"node {node.name!r}: the rule of extension {node.domain}::{node.op_type} "
                        f"says that {spec.name!r} is {spec}; the model declares {known}. Fix "
                        "whichever is wrong."
                    )
                elif known.shape is None and spec.shape is not None:
                    found.append(spec)
        if found:
            infos = {info.name: info for info in model.value_info}
            infos |= {spec.name: spec.to_proto() for spec in found}
            model = model.replace(value_info=tuple(infos.values()))
        if len(left) == len(waiting):
            return model
        waiting = left
    return model
