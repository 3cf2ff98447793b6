"""The ORT device: ONNX Runtime, on its own CPU provider."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any, ClassVar

from hetero.devices.errors import BlobError, PluginLoadError
from hetero.devices.model.literals import lift_literals
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import Payload, Program
from hetero.devices.plugin.properties import (
    COMMON_PROPERTIES,
    OPTIONAL_PROPERTIES,
    Config,
    Property,
    PropertyTable,
)
from hetero.devices.plugin.support import Refusal

try:
    import onnxruntime
except ImportError as error:
    raise PluginLoadError(
        "the ORT device needs ONNX Runtime, which is not installed; pip install 'hetero[ort]'.",
        device="ORT",
    ) from error

from hetero.devices.ort.program import PAYLOAD_FORMAT, OrtProgram
from hetero.devices.ort.provider import Provider, libraries
from hetero.devices.ort.query import OrtQuery
from hetero.devices.ort.session import with_types


class ORTPlugin(Plugin):
    """ONNX Runtime.

    Which nodes it takes is asked of ONNX Runtime itself, one small session for each distinct
    operator, attributes and element types; answers are kept for the plugin's life.
    """

    name: ClassVar[str] = "ORT"
    #: What it compiles models to.
    program: ClassVar[type[OrtProgram]] = OrtProgram
    #: Caches alone, which its programs lengthen where they are.
    leaves_outputs: ClassVar[bool] = True
    rank: ClassVar[int] = 40
    properties: ClassVar[PropertyTable] = COMMON_PROPERTIES.extended(
        *OPTIONAL_PROPERTIES.values(),
        Property(
            "OPTIMIZATION_CAPABILITIES",
            tuple,
            ("FP32", "FP16", "INT8", "BIN"),
            False,
            "Element types and abilities.",
        ),
        Property(
            # Its errors are raised, in the same words; its warnings are about its optimisations.
            "LOG_LEVEL",
            str,
            "LOG_NONE",
            True,
            "What ONNX Runtime writes to stderr by itself.",
            choices=(
                "LOG_NONE",
                "LOG_ERROR",
                "LOG_WARNING",
                "LOG_INFO",
                "LOG_DEBUG",
                "LOG_TRACE",
            ),
        ),
        Property(
            "EXTENSIONS",
            tuple,
            (),
            True,
            "Libraries of custom operators: Core says so for those added to it.",
            shapes_result=True,
        ),
        Property("RANGE_FOR_ASYNC_INFER_REQUESTS", tuple, (1, 64, 1), False, "Fewest, most, step."),
    )

    def __init__(self) -> None:
        super().__init__()
        self._query = OrtQuery()

    def provider(self, config: Config) -> Provider:
        """Return the execution provider that sessions run on."""
        return Provider(libraries=libraries(config["EXTENSIONS"]))

    def transform_model(self, model: Model, config: Config) -> Model:
        """Lift literals; find the types that ONNX's own inference does not."""
        return with_types(lift_literals(model), config["EXTENSIONS"])

    def prepare_query(self, model: Model, config: Config) -> Mapping[str, Refusal | str]:
        """Ask ONNX Runtime about every node."""
        return self._query.judge(model, self.provider(config))

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        """Take what ONNX Runtime took: `prepare_query` holds the refusals."""
        return None

    def compile(self, model: Model, config: Config) -> Program:
        """Make a session of the whole model."""
        return self.program(model, config, self.provider(config))

    def load(self, payload: Payload, model: Model, config: Config) -> Program:
        """Make a session of an optimised model, of this version's: other providers compile it."""
        payload.check_format(PAYLOAD_FORMAT, model.name)
        if (version := payload.header["version"]) != self.version():
            raise BlobError(
                f"model {model.name!r} was compiled by ONNX Runtime {version}; this is "
                f"{self.version()}. Compile the model again."
            )
        return self.program(model, config, self.provider(config), payload=payload)

    def version(self) -> str:
        """Return ONNX Runtime's version."""
        return str(onnxruntime.__version__)

    def full_name(self, device_id: str) -> str:
        """Return the runtime and the processor."""
        return f"ONNX Runtime {self.version()} on {platform.processor() or platform.machine()}"

    def fingerprint(self, device_id: str) -> str:
        """Return what optimised models depend on."""
        return f"onnxruntime-{self.version()}-{platform.machine()}-{_instruction_set()}"

    def device_properties(self, device_id: str) -> Mapping[str, Any]:
        """Return the architecture."""
        return {"DEVICE_ARCHITECTURE": platform.machine()}


def _instruction_set() -> str:
    """Return which vector instructions there are: layouts in optimised models follow them."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123 - one line is read
            line = next((text for text in file if text.startswith(("flags", "Features"))), "")
    except OSError:
        return os.name
    flags = set(line.split())
    known = ("avx", "avx2", "avx512f", "avx512_vnni", "amx_int8", "asimd", "sve")
    return "+".join(flag for flag in known if flag in flags) or "base"
