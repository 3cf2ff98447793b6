"""The CPU device under another name; it logs each query and compilation to a file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Payload, Program
from hetero.devices.plugin.properties import Config, Property, PropertyTable
from hetero.devices.plugin.support import Refusal


class CountingPlugin(CPUPlugin):
    name: ClassVar[str] = "COUNT"
    properties: ClassVar[PropertyTable] = CPUPlugin.properties.extended(
        Property("COUNT_FILE", str, "", True, "Where lines go."),
        Property("COUNT_COMPILE_S", float, 0.0, True, "Seconds that compiling takes.", minimum=0),
        Property("COUNT_LEVEL", int, 0, True, "Changes what compiles.", shapes_result=True),
    )
    #: Suffix of `version` and `fingerprint`.
    release: ClassVar[str] = "1"
    chip: ClassVar[str] = "a"
    #: Called at each compilation.
    on_compile: ClassVar[Callable[[], object]] = staticmethod(lambda: None)
    #: Whether payloads are refused.
    broken: ClassVar[bool] = False

    def prepare_query(self, model: Model, config: Config) -> Mapping[str, Refusal | str]:
        self._note(config, "query")
        return {}

    def compile(self, model: Model, config: Config) -> Program:
        self._note(config, "compile")
        type(self).on_compile()
        time.sleep(config["COUNT_COMPILE_S"])
        return super().compile(model, config)

    def load(self, payload: Payload, model: Model, config: Config) -> Program:
        if self.broken:
            raise RuntimeError("broken by design")
        self._note(config, "load")
        return super().load(payload, model, config)

    def version(self) -> str:
        return f"{super().version()} {self.release}"

    def fingerprint(self, device_id: str) -> str:
        return f"{super().fingerprint(device_id)} {self.chip}"

    def _note(self, config: Mapping[str, Any], what: str) -> None:
        if config["COUNT_FILE"]:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            descriptor = os.open(config["COUNT_FILE"], flags, 0o644)
            os.write(descriptor, f"{what}\n".encode())
            os.close(descriptor)


def lines(path: Path) -> list[str]:
    """Return the logged events, without the queries that a compilation makes itself."""
    return path.read_text().split() if path.exists() else []
