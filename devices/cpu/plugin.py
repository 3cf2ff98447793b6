"""The CPU plugin: the interpreter on numpy, the reference for the other devices."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import onnx

from hetero.devices.cpu.threads import blas_name, use_threads
from hetero.devices.interpreter.backend import NUMPY, ArrayBackend
from hetero.devices.interpreter.plugin import EXTENSIONS, InterpreterPlugin
from hetero.devices.interpreter.program import InterpretedProgram
from hetero.devices.model.extension import with_allowed_extensions
from hetero.devices.model.model import Model
from hetero.devices.plugin.memory_traits import MemoryTraits
from hetero.devices.plugin.program import Payload, Program, RunContext, Value
from hetero.devices.plugin.properties import (
    COMMON_PROPERTIES,
    FULL_PRECISION,
    OPTIONAL_PROPERTIES,
    Config,
    Property,
    PropertyTable,
)
from hetero.devices.transforms import CLEANUP_PASSES, OPTIMIZATION_PASSES, PASSES, Pass, transform
from hetero.devices.transforms.single_precision import promote_to_single_precision

#: The passes of every device, and one that computes half precision in single precision.
_PERFORMANCE_PASSES: Final = (
    *CLEANUP_PASSES,
    Pass(promote_to_single_precision),
    *OPTIMIZATION_PASSES,
)


class CPUProgram(InterpretedProgram):
    """An interpreted model; `threads` is its number of BLAS threads, 0 for BLAS's default."""

    def __init__(self, model: Model, threads: int = 0, backend: ArrayBackend = NUMPY) -> None:
        super().__init__(model, backend)
        self._threads = threads

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Compute the outputs; KernelError if a node's inputs break its specification."""
        use_threads(self._threads)
        return super().run(inputs, context)


class CPUPlugin(InterpreterPlugin):
    """The reference device, which needs no extra package."""

    name: ClassVar[str] = "CPU"
    rank: ClassVar[int] = 90
    #: An idle process on Ray (127 MB) with its channels; the C library keeps fragments of values.
    memory_traits: ClassVar[MemoryTraits] = MemoryTraits(
        runtime_nbytes=132_000_000, fused_copies=1.4, values_factor=1.5
    )
    backend: ArrayBackend = NUMPY
    properties: ClassVar[PropertyTable] = COMMON_PROPERTIES.extended(
        *OPTIONAL_PROPERTIES.values(),
        FULL_PRECISION,
        Property(
            "OPTIMIZATION_CAPABILITIES",
            tuple,
            ("FP32", "FP16", "BF16", "INT8"),
            False,
            "Element types and capabilities.",
        ),
        Property(
            "EXECUTION_MODE_HINT",
            str,
            "PERFORMANCE",
            True,
            "ACCURACY: half precision is rounded at every operator, as the model is written.",
            choices=("PERFORMANCE", "ACCURACY"),
            shapes_result=True,
        ),
        EXTENSIONS,
    )

    def transform_model(self, model: Model, config: Config) -> Model:
        """Fold constants, fuse patterns and remove dead nodes."""
        model = with_allowed_extensions(model, config["EXTENSIONS"])
        if config["DISABLE_TRANSFORMATIONS"]:
            return model
        accurate = config["EXECUTION_MODE_HINT"] == "ACCURACY"
        return transform(model, PASSES if accurate else _PERFORMANCE_PASSES)

    def compile(self, model: Model, config: Config) -> Program:
        """Return an interpreted program."""
        return CPUProgram(model, config["INFERENCE_NUM_THREADS"], self.backend)

    def load(self, payload: Payload, model: Model, config: Config) -> Program:
        """Make a program from an exported one, without transforming it again."""
        options = {"threads": config["INFERENCE_NUM_THREADS"], "backend": self.backend}
        return CPUProgram.load(payload, config["EXTENSIONS"], **options)

    def version(self) -> str:
        """Return the versions that results depend on."""
        return f"8 (numpy {np.__version__}, onnx {onnx.__version__})"

    def full_name(self, device_id: str) -> str:
        """Return the processor's name, or its architecture if the system reports no name."""
        return _processor_name()

    def fingerprint(self, device_id: str) -> str:
        """Return the instruction set, numpy's version and its BLAS."""
        return f"{platform.machine()} numpy {np.__version__} {blas_name()}"


@cache
def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
