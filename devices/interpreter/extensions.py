"""Kernels of the custom operators that a model names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from devices.errors import ArgumentError
from devices.kernels import ALL, Kernel
from devices.model.extension import Extension, Operator, load_extension, named_extensions
from devices.model.model import Model
from devices.plugin.support import Refusal


def extension_kernels(model: Model) -> Mapping[Operator, Kernel | Refusal]:
    """Return what runs each custom operator that the model names, or why nothing does."""
    return {key: _kernel(origin) for key, origin in named_extensions(model).items()}


def _kernel(origin: str) -> Kernel | Refusal:
    try:
        extension = load_extension(origin)
    except ArgumentError as error:
        return Refusal("no_kernel", str(error))
    parameters = inspect.signature(extension.function).parameters.values()
    attributes = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    return Kernel(
        extension.domain, extension.op_type, extension.since, _called(extension),
        host=(ALL,), attributes=attributes,
    )  # fmt: skip


def _called(extension: Extension) -> Any:
    """Return the function as the interpreter calls kernels, held to its rule."""

    def call(xp: Any, *inputs: Any, **attributes: Any) -> Any:
        return extension.checked(inputs, extension(*inputs, **attributes), attributes)

    call.__name__ = extension.origin.partition("#")[0]
    return call
