"""The GPU plugin: the interpreter on CUDA devices, by CuPy's arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import onnx

from hetero.devices.errors import DeviceMemoryError, PluginLoadError
from hetero.devices.gpu.backend import DeviceBackend
from hetero.devices.gpu.element_types import untyped
from hetero.devices.gpu.program import GPUContext, GPUProgram
from hetero.devices.interpreter.implementations import Scope, find_implementation
from hetero.devices.interpreter.plugin import EXTENSIONS, InterpreterPlugin
from hetero.devices.kernels import ALL, Kernel
from hetero.devices.model.extension import allowed_extensions
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.program import Payload, Program
from hetero.devices.plugin.properties import (
    COMMON_PROPERTIES,
    OPTIONAL_PROPERTIES,
    Config,
    Property,
    PropertyTable,
)
from hetero.devices.plugin.support import Refusal
from hetero.devices.transforms import transform


class GPUPlugin(InterpreterPlugin):
    """CUDA devices."""

    name: ClassVar[str] = "GPU"
    rank: ClassVar[int] = 10
    leaves_outputs: ClassVar[bool] = True
    properties: ClassVar[PropertyTable] = COMMON_PROPERTIES.extended(
        *(p for name, p in OPTIONAL_PROPERTIES.items() if name != "INFERENCE_NUM_THREADS"),
        EXTENSIONS,
        Property("DEVICE_TYPE", str, "DISCRETE", False, "INTEGRATED or DISCRETE."),
        Property(
            "OPTIMIZATION_CAPABILITIES",
            tuple,
            ("FP32", "FP16", "INT8", "EXPORT_IMPORT"),
            False,
            "Element types and abilities.",
        ),
        Property(
            "GPU_MEMORY_LIMIT",
            int,
            0,
            True,
            "Bytes of the device's memory that this process may take; 0: all of it.",
            minimum=0,
        ),
        Property("DEVICE_TOTAL_MEM_SIZE", int, 0, False, "Bytes of the device's memory."),
        Property("GPU_MEMORY_USED", int, 0, False, "Bytes of it that this process's arrays take."),
    )
    backend: DeviceBackend

    def __init__(self) -> None:
        super().__init__()
        self.backend = self.open_backend()

    @staticmethod
    def open_backend() -> DeviceBackend:
        """Return the devices' arrays; PluginLoadError if there are none."""
        try:
            from hetero.devices.gpu.cupy_backend import CupyBackend
        except ImportError as error:
            raise PluginLoadError(
                f"the GPU device needs CuPy, which cannot be imported ({error}); pip install "
                "'hetero[gpu]'.",
                device="GPU",
            ) from error
        backend = CupyBackend()
        if not backend.device_ids():
            raise PluginLoadError(
                "CuPy is installed, but finds no CUDA device: there is none, or its driver is "
                "missing or older than CuPy's CUDA; nvidia-smi tells which.",
                device="GPU",
            )
        return backend

    def device_ids(self) -> tuple[str, ...]:
        """Return the devices' numbers."""
        return self.backend.device_ids()

    def transform_model(self, model: Model, config: Config) -> Model:
        """Return the model with constants folded, patterns fused and dead nodes gone."""
        model = allowed_extensions(model, config["EXTENSIONS"])
        return model if config["DISABLE_TRANSFORMATIONS"] else transform(model)

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        """Refuse what no kernel runs, and element types that the device's arrays lack."""
        return untyped(node, model) or super().refuse(node, model, config)

    def note(self, node: Node, model: Model, config: Config) -> str | None:
        """Say which nodes run on the host after all, and which as the body of a function."""
        found = find_implementation(node, Scope.of_model(model, self.backend))
        if isinstance(found, Refusal):
            return None
        if isinstance(found.definition, Kernel) and found.definition.host == (ALL,):
            return "runs on the host: its inputs are copied there"
        return super().note(node, model, config)

    def prepare_query(self, model: Model, config: Config) -> Mapping[str, Refusal | str]:
        """Refuse the nodes whose constants the device has no room for."""
        room = self._room(config)
        held: set[str] = set()
        refused: dict[str, Refusal | str] = {}
        for node in model.nodes:
            new = {n for n in node.reads if n in model.constants} - held
            nbytes = sum(model.constants[name].array.nbytes for name in new)
            if nbytes > room:
                refused[node.name] = Refusal(
                    "memory",
                    f"its constants take {nbytes} bytes, and {room} are left of what "
                    f"{self.name}.{config['DEVICE_ID']} may hold",
                )
            else:
                room -= nbytes
                held |= new
        return refused

    def compile(self, model: Model, config: Config) -> Program:
        """Return the interpreter's program, its constants on the device."""
        with self._memory(model, config):
            return GPUProgram(model, **self._target(config))

    def load(self, payload: Payload, model: Model, config: Config) -> Program:
        """Make a program from an exported one, without transforming again."""
        with self._memory(model, config):
            return GPUProgram.load(payload, config["EXTENSIONS"], **self._target(config))

    def create_context(self, config: Config | None = None) -> GPUContext:
        """Return the device's memory."""
        return GPUContext(**self._target(self.effective_config(config)))

    def version(self) -> str:
        """Return the versions that results depend on."""
        return f"1 ({self.backend.name}, onnx {onnx.__version__})"

    def full_name(self, device_id: str) -> str:
        """Return the device's name, as its driver says it."""
        return self.backend.describe(device_id)

    def fingerprint(self, device_id: str) -> str:
        """Return the device's architecture, and the versions of library and driver."""
        return self.backend.fingerprint(device_id)

    def device_properties(self, device_id: str) -> Mapping[str, Any]:
        """Return how much memory the device has, and how much is taken."""
        return {
            "DEVICE_TOTAL_MEM_SIZE": self.backend.total_nbytes(device_id),
            "GPU_MEMORY_USED": self.backend.used_nbytes(device_id),
        }

    def _target(self, config: Config) -> dict[str, Any]:
        device_id = config["DEVICE_ID"]
        device = f"{self.name}.{device_id}"
        return {"backend": self.backend, "device": device, "device_id": device_id}

    def _room(self, config: Config) -> int:
        """Return how many bytes the arrays of this process may take of the device."""
        total = self.backend.total_nbytes(config["DEVICE_ID"])
        return min(total, config["GPU_MEMORY_LIMIT"] or total)

    @contextmanager
    def _memory(self, model: Model, config: Config) -> Iterator[None]:
        """Bound the device's memory, and say in the project's words that it is exhausted."""
        device_id = config["DEVICE_ID"]
        self.backend.bound_memory(device_id, config["GPU_MEMORY_LIMIT"])
        try:
            yield
        except MemoryError as error:
            raise DeviceMemoryError(
                f"{self.name}.{device_id} has no room for model {model.name!r}: {error}. It holds "
                f"{self.backend.used_nbytes(device_id)} of {self._room(config)} bytes: close other "
                "models there, raise GPU_MEMORY_LIMIT, or put part of it on another device, as in "
                "HETERO:GPU,CPU.",
                device=f"{self.name}.{device_id}",
            ) from error
