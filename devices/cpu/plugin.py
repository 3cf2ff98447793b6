"""The CPU plugin: every operator that has a numpy kernel, a function body or a delegate."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx

from devices.cpu.threads import blas_name
from devices.interpreter.backend import NUMPY, ArrayBackend
from devices.interpreter.implementations import Scope, find_implementation
from devices.interpreter.program import CPUProgram
from devices.model.extension import allowed_extensions
from devices.model.model import Model, Node
from devices.plugin.plugin import Plugin
from devices.plugin.program import Payload, Program
from devices.plugin.properties import (
    COMMON_PROPERTIES,
    OPTIONAL_PROPERTIES,
    Config,
    Property,
    PropertyTable,
)
from devices.plugin.support import Refusal
from devices.transforms import HOST_PASSES, transform


class CPUPlugin(Plugin):
    """The reference device, always there."""

    name: ClassVar[str] = "CPU"
    rank: ClassVar[int] = 90
    #: What its kernels compute with.
    backend: ArrayBackend = NUMPY
    properties: ClassVar[PropertyTable] = COMMON_PROPERTIES.extended(
        *OPTIONAL_PROPERTIES.values(),
        Property(
            "OPTIMIZATION_CAPABILITIES",
            tuple,
            ("FP32", "FP16", "BF16", "INT8", "EXPORT_IMPORT"),
            False,
            "Element types and abilities.",
        ),
        Property(
            "EXECUTION_MODE_HINT",
            str,
            "PERFORMANCE",
            True,
            "ACCURACY: convolutions and half precision round as the model is written.",
            choices=("PERFORMANCE", "ACCURACY"),
            shapes_result=True,
        ),
        Property(
            "EXTENSIONS",
            tuple,
            (),
            True,
            "Custom operators that a model may import: Core lists those added to it.",
            shapes_result=True,
        ),
    )

    def transform_model(self, model: Model, config: Config) -> Model:
        """Return the model with constants folded, patterns fused and dead nodes gone."""
        model = allowed_extensions(model, config["EXTENSIONS"])
        if config["DISABLE_TRANSFORMATIONS"]:
            return model
        if self.backend is not NUMPY or config["EXECUTION_MODE_HINT"] == "ACCURACY":
            return transform(model)
        return transform(model, HOST_PASSES)

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        """Return why no kernel, function body or delegate runs the node, or None."""
        found = find_implementation(node, Scope.of_model(model, self.backend))
        return found if isinstance(found, Refusal) else _meaningless(node, model)

    def note(self, node: Node, model: Model, config: Config) -> str | None:
        """Say which nodes are delegated, and which run as the body of a function."""
        found = find_implementation(node, Scope.of_model(model, self.backend))
        if isinstance(found, Refusal) or found.kind not in ("delegate", "function"):
            return None
        return found.label

    def compile(self, model: Model, config: Config) -> Program:
        """Return the interpreter's program."""
        return CPUProgram(model, config["INFERENCE_NUM_THREADS"], self.backend)

    def load(self, payload: Payload, model: Model, config: Config) -> Program:
        """Make a program from an exported one, without transforming again."""
        return CPUProgram.load(
            payload,
            config["EXTENSIONS"],
            threads=config["INFERENCE_NUM_THREADS"],
            backend=self.backend,
        )

    def version(self) -> str:
        """Return the versions that results depend on."""
        return f"4 (numpy {np.__version__}, onnx {onnx.__version__})"

    def full_name(self, device_id: str) -> str:
        """Return the processor's name where the system tells it."""
        try:
            lines = Path("/proc/cpuinfo").read_text().splitlines()
        except OSError:
            lines = []
        named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        return next(named, platform.processor() or platform.machine())

    def fingerprint(self, device_id: str) -> str:
        """Return the instruction set, numpy's version and its BLAS."""
        return f"{platform.machine()} numpy {np.__version__} {blas_name()}"


def _meaningless(node: Node, model: Model) -> Refusal | None:
    """Refuse element types that ONNX allows an operator, though they cannot be computed with."""
    if node.domain or node.op_type not in ("Col2Im", "GridSample"):
        return None
    kind = model.spec(node.inputs[0]).element_type
    if node.op_type == "Col2Im" and kind == "string":
        return Refusal("dtype", "Col2Im adds up elements, and strings have no sum")
    nearest = node.attributes.get("mode", "linear") == "nearest"
    if node.op_type == "GridSample" and kind in ("string", "bool") and not nearest:
        return Refusal("dtype", f"GridSample: {kind} has no values between two pixels")
    return None
