"""What the checks ask: a plugin is one, and so is whatever else compiles models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from hetero.devices.model.model import Model
from hetero.devices.plugin.properties import Config, Property
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.plugin.support import Support
from hetero.devices.request.base_compiled_model import BaseCompiledModel


class Subject(Protocol):
    """Something that answers queries, compiles, imports and has properties."""

    @property
    def name(self) -> str:
        """Its name, for messages."""

    @property
    def computes(self) -> bool:
        """Whether outputs are what the model says."""

    @property
    def properties(self) -> Mapping[str, Property]:
        """Its properties."""

    def get_property(self, name: str) -> Any:
        """Return a property's value."""

    def set_property(self, config: Config) -> None:
        """Set defaults for models compiled later."""

    def query_model(self, model: Model, config: Config | None = None) -> Support:
        """Return which nodes it runs, and why not the others."""

    def compile_model(self, model: Model, config: Config | None = None) -> BaseCompiledModel:
        """Compile a model whose nodes it runs all."""

    def import_model(self, exported: Any, model: Model, /) -> BaseCompiledModel:
        """Return the compiled model that what `export_model` of another gave is."""

    def create_context(self) -> RemoteContext:
        """Return its memory; UnsupportedOperationError where it has none of its own."""
