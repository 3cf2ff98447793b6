"""Interface of the subjects of the checks: a plugin, or devices of a Core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from hetero.devices.model.model import Model
from hetero.devices.plugin.properties import Config, Property
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.plugin.support import Support
from hetero.devices.request.base_compiled_model import BaseCompiledModel


class Subject(Protocol):
    """An object that queries, compiles and imports models, and has properties."""

    @property
    def name(self) -> str:
        """Name for messages."""

    @property
    def computes(self) -> bool:
        """Whether outputs are computed, unlike device NULL's zeros."""

    @property
    def properties(self) -> Mapping[str, Property]:
        """Declared properties by name."""

    def get_property(self, name: str) -> Any:
        """Return a property's value."""

    def set_property(self, config: Config) -> None:
        """Set defaults for models compiled later."""

    def query_model(self, model: Model, config: Config | None = None) -> Support:
        """Return the supported nodes, and the refusals of the others."""

    def compile_model(self, model: Model, config: Config | None = None) -> BaseCompiledModel:
        """Compile a model; all of its nodes must be supported."""

    def import_model(self, exported: Any, model: Model, /) -> BaseCompiledModel:
        """Import the result of `export_model`."""

    def create_context(self) -> RemoteContext:
        """Return a remote context; UnsupportedOperationError if there is no device memory."""
