"""The CPU device's program: the interpreter's, on BLAS threads as many as were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from devices.cpu.fast import FAST
from devices.cpu.threads import use_threads
from devices.interpreter.backend import ArrayBackend
from devices.interpreter.program import InterpretedProgram
from devices.model.model import Model
from devices.plugin.program import RunContext, Value

#: The host's arrays, and kernels that suit only a CPU beside the shared ones.
HOST: Final = ArrayBackend("numpy", np, FAST)


class CPUProgram(InterpretedProgram):
    """A transformed model, interpreted.

    `threads` is the number of BLAS threads for a run; 0: as many as BLAS started with.
    """

    def __init__(self, model: Model, threads: int = 0, backend: ArrayBackend = HOST) -> None:
        super().__init__(model, backend)
        self._threads = threads

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Compute the outputs; KernelError where a node's inputs break its specification."""
        use_threads(self._threads)
        return super().run(inputs, context)
