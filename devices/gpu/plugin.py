"""The GPU device: the interpreter on CuPy arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import onnx

from hetero.devices.errors import DeviceMemoryError, PluginLoadError
from hetero.devices.gpu.backend import DeviceBackend
from hetero.devices.gpu.element_types import type_refusal
from hetero.devices.gpu.program import GPUContext, GPUProgram
from hetero.devices.interpreter.implementations import Scope, find_implementation
from hetero.devices.interpreter.plugin import EXTENSIONS, InterpreterPlugin
from hetero.devices.kernels import ALL, Kernel
from hetero.devices.model.extension import with_allowed_extensions
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.install_command import install_command
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
    """CUDA devices, with the driver's numbers as ids."""

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
            ("FP32", "FP16", "INT8"),
            False,
            "Element types and abilities.",
        ),
        Property(
            "GPU_MEMORY_LIMIT",
            int,
            0,
            True,
            "Largest size in bytes of a model's arrays on the device; 0: no limit.",
            minimum=0,
        ),
        Property(
            "CUDA_GRAPHS",
            bool,
            True,
            True,
            "Whether runs of equal input shapes are launched as one CUDA graph from the third run "
            "on; a graph holds memory for its intermediate values.",
        ),
        Property("DEVICE_TOTAL_MEM_SIZE", int, 0, False, "Size of the device's memory in bytes."),
        Property(
            "GPU_MEMORY_USED",
            int,
            0,
            False,
            "Size in bytes of this process's arrays on the device.",
        ),
    )
    backend: DeviceBackend

    def __init__(self) -> None:
        super().__init__()
        self.backend = self.open_backend()

    @staticmethod
    def open_backend() -> DeviceBackend:
        """Return the array backend; PluginLoadError if CuPy or a device is missing."""
        try:
            from hetero.devices.gpu.cupy_backend import CupyBackend
        except ImportError as error:
            raise PluginLoadError(
                "device GPU (NVIDIA; Intel's are OV.GPU) needs CuPy, which cannot be imported "
                f"({error}); {install_command('gpu')}.",
                device="GPU",
            ) from error
        backend = CupyBackend()
        if not backend.device_ids():
            raise PluginLoadError(
                "CuPy is installed, but finds no CUDA device: the machine has none, or its driver "
                "is missing or older than CuPy's CUDA; check with nvidia-smi.",
                device="GPU",
            )
        return backend

    def device_ids(self) -> tuple[str, ...]:
        """Return the devices' numbers."""
        return self.backend.device_ids()

    def transform_model(self, model: Model, config: Config) -> Model:
        """Fold constants, fuse patterns and remove dead nodes."""
        model = with_allowed_extensions(model, config["EXTENSIONS"])
        return model if config["DISABLE_TRANSFORMATIONS"] else transform(model)

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        """Refuse nodes without a kernel, and types without GPU arrays."""
        return type_refusal(node, model) or super().refuse(node, model, config)

    def note(self, node: Node, model: Model, config: Config) -> str | None:
        """Note the nodes that run on the host, and those that run as the body of a function."""
        implementation = find_implementation(node, Scope.of_model(model, self.backend))
        if isinstance(implementation, Refusal):
            return None
        definition = implementation.definition
        if isinstance(definition, Kernel) and definition.host == (ALL,):
            return "runs on the host: its inputs are copied there"
        return super().note(node, model, config)

    def prepare_query(self, model: Model, config: Config) -> Mapping[str, Refusal | str]:
        """Refuse the nodes whose constants exceed the device's memory."""
        available_nbytes = self._capacity_nbytes(config)
        counted_constants: set[str] = set()
        refusals: dict[str, Refusal | str] = {}
        for node in model.nodes:
            new = {n for n in node.reads if n in model.constants} - counted_constants
            nbytes = sum(model.constants[name].array.nbytes for name in new)
            if nbytes > available_nbytes:
                refusals[node.name] = Refusal(
                    "memory",
                    f"its constants take {nbytes} bytes; {available_nbytes} are free on "
                    f"{self.name}.{config['DEVICE_ID']}",
                )
            else:
                available_nbytes -= nbytes
                counted_constants |= new
        return refusals

    def compile(self, model: Model, config: Config) -> Program:
        """Compile to a program whose constants are on the device."""
        with self._memory_errors(model, config):
            return GPUProgram(model, **self._options(config))

    def load(self, payload: Payload, model: Model, config: Config) -> Program:
        """Load an exported program, whose model is already transformed."""
        with self._memory_errors(model, config):
            return GPUProgram.load(payload, config["EXTENSIONS"], **self._options(config))

    def create_context(self, config: Config | None = None) -> GPUContext:
        """Return a context for the device's memory."""
        return GPUContext(**self._target(self.effective_config(config)))

    def version(self) -> str:
        """Return the versions of kernels, array library and onnx, which results depend on."""
        return f"1 ({self.backend.name}, onnx {onnx.__version__})"

    def full_name(self, device_id: str) -> str:
        """Return the driver's name of the device."""
        return self.backend.describe(device_id)

    def fingerprint(self, device_id: str) -> str:
        """Return the device's architecture, and the versions of the library and its driver."""
        return self.backend.fingerprint(device_id)

    def device_properties(self, device_id: str) -> Mapping[str, Any]:
        """Return the size of the device's memory, and of this process's arrays there."""
        return {
            "DEVICE_TOTAL_MEM_SIZE": self.backend.total_nbytes(device_id),
            "GPU_MEMORY_USED": self.backend.used_nbytes(device_id),
        }

    def _target(self, config: Config) -> dict[str, Any]:
        """Return the arguments of programs and contexts that choose a device."""
        device_id = config["DEVICE_ID"]
        device = f"{self.name}.{device_id}"
        return {"backend": self.backend, "device": device, "device_id": device_id}

    def _options(self, config: Config) -> dict[str, Any]:
        """Return the arguments of programs."""
        return {
            **self._target(config),
            "has_graphs": config["CUDA_GRAPHS"],
            "limit_nbytes": config["GPU_MEMORY_LIMIT"],
        }

    def _capacity_nbytes(self, config: Config) -> int:
        """Return the largest size of a model's arrays on the device."""
        total = self.backend.total_nbytes(config["DEVICE_ID"])
        return min(total, config["GPU_MEMORY_LIMIT"] or total)

    @contextmanager
    def _memory_errors(self, model: Model, config: Config) -> Iterator[None]:
        """Raise DeviceMemoryError in a `with` block that exhausts the device's memory."""
        try:
            yield
        except MemoryError as error:
            device = f"{self.name}.{config['DEVICE_ID']}"
            limit_nbytes = config["GPU_MEMORY_LIMIT"]
            limit = (
                f"GPU_MEMORY_LIMIT of the model is {limit_nbytes} bytes; " if limit_nbytes else ""
            )
            total_nbytes = self.backend.total_nbytes(config["DEVICE_ID"])
            raise DeviceMemoryError(
                f"{device} is out of memory for model {model.name!r}: {error}. {limit}"
                f"arrays of all models take {self.backend.used_nbytes(config['DEVICE_ID'])} of "
                f"{total_nbytes} bytes. Close other models there, "
                "raise GPU_MEMORY_LIMIT, or split the model with HETERO:GPU,CPU.",
                device=device,
            ) from error
