"""Extensions of a Core: custom operators, which are added to the models that use them."""

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
    operators_of,
    uses_library_operators,
    with_extensions,
)
from hetero.devices.model.model import Model
from hetero.devices.model.reader import check_function
from hetero.devices.plugin.properties import PropertyTable

#: The device option with the extensions that the device may import.
OPTION: Final = "EXTENSIONS"
#: The first IR version of ONNX with functions.
_MIN_FUNCTIONS_IR_VERSION: Final = 8


class Extensions:
    """The extensions of a Core. Thread-safe."""

    def __init__(self) -> None:
        self._python: dict[Operator, Extension] = {}
        self._functions: dict[Operator, onnx.FunctionProto] = {}
        self._libraries: set[str] = set()
        self._lock = threading.Lock()

    def add(self, extension: Any, *, on_ray: bool) -> None:
        """Add an extension.

        Raises ArgumentError: its operator already has another extension.
        """
        if isinstance(extension, str | Path) and Path(extension).suffix in LIBRARIES:
            with self._lock:
                self._libraries.add(library_origin(extension))
            return
        if isinstance(extension, str):
            extension = find_extension(extension)
        if not isinstance(extension, Extension | onnx.FunctionProto):
            raise ArgumentTypeError(
                "extension: expected a function decorated with hetero.custom_operator, its "
                f"module:attr, an onnx.FunctionProto, or the path of a library; got {extension!r}."
            )
        if isinstance(extension, Extension):
            key, origin = (extension.domain, extension.op_type), extension.origin
            if on_ray and origin.startswith("__main__:"):
                raise ArgumentError(
                    f"extension {extension.name} is defined in __main__, which the devices' "
                    "processes cannot import. Move it to a module."
                )
        else:
            key = extension.domain, extension.name
            check_function(extension, "extension")
        with self._lock:
            existing = self._python.get(key) or self._functions.get(key)
            if existing is not None and existing != extension:
                raise ArgumentError(
                    f"{'::'.join(key)} already has an extension; use another name, or another Core."
                )
            if isinstance(extension, Extension):
                self._python[key] = extension
            else:
                self._functions[key] = extension

    def apply(self, model: Model) -> Model:
        """Return the model with the extensions of its operators: functions, names and types.

        Raises ArgumentError: an extension requires a later operator set version.
        """
        if not (self._python or self._functions):
            return model
        model = self._with_functions(model)
        operators = operators_of(model)
        model_extensions = {key: e for key, e in self._python.items() if key in operators}
        if not model_extensions:
            return model
        versions = model.opset_imports
        for key, extension in model_extensions.items():
            if versions.get(key[0], 0) < extension.since:
                raise ArgumentError(
                    f"model {model.name!r} imports {key[0]} {versions.get(key[0], 0)}, but "
                    f"extension {extension.name} requires version {extension.since} or later."
                )
        origins = {key: extension.origin for key, extension in model_extensions.items()}
        return _with_inferred_types(with_extensions(model, origins), model_extensions)

    def allow(
        self,
        model: Model,
        configs: Mapping[str, Mapping[str, Any]],
        tables: Mapping[str, PropertyTable],
    ) -> dict[str, dict[str, Any]]:
        """Return the devices' options with the extensions that they may import for a model."""
        origins = set(extension_origins(model).values()) & self._origins()
        if self._libraries and uses_library_operators(model):
            origins |= self._libraries
        extension_options = {OPTION: tuple(sorted(origins))} if origins else {}
        return {
            device: {**options, **(extension_options if OPTION in tables[device] else {})}
            for device, options in configs.items()
        }

    def require(self, blob: ModelBlob) -> None:
        """Check that the extensions of a blob were added to this Core.

        Raises BlobError: with the missing extensions.
        """
        options = blob.head.device_options.values()
        origins = {
            origin for device_options in options for origin in device_options.get(OPTION) or ()
        }
        if missing := sorted(origins - self._origins()):
            names = [origin.partition("#")[0] for origin in missing]
            raise BlobError(
                f"model {blob.name!r} requires the extensions {', '.join(names)}, which this Core "
                "does not have in this version. If you trust them, call "
                f"core.add_extension({names[0]!r}) first."
            )

    def _origins(self) -> set[str]:
        return {extension.origin for extension in self._python.values()} | self._libraries

    def _with_functions(self, model: Model) -> Model:
        """Return the model with the functions that it calls, directly or indirectly."""
        own_functions = {(f.domain, f.name) for f in model.header.functions}
        called: dict[Operator, onnx.FunctionProto] = {}
        pending = operators_of(model)
        while pending:
            key = pending.pop()
            function = self._functions.get(key)
            if function is None or key in called or key in own_functions:
                continue
            called[key] = function
            inner = (n for node in function.node for n in with_bodies(node))
            pending |= {(node.domain, node.op_type) for node in inner}
        if not called:
            return model
        header = onnx.ModelProto()
        header.CopyFrom(model.header)
        header.functions.extend(called[key] for key in sorted(called))
        header.ir_version = max(header.ir_version, _MIN_FUNCTIONS_IR_VERSION)
        imported = {entry.domain for entry in header.opset_import}
        for domain in sorted({key[0] for key in called} - imported):
            header.opset_import.add(domain=domain, version=1)
        return model.replace(header=header)


def _with_inferred_types(model: Model, extensions: Mapping[Operator, Extension]) -> Model:
    """Return the model with the types from the extensions' rules, and further inferred types.

    Raises ModelError: a rule contradicts a declared type.
    """
    pending = [node for node in model.nodes if (node.domain, node.op_type) in extensions]
    while pending:
        specs, new_specs, postponed = model.specs, [], []
        for node in pending:
            inputs = [specs.get(name) if name else None for name in node.inputs]
            if any(name and name not in specs for name in node.inputs):
                postponed.append(node)
                continue
            for spec in extensions[node.domain, node.op_type].outputs(inputs, node):
                declared = specs.get(spec.name)
                if declared is None:
                    new_specs.append(spec)
                elif declared.type != spec.type or not (
                    declared.partial_shape.compatible(spec.partial_shape)
                ):
                    raise ModelError(
                        f"node {node.name!r}: the rule of extension {node.domain}::{node.op_type} "
                        f"returns {spec} for {spec.name!r}, but the model declares {declared}. Fix "
                        "one of them."
                    )
                elif declared.shape is None and spec.shape is not None:
                    new_specs.append(spec)
        if new_specs:
            infos = {info.name: info for info in model.value_info}
            infos |= {spec.name: spec.to_proto() for spec in new_specs}
            model = model.replace(value_info=tuple(infos.values()))
        if len(postponed) == len(pending):
            return model
        pending = postponed
    return model
