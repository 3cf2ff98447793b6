"""Plugin sources in text form: ``[NAME=]PLUGIN[@PYTHON]``, or ``NAME=LIBRARY``."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

#: The end of a shared library's name.
_LIBRARY: Final = re.compile(r".+\.(so(\.\d+)*|dylib|dll)")


class PluginSource(NamedTuple):
    """The location of a plugin, and the name for its devices."""

    #: Name for the plugin's devices; empty for the plugin's own name.
    name: str
    #: ``module:attr``, the name of an installed plugin, or the path of a library with a plug-in
    #: execution provider of ONNX Runtime.
    target: str
    #: Python interpreter of another environment with the plugin; empty for this interpreter.
    python: str

    @classmethod
    def parse(cls, text: str) -> PluginSource:
        """Parse ``module:attr``, ``NAME=module:attr`` or ``ORT_OPENVINO@/opt/ov/bin/python``.

        The form of a library is ``ggml=/opt/ggml/libonnxruntime_ggml.so``.
        """
        name, separator, path = text.partition("=")
        if separator and _LIBRARY.fullmatch(path):
            return cls(name, path, "")
        location, _, python = text.partition("@")
        name, _, target = location.rpartition("=")
        return cls(name, target, python)

    @property
    def is_library(self) -> bool:
        """Whether the target is a library of a plug-in execution provider."""
        return bool(self.name and _LIBRARY.fullmatch(self.target))

    @property
    def without_interpreter(self) -> PluginSource:
        """The source as seen by the interpreter that has the plugin."""
        return self._replace(python="")

    @property
    def label(self) -> str:
        """The name for messages before the plugin is loaded."""
        if self.is_library:
            return f"ORT_{self.name.upper()}"
        return self.name or (str(self) if ":" in self.target else self.target)

    def __str__(self) -> str:
        name = f"{self.name}=" if self.name else ""
        return f"{name}{self.target}" + (f"@{self.python}" if self.python else "")
