"""The ORT device: ONNX Runtime with its CPU provider."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from hetero.devices.errors import BlobError, PluginLoadError
from hetero.devices.model.constant_nodes import lift_constant_nodes
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.install_command import install_command
from hetero.devices.plugin.memory_traits import Copies, MemoryTraits
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import Payload, Program
from hetero.devices.plugin.properties import (
    COMMON_PROPERTIES,
    FULL_PRECISION,
    OPTIONAL_PROPERTIES,
    Config,
    Property,
    PropertyTable,
)
from hetero.devices.plugin.support import Refusal

try:
    from hetero.devices.ort.runtime import onnxruntime
except ImportError as error:
    raise PluginLoadError(
        f"device ORT needs ONNX Runtime, which is not installed; {install_command('ort')}.",
        device="ORT",
    ) from error

from hetero.devices.ort.program import PAYLOAD_FORMAT, OrtProgram
from hetero.devices.ort.provider import Provider, custom_operator_libraries
from hetero.devices.ort.query import OrtQuery
from hetero.devices.ort.session import infer_missing_types
from hetero.devices.ort.unnamed_outputs import name_control_flow_outputs

#: Operators whose weights ONNX Runtime lays out anew when it optimises the graph.
_REORDERED_OPERATORS: Final = frozenset({"Conv", "ConvTranspose", "ConvInteger", "QLinearConv"})
#: Resident memory of an idle process with ONNX Runtime on Ray (140 MB) with its channels, and of
#: its libraries' first session, measured on Linux with ONNX Runtime 1.32.
_RUNTIME_NBYTES: Final = 145_000_000
_LIBRARY_NBYTES: Final = 12_000_000


class ORTPlugin(Plugin):
    """ONNX Runtime on the CPU.

    A query opens one small session per distinct combination of operator, attributes and element
    types, and caches the results.
    """

    name: ClassVar[str] = "ORT"
    #: The class of compiled models.
    program: ClassVar[type[OrtProgram]] = OrtProgram
    #: Programs return KV caches in place.
    leaves_outputs: ClassVar[bool] = True
    rank: ClassVar[int] = 40
    #: Measured on 30 models of 0.1 to 350 MB: kernels keep one copy of the weights; optimisations
    #: make others, of which at most 4.9 times the largest weight exist at once. Convolutions and
    #: their values are laid out anew, and batch normalizations folded into convolutions. The arena
    #: keeps the blocks of the first run, and later runs have one block of their own; within a
    #: budget all runs share a block, which is larger than the values by gaps and copies in other
    #: layouts (with 1.5 for convolutions, part of a U-Net lacked 0.1 MB). Without `session_nbytes`,
    #: 3 of 250 random budgets were exceeded, by 1.5 MB at most.
    memory_traits: ClassVar[MemoryTraits] = MemoryTraits(
        runtime_nbytes=_RUNTIME_NBYTES,
        library_nbytes=_LIBRARY_NBYTES,
        copied_operators=None,
        weight_copies=Copies(1.0, 0.0),
        compile_copies=Copies(0.6, 0.9),
        convolution_compile_copies=Copies(3.0, 1.7),
        reused_copies=5.0,
        node_nbytes=8_000,
        session_nbytes=1_500_000,
        values_factor=2.5,
        convolution_values_factor=3.0,
        keeps_values=True,
        overwrites_inputs=True,
        values_option="ORT_ARENA_NBYTES",
        block_values_factor=1.1,
        block_convolution_values_factor=1.6,
        compact_options={"ORT_MAPPED_WEIGHTS": True},
        compact_copied_operators=_REORDERED_OPERATORS,
    )
    properties: ClassVar[PropertyTable] = COMMON_PROPERTIES.extended(
        *OPTIONAL_PROPERTIES.values(),
        FULL_PRECISION,
        Property(
            "OPTIMIZATION_CAPABILITIES",
            tuple,
            ("FP32", "FP16", "INT8", "BIN"),
            False,
            "Element types and abilities.",
        ),
        Property(
            # ONNX Runtime raises its errors with the same text; most warnings concern its own
            # optimisations.
            "LOG_LEVEL",
            str,
            "LOG_NONE",
            True,
            "The messages that ONNX Runtime writes to stderr.",
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
            "Libraries of custom operators; Core.add_extension sets it.",
            shapes_result=True,
        ),
        Property(
            "ORT_ARENA_NBYTES",
            int,
            0,
            True,
            "Size in bytes of the block from which a session takes the memory of its runs; 0: "
            "blocks that double, and may take three times the memory. A block costs up to 2 % of "
            "speed.",
            minimum=0,
        ),
        Property(
            "ORT_MAPPED_WEIGHTS",
            bool,
            False,
            True,
            "Whether ONNX Runtime maps the weights from a temporary file, instead of keeping a "
            "copy in the layout of its kernels; weights then take half of the memory.",
        ),
        Property("RANGE_FOR_ASYNC_INFER_REQUESTS", tuple, (1, 64, 1), False, "Fewest, most, step."),
    )

    def __init__(self) -> None:
        super().__init__()
        self._query = OrtQuery()

    def provider(self, config: Config) -> Provider:
        """Return the execution provider that sessions run on."""
        return Provider(libraries=custom_operator_libraries(config["EXTENSIONS"]))

    def transform_model(self, model: Model, config: Config) -> Model:
        """Lift literals, name unnamed outputs, and infer types that ONNX does not infer."""
        model = name_control_flow_outputs(lift_constant_nodes(model))
        return infer_missing_types(model, config["EXTENSIONS"])

    def prepare_query(self, model: Model, config: Config) -> Mapping[str, Refusal | str]:
        """Query ONNX Runtime for every node."""
        return self._query.query(model, self.provider(config))

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        """Return None: `prepare_query` returns the refusals of all nodes."""
        return None

    def compile(self, model: Model, config: Config) -> Program:
        """Open a session of the whole model."""
        return self.program(model, config, self.provider(config))

    def load(self, payload: Payload, model: Model, config: Config) -> Program:
        """Open a session of an optimised model that the same version exported."""
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
        """Return the runtime's version and the processor."""
        return f"ONNX Runtime {self.version()} on {platform.processor() or platform.machine()}"

    def fingerprint(self, device_id: str) -> str:
        """Return the version and the instruction set, which determine optimised models."""
        return f"onnxruntime-{self.version()}-{platform.machine()}-{_instruction_set()}"

    def device_properties(self, device_id: str) -> Mapping[str, Any]:
        """Return the processor's architecture."""
        return {"DEVICE_ARCHITECTURE": platform.machine()}


def _instruction_set() -> str:
    """Return the processor's vector extensions, which determine layouts in optimised models."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123 - reads one line
            line = next((text for text in file if text.startswith(("flags", "Features"))), "")
    except OSError:
        return os.name
    flags = set(line.split())
    extensions = ("avx", "avx2", "avx512f", "avx512_vnni", "amx_int8", "asimd", "sve")
    return "+".join(flag for flag in extensions if flag in flags) or "base"
