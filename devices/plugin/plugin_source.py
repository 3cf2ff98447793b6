"""Plugin sources in text form: ``[NAME=]PLUGIN[@PYTHON]``."""

from __future__ import annotations

from typing import NamedTuple


class PluginSource(NamedTuple):
    """The location of a plugin, and the name for its devices."""

    #: Name for the plugin's devices; empty for the plugin's own name.
    name: str
    #: ``module:attr``, or the name of an installed plugin.
    target: str
    #: Python interpreter of another environment with the plugin; empty for this interpreter.
    python: str

    @classmethod
    def parse(cls, text: str) -> PluginSource:
        """Parse ``module:attr``, ``NAME=module:attr`` or ``ORT_OPENVINO@/opt/ov/bin/python``."""
        location, _, python = text.partition("@")
        name, _, target = location.rpartition("=")
        return cls(name, target, python)

    @property
    def without_interpreter(self) -> PluginSource:
        """The source as seen by the interpreter that has the plugin."""
        return self._replace(python="")

    @property
    def label(self) -> str:
        """The name for messages before the plugin is loaded."""
        return self.name or (str(self) if ":" in self.target else self.target)

    def __str__(self) -> str:
        name = f"{self.name}=" if self.name else ""
        return f"{name}{self.target}" + (f"@{self.python}" if self.python else "")
