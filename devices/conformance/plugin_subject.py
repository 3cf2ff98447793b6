"""Adapter of a plugin for the checks, with compiled models like those of a Core."""

from __future__ import annotations

from typing import Any, Final

from hetero.devices.model.model import Model
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.properties import Config
from hetero.devices.request.base_compiled_model import BaseCompiledModel
from hetero.devices.request.local_model import LocalModel


class PluginSubject:
    """A plugin whose compiled models run requests like those of a Core."""

    def __init__(self, plugin: Plugin) -> None:
        self.plugin: Final = plugin
        self.name: Final = plugin.name
        self.computes: Final = plugin.computes
        self.properties: Final = plugin.properties
        self.get_property: Final = plugin.get_property
        self.set_property: Final = plugin.set_property
        self.query_model: Final = plugin.query_model
        self.create_context: Final = plugin.create_context

    def compile_model(self, model: Model, config: Config | None = None) -> BaseCompiledModel:
        """Compile a model; all of its nodes must be supported."""
        return LocalModel(self.plugin.compile_model(model, config))

    def import_model(self, exported: Any, model: Model, /) -> BaseCompiledModel:
        """Import the result of `export_model`."""
        return LocalModel(self.plugin.import_model(exported, model))
