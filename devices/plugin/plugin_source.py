"""What names a plugin in text: ``[NAME=]PLUGIN[@PYTHON]``."""

from __future__ import annotations

from typing import NamedTuple


class PluginSource(NamedTuple):
    """Where a plugin is found."""

    #: What its devices are called; empty for its own name.
    name: str
    #: ``module:attr``, or the name of an installed plugin.
    target: str
    #: The interpreter that has it, of an environment of its own; empty for this one.
    python: str

    @classmethod
    def read(cls, text: str) -> PluginSource:
        """Read ``module:attr``, ``NAME=module:attr``, ``ORT_OPENVINO@/opt/ov/bin/python``."""
        here, _, python = text.partition("@")
        name, _, target = here.rpartition("=")
        return cls(name, target, python)

    @property
    def here(self) -> PluginSource:
        """The same for the interpreter that has it."""
        return self._replace(python="")

    @property
    def shown(self) -> str:
        """What it is called before it is loaded."""
        return self.name or (str(self) if ":" in self.target else self.target)

    def __str__(self) -> str:
        name = f"{self.name}=" if self.name else ""
        return f"{name}{self.target}" + (f"@{self.python}" if self.python else "")
